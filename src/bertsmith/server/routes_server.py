"""Routes about the server: /health, /info, /metrics, /v1/models, and the API documentation: /docs, /openapi.json."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

from fastapi import APIRouter
from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bertsmith import __version__
from bertsmith.reports.html import table
from bertsmith.server import page
from bertsmith.server.middleware import HEALTH_PATHS
from bertsmith.server.monitoring import METRICS_CONTENT_TYPE
from bertsmith.server.schemas import ERROR_RESPONSES, Responses
from bertsmith.server.service import ServiceDependency

GET_ERRORS: Responses = {status: ERROR_RESPONSES[status] for status in (400, 401, 403, 404, 405, 413)}
NOT_READY: Responses = {503: {"description": "The server is stopping, or a model is failing."}}
router = APIRouter(responses=GET_ERRORS, tags=["server"])
PUBLIC = (*HEALTH_PATHS, "/docs", "/openapi.json")
ADDRESS = "<!--address-->"  # replaced in every response


@router.get("/health/live", response_model=dict[str, Any], summary="Liveness")
async def live() -> Response:
    """200 as long as the process responds, whatever its load: restart it if this fails."""
    return JSONResponse({"status": "ok"})


@router.get("/health", response_model=dict[str, Any], responses=NOT_READY, summary="Readiness, as /health/ready")
@router.get("/health/ready", response_model=dict[str, Any], responses=NOT_READY, summary="Readiness")
async def ready(service: ServiceDependency) -> Response:
    """Runs a forward pass of every model; a busy model is ready."""
    result = await service.health()
    return JSONResponse(result, 200 if result["status"] == "ok" else 503)


@router.get("/info", response_model=dict[str, Any], summary="Models and limits")
async def info(service: ServiceDependency) -> Response:
    """The models with their routes and sizes, and the limits of requests."""
    models = [one.to_json() for one in service.models.values()]
    return JSONResponse({"version": __version__, "models": models, "limits": service.limits.to_json()})


@router.get("/v1/models", response_model=dict[str, Any], summary="Models in OpenAI's format")
async def models(service: ServiceDependency) -> Response:
    """The models, for OpenAI's clients."""
    listed = [{"id": name, "object": "model", "created": 0, "owned_by": "bertsmith"} for name in service.models]
    return JSONResponse({"object": "list", "data": listed})


@router.get(
    "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}, summary="Prometheus metrics"
)
async def metrics(service: ServiceDependency) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(generate_latest(service.metrics.registry), media_type=METRICS_CONTENT_TYPE)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """The API documentation, with examples for the address of the request."""
    markup = _documentation(request)[1].replace(ADDRESS, escape(str(request.base_url).rstrip("/")))
    return page.with_etag(request, markup.encode(), "text/html")


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The OpenAPI schema."""
    return Response(_documentation(request)[0], media_type="application/json")


def _documentation(request: Request) -> tuple[bytes, str]:
    """The OpenAPI schema and the HTML page, made once."""
    state = request.app.state
    if not hasattr(state, "documentation"):
        schema = request.app.openapi()
        state.documentation = (json.dumps(schema).encode(), docs_page(schema, with_key=state.with_key))
    documentation: tuple[bytes, str] = state.documentation
    return documentation


def docs_page(schema: dict[str, Any], *, with_key: bool) -> str:
    """Every route with its fields, an example and its responses; examples send an API key if `with_key`."""
    info = schema["info"]
    routes = [
        (method.upper(), path, route) for path, methods in schema["paths"].items() for method, route in methods.items()
    ]
    links = "".join(f'<li><a href="#{_anchor(method, path)}">{escape(path)}</a></li>' for method, path, _ in routes)
    sections = "".join(_section(schema, method, path, route, with_key) for method, path, route in routes)
    body = (
        f"<h1>API</h1><p>{escape(info['description'])}</p>"
        f'<p class="faint">bertsmith {escape(info["version"])} · <a href="openapi.json">openapi.json</a></p>'
        f'<ul class="routes" aria-label="routes">{links}</ul>{sections}'
    )
    return page.render("docs", "API", body)


def _anchor(method: str, path: str) -> str:
    return escape(f"{method.lower()}{path.replace('/', '-')}")


def _section(schema: dict[str, Any], method: str, path: str, route: dict[str, Any], with_key: bool) -> str:
    body = _resolve(schema, route["requestBody"]["content"]["application/json"]["schema"]) if method == "POST" else {}
    description = escape(" ".join(route.get("description", "").split()))
    parts = [
        f'<section class="card route" id="{_anchor(method, path)}">',
        f"<h2>{escape(route['summary'])}</h2><p><code>{method} {escape(path)}</code></p>",
        "<p>" + re.sub(r"`([^`]*)`", r"<code>\1</code>", description) + "</p>",
    ]
    if body:
        defaults = {name: json.dumps(field.get("default")) for name, field in body["properties"].items()}
        defaults |= dict.fromkeys(body.get("required", []), "required")
        fields = [
            (name, _type(schema, field), defaults[name], field.get("description", ""))
            for name, field in body["properties"].items()
        ]
        parts.append(table(("field", "type", "default", "meaning"), fields, wrap=True))
        for example in body.get("examples", []):
            parts.append(f'<pre class="code" tabindex="0" aria-label="example">{_curl(path, example, with_key)}</pre>')
    responses = [(str(status), one.get("description", "")) for status, one in route["responses"].items()]
    parts.append(
        f"<details><summary>Responses</summary>{table(('status', 'meaning'), responses, wrap=True)}</details></section>"
    )
    return "".join(parts)


def _curl(path: str, body: dict[str, Any], with_key: bool) -> str:
    quoted = "'" + json.dumps(body, ensure_ascii=False).replace("'", "'\\''") + "'"
    key = '  -H "Authorization: Bearer $BERTSMITH_KEY" \\\n' if with_key else ""
    rest = escape(f"{path} \\\n{key}  -H 'Content-Type: application/json' \\\n  -d {quoted}")
    return f'curl <span class="address">{ADDRESS}</span>{rest}'


def _type(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """A type in words: `string or list of string`."""
    field = _resolve(schema, field)
    if "anyOf" in field:
        types = [_type(schema, one) for one in field["anyOf"]]
        return " or ".join(dict.fromkeys(one for one in types if one != "null"))
    if "enum" in field or "const" in field:
        return " or ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_type(schema, field.get('items', {}))}"
    if field.get("type") == "object" and "properties" in field:
        return "{" + ", ".join(field["properties"]) + "}"
    return str(field.get("type", "any"))


def _resolve(schema: dict[str, Any], value: dict[str, Any]) -> Any:
    return schema["components"]["schemas"][value["$ref"].rsplit("/", 1)[-1]] if "$ref" in value else value
