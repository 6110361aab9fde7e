"""Routes about the server: /health, /info, /metrics, /v1/models, and the API documentation: /docs, /openapi.json."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from prometheus_client import generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from bertsmith import __version__
from bertsmith.reports.html import table
from bertsmith.server.middleware import HEALTH_PATHS
from bertsmith.server.monitoring import METRICS_CONTENT_TYPE
from bertsmith.server.schemas import ERROR_RESPONSES, Responses
from bertsmith.server.service import ServiceDependency

GET_ERRORS: Responses = {status: ERROR_RESPONSES[status] for status in (400, 401, 403, 404, 405, 413)}
NOT_READY: Responses = {503: {"description": "The server is stopping, or a model is failing."}}
router = APIRouter(responses=GET_ERRORS, tags=["server"])
PUBLIC = (*HEALTH_PATHS, "/docs", "/docs.css", "/openapi.json")
DOCS_POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
DOCS_STYLE = (files("bertsmith.reports") / "assets" / "base.css").read_text(encoding="utf-8") + (
    "main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }\n"
    "h1 { font-size: 1.6rem }\n"
    "pre { overflow-x: auto; padding: .75rem; white-space: pre-wrap }\n"
    "h2 code { margin-right: .75rem }\n"
    "nav li { display: inline-block; margin-right: 1rem }\n"
    "nav ul { padding: 0 }\n"
)


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
    """The API documentation as one HTML page without external resources."""
    page = _documentation(request)[1]
    return Response(page, media_type="text/html", headers={"content-security-policy": DOCS_POLICY})


@router.get("/docs.css", include_in_schema=False)
async def docs_style() -> Response:
    """The style sheet of /docs."""
    return Response(DOCS_STYLE, media_type="text/css", headers={"cache-control": "max-age=3600"})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    """The OpenAPI schema."""
    return Response(_documentation(request)[0], media_type="application/json")


def _documentation(request: Request) -> tuple[bytes, bytes]:
    """The OpenAPI schema and the HTML page, made once."""
    state = request.app.state
    if not hasattr(state, "documentation"):
        schema = request.app.openapi()
        state.documentation = (json.dumps(schema).encode(), docs_page(schema).encode())
    documentation: tuple[bytes, bytes] = state.documentation
    return documentation


def docs_page(schema: dict[str, Any]) -> str:
    """Every route with its fields, an example and its responses."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    routes = [
        (method.upper(), path, route) for path, methods in schema["paths"].items() for method, route in methods.items()
    ]
    links = "".join(f'<li><a href="#{_anchor(method, path)}">{escape(path)}</a></li>' for method, path, _ in routes)
    sections = "".join(_section(schema, method, path, route) for method, path, route in routes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="stylesheet" href="/docs.css"></head><body><main><h1>{title}</h1>'
        f"<p>{escape(schema['info'].get('description', ''))}</p>"
        '<p>Machine-readable: <a href="/openapi.json">openapi.json</a>. Try it: <a href="/">playground</a>.</p>'
        f"<nav><ul>{links}</ul></nav>{sections}</main></body></html>"
    )


def _anchor(method: str, path: str) -> str:
    return escape(f"{method.lower()}{path.replace('/', '-')}")


def _section(schema: dict[str, Any], method: str, path: str, route: dict[str, Any]) -> str:
    body = _resolve(schema, route["requestBody"]["content"]["application/json"]["schema"]) if method == "POST" else {}
    description = escape(" ".join(route.get("description", "").split()))
    parts = [
        f'<section id="{_anchor(method, path)}">',
        f"<h2><code>{method} {escape(path)}</code> {escape(route['summary'])}</h2>",
        "<p>" + re.sub(r"`([^`]*)`", r"<code>\1</code>", description) + "</p>",
    ]
    if body:
        defaults = {name: json.dumps(field.get("default")) for name, field in body["properties"].items()}
        defaults |= dict.fromkeys(body.get("required", []), "required")
        fields = [
            (name, _type(schema, field), defaults[name], field.get("description", ""))
            for name, field in body["properties"].items()
        ]
        parts.append(table(("field", "type", "default", ""), fields))
        for example in body.get("examples", []):
            quoted = "'" + json.dumps(example, ensure_ascii=False).replace("'", "'\\''") + "'"
            parts.append(
                f"<pre><code>curl localhost:8080{escape(path)} -H 'Content-Type: application/json' \\\n"
                f"  -d {escape(quoted)}</code></pre>"
            )
    responses = [(str(status), one.get("description", "")) for status, one in route["responses"].items()]
    parts.append(f"<details><summary>responses</summary>{table(('status', ''), responses)}</details></section>")
    return "".join(parts)


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
