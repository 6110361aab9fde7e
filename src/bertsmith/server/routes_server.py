"""Routes about the server itself: /health, /info, /metrics, /docs, /openapi.json, /v1/models."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bertsmith import __version__
from bertsmith.server import api_page, metrics
from bertsmith.server.routing import ERRORS, GuardedRoute
from bertsmith.server.service import service_of

ERRORS_HERE: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 404, 405, 413)}
router = APIRouter(route_class=GuardedRoute, responses=ERRORS_HERE, tags=["server"])
PUBLIC = ("/health", "/docs", "/docs.css", "/openapi.json")


@router.get(
    "/health",
    response_model=dict[str, Any],
    responses={503: {"description": "Stopping or failing."}},
    summary="Is everything well?",
)
async def health(request: Request) -> Response:
    """Whether every model computes: each has just done it."""
    found = await service_of(request).health()
    return JSONResponse(found, 200 if found["status"] == "ok" else 503)


@router.get("/info", response_model=dict[str, Any], summary="What there is")
async def info(request: Request) -> Response:
    """Which models there are, what each can do, and what may be asked."""
    service = service_of(request)
    models = [one.shown() for one in service.shelf]
    return JSONResponse({"version": __version__, "models": models, "limits": service.limits.shown()})


@router.get("/v1/models", response_model=dict[str, Any], summary="The models, for OpenAI's clients")
async def models(request: Request) -> Response:
    """The models in OpenAI's form."""
    listed = [
        {"id": one.name, "object": "model", "created": 0, "owned_by": "bertsmith"} for one in service_of(request).shelf
    ]
    return JSONResponse({"object": "list", "data": listed})


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="What was counted"
)
async def counted(request: Request) -> Response:
    """Counters for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=metrics.CONTENT_TYPE)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The description of the API, to be read."""
    return Response(_described(request)[1], media_type="text/html", headers=api_page.HEADERS)


@router.get("/docs.css", include_in_schema=False)
async def style(request: Request) -> Response:
    """The look of /docs."""
    return Response(api_page.STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> Response:
    """The description of the API, for machines."""
    return Response(_described(request)[0], media_type="application/json")


def _described(request: Request) -> tuple[bytes, bytes]:
    """The description for machines and for people, made once."""
    kept = request.app.state
    if not hasattr(kept, "description"):
        schema = request.app.openapi()
        kept.description = (json.dumps(schema).encode(), api_page.page(schema).encode())
    found: tuple[bytes, bytes] = kept.description
    return found
