"""The application: routes, pages and the guard before them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from bertsmith import __version__
from bertsmith.inference.predictor import Predictor
from bertsmith.server import page, routes_embed, routes_server, routes_text, routes_views
from bertsmith.server.errors import defect
from bertsmith.server.metrics import Metrics
from bertsmith.server.middleware import Gateway, Paths
from bertsmith.server.monitoring import Log
from bertsmith.server.request import visit_in
from bertsmith.server.service import Service
from bertsmith.server.settings import Limits

PARTS = (routes_embed, routes_text, routes_views, routes_server)
ABOUT = (
    "Models that embed, fill gaps, judge, tag, answer, choose and rank. Bodies are JSON. Where several models are "
    "served, the field model, or /models/NAME before the path, chooses one. Errors are one line: "
    '{"error", "error_type"}.'
)


def build(
    models: Sequence[tuple[str, Predictor]],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    runs: Path | None = None,
    log: Log | None = None,
) -> Gateway:
    """The ASGI application for these models; `guard.service` has what works behind it, to be closed in the end."""
    limits, metrics, log = limits or Limits(), Metrics(), log or Log(quiet=True)
    app = FastAPI(
        title="bertsmith",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service = Service(models, limits, metrics=metrics, runs=runs)
    for part in PARTS:
        app.include_router(part.router)
    app.add_exception_handler(Exception, _defect)
    pages = page.routes(runs=runs)
    app.router.routes += pages
    known = [route for part in PARTS for route in part.router.routes] + list(pages)
    paths = Paths(known, is_public=_is_public)
    return Gateway(app, paths, limits, service=service, log=log, api_key=api_key)


def _is_public(method: str, path: str) -> bool:
    return method == "GET" and (path in routes_server.PUBLIC or page.is_public(path))


async def _defect(request: Request, error: Exception) -> Response:
    """What a caller hears of a defect; the guard logs it."""
    return Response(defect(visit_in(request.scope).number).body(), 500, media_type="application/json")
