"""The description of the API as one HTML page, made from its OpenAPI form. Asks for nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Any

from bertsmith.reports.html import table

POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {"content-security-policy": POLICY}
STYLE = (files("bertsmith.reports") / "assets" / "base.css").read_text(encoding="utf-8") + (
    "main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem }\n"
    "h1 { font-size: 1.6rem }\n"
    "pre { overflow-x: auto; padding: .75rem; white-space: pre-wrap }\n"
    "h2 code { margin-right: .75rem }\n"
    "nav li { display: inline-block; margin-right: 1rem }\n"
    "nav ul { padding: 0 }\n"
)


def page(schema: dict[str, Any]) -> str:
    """Every route with its fields, an example and its answers."""
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    routes = list(_routes(schema))
    links = "".join(f'<li><a href="#{_anchor(method, path)}">{escape(path)}</a></li>' for method, path, _ in routes)
    parts = "".join(_route(schema, method, path, route) for method, path, route in routes)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><link rel="stylesheet" href="/docs.css"></head><body><main><h1>{title}</h1>'
        f"<p>{escape(schema['info'].get('description', ''))}</p>"
        '<p>The same for machines: <a href="/openapi.json">openapi.json</a>. To try it: <a href="/">the page</a>.</p>'
        f"<nav><ul>{links}</ul></nav>{parts}</main></body></html>"
    )


def _routes(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            yield method.upper(), path, route


def _anchor(method: str, path: str) -> str:
    return escape(f"{method.lower()}{path.replace('/', '-')}")


def _route(schema: dict[str, Any], method: str, path: str, route: dict[str, Any]) -> str:
    body = route.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    asked = _resolved(schema, body)
    parts = [
        f'<section id="{_anchor(method, path)}">',
        f"<h2><code>{method} {escape(path)}</code> {escape(route['summary'])}</h2>",
        f"<p>{_told(route.get('description', ''))}</p>",
    ]
    if asked:
        parts.append(table(("field", "type", "default", ""), _fields(schema, asked)))
        for one in asked.get("examples", []):
            text = json.dumps(one, ensure_ascii=False)
            parts.append(
                f"<pre><code>curl localhost:8080{escape(path)} -H 'Content-Type: application/json' \\\n"
                f"  -d {escape(_quoted(text))}</code></pre>"
            )
    answers = [(str(status), one.get("description", "")) for status, one in route["responses"].items()]
    parts.append(f"<details><summary>answers</summary>{table(('status', ''), answers)}</details></section>")
    return "".join(parts)


def _told(text: str) -> str:
    """Words of a program stand between backticks."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(" ".join(text.split())))


def _quoted(text: str) -> str:
    """As a shell reads it."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fields(schema: dict[str, Any], asked: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    needed = asked.get("required", [])
    for name, field in asked.get("properties", {}).items():
        default = "needed" if name in needed else json.dumps(field.get("default"))
        yield name, _kind(schema, field), default, field.get("description", "")


def _kind(schema: dict[str, Any], field: dict[str, Any]) -> str:
    """A type in words: `string or list of string`."""
    field = _resolved(schema, field)
    if "anyOf" in field:
        kinds = [_kind(schema, one) for one in field["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "enum" in field or "const" in field:
        return " or ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_kind(schema, field.get('items', {}))}"
    if field.get("type") == "object" and "properties" in field:
        return "{" + ", ".join(field["properties"]) + "}"
    return str(field.get("type", "any"))


def _resolved(schema: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in value:
        return value
    found: dict[str, Any] = schema["components"]["schemas"][value["$ref"].rsplit("/", 1)[-1]]
    return found
