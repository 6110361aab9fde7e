"""The FastAPI application: routes, page, error handlers, and the middleware in front of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import Response

from bertsmith import __version__
from bertsmith.config import did_you_mean
from bertsmith.inference.predictor import Predictor
from bertsmith.server import page, routes_embed, routes_generate, routes_server, routes_text, routes_translate
from bertsmith.server.errors import RequestError, internal_error
from bertsmith.server.middleware import Gateway, error_response
from bertsmith.server.monitoring import Log, context_of
from bertsmith.server.service import Service
from bertsmith.server.settings import AllowedHosts, Limits

ROUTERS = (
    routes_embed.router,
    routes_text.router,
    routes_generate.router,
    routes_translate.router,
    routes_server.router,
)
DESCRIPTION = (
    "Models for embeddings, fill-mask, classification, NER, question answering, multiple choice, ranking, text "
    "generation and translation. Bodies are JSON. With several models, the field model, or /models/NAME before the "
    'path, selects one. Errors are {"error", "error_type"}.'
)


def build(
    models: Mapping[str, Predictor],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    runs: Path | None = None,
    log: Log | None = None,
    allowed_hosts: AllowedHosts | None = None,
) -> Gateway:
    """The ASGI application of a server. Close its `service` at the end.

    `allowed_hosts`: the names in the Host header; default: those of this machine, or any with an API key.
    """
    hosts = allowed_hosts or (AllowedHosts() if api_key is None else None)
    no_urls: dict[str, Any] = {"docs_url": None, "redoc_url": None, "openapi_url": None, "redirect_slashes": False}
    app = FastAPI(title="bertsmith", version=__version__, description=DESCRIPTION, **no_urls)
    app.state.with_key = api_key is not None
    app.state.service = service = Service(models, limits or Limits())
    for router in ROUTERS:
        app.include_router(router)
    pages = page.routes(runs=runs)
    app.router.routes += pages
    routes = [*(route for router in ROUTERS for route in router.routes), *pages]
    public = {*routes_server.PUBLIC, *page.PUBLIC}
    access: dict[str, Any] = {"public": public, "api_key": api_key, "allowed_hosts": hosts}
    gateway = Gateway(app, routes, service, log=log or Log(quiet=True), **access)

    async def on_request_error(request: Request, error: Any) -> Response:
        return error_response(await gateway.delay(error), context_of(request))

    async def on_invalid_body(request: Request, error: Any) -> Response:
        return error_response(RequestError(422, "validation", _describe(request, error.errors())), context_of(request))

    async def on_internal_error(request: Request, error: Exception) -> Response:  # the middleware logs it
        return error_response(internal_error(context_of(request).id), context_of(request))

    app.add_exception_handler(RequestError, on_request_error)
    app.add_exception_handler(RequestValidationError, on_invalid_body)
    app.add_exception_handler(Exception, on_internal_error)
    return gateway


def _describe(request: Request, errors: Sequence[Any]) -> str:
    """One line about the first invalid field, without the value that was sent."""
    first = errors[0]
    if first["type"] == "extra_forbidden":
        body_field = request.scope["route"].body_field
        known = list(body_field.field_info.annotation.model_fields) if body_field else []
        hint = did_you_mean(str(first["loc"][-1]), known) if len(first["loc"]) == 2 else ""
        return f"the body has an unknown field{hint or ':'} ({', '.join(known)})"
    same = [one for one in errors if one["loc"][1:2] == first["loc"][1:2]]  # one for each type of a union
    location = max((_location(one["loc"]) for one in same), key=len)
    reasons = dict.fromkeys(one["msg"] for one in same if _location(one["loc"]) == location)
    return f"{location or 'the body'}: {' or '.join(list(reasons)[:3])}"


def _location(parts: tuple[Any, ...]) -> str:
    """`inputs[3]`, without pydantic's names of union members."""
    name = str(parts[1]) if len(parts) > 1 else ""
    return name + "".join(f"[{part}]" for part in parts[2:] if isinstance(part, int))
