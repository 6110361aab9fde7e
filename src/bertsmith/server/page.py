"""The page of a server: five panels, their assets, and the runs and evaluations that two of them show.

Pages and assets hold nothing of a model, a run or a user, and may be given to anybody; `is_public` says which paths
these are. Pages ask for nothing from elsewhere, and a policy keeps them to it. Knows no model: the scripts ask the API.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bertsmith.errors import BertsmithError
from bertsmith.server.records import Absent, Records

PANELS = {
    "playground": "Playground",
    "attention": "Attention",
    "tokenizer": "Tokenizer",
    "training": "Training",
    "evaluation": "Evaluation",
}
STYLES = {"training": "report.css", "evaluation": "evaluation.css"}  # those of pages that stand alone
FOLDERS = ("bertsmith.server", "bertsmith.reports", "bertsmith.evaluation")  # with assets
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
NO_RUNS = "this server shows no runs: start it with --runs FOLDER"

Answer = Callable[[Request], Response]


def is_public(path: str) -> bool:
    """Whether a GET of this path needs no key: pages and assets, never data."""
    return path == "/" or path.removeprefix("/") in PANELS or path.startswith("/assets/")


def routes(*, runs: Path | None) -> list[Route]:
    """Every route of the page; `runs` is the folder beneath which runs and evaluations are found."""
    records = Records(runs) if runs is not None else None
    found = [Route("/", lambda request: RedirectResponse("playground", 307, HEADERS), methods=["GET"])]
    found += [Route(f"/{name}", _fixed(_page(name), "text/html"), methods=["GET"], name=name) for name in PANELS]
    found.append(Route("/assets/{name}", _assets(), methods=["GET"]))
    data: dict[str, Callable[[Records, Request], Any]] = {
        "/runs": lambda records, request: records.runs(),
        "/runs/{name:path}/history": lambda records, request: records.history(
            [request.path_params["name"], *request.query_params.getlist("with")]
        ),
        "/evaluations": lambda records, request: records.evaluations(),
        "/evaluations/{name:path}": lambda records, request: records.evaluation(request.path_params["name"]),
    }
    return found + [Route(path, _data(records, read), methods=["GET"]) for path, read in data.items()]


# --- pages and assets: read once, the same for everybody -------------------------------------------------------------


def _page(panel: str) -> bytes:
    folder = files("bertsmith.server") / "assets"
    links = (
        f'<a href="{name}"{" aria-current=page" if name == panel else ""}>{escape(title)}</a>'
        for name, title in PANELS.items()
    )
    known = {
        "title": PANELS[panel],
        "panels": "".join(links),
        "panel": panel,
        "styles": f'<link rel="stylesheet" href="assets/{STYLES[panel]}">' if panel in STYLES else "",
        "body": (folder / f"{panel}.html").read_text(encoding="utf-8"),
    }
    frame = (folder / "frame.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda place: known[place[1]], frame).encode()


def _assets() -> Answer:
    """Scripts, styles and pictures by name: a fixed list, so that no name leads anywhere else."""
    folders = [files(package) / "assets" for package in FOLDERS]
    known = {
        path.name: _fixed(path.read_bytes(), KINDS[Path(path.name).suffix])
        for folder in folders
        for path in folder.iterdir()
        if Path(path.name).suffix in KINDS
    }

    def answer(request: Request) -> Response:
        name = request.path_params["name"]
        return known[name](request) if name in known else _trouble(404, f"there is no asset {name!r}")

    return answer


def _fixed(body: bytes, kind: str) -> Answer:
    return lambda request: _answered(request, body, kind)


# --- data ------------------------------------------------------------------------------------------------------------


def _data(records: Records | None, read: Callable[[Records, Request], Any]) -> Answer:
    def answer(request: Request) -> Response:
        if records is None:
            return _trouble(404, NO_RUNS)
        try:
            found = read(records, request)
        except BertsmithError as error:
            return _trouble(404 if isinstance(error, Absent) else 422, records.plain(error))
        body = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _answered(request, body.encode("utf-8", "replace"), "application/json")

    return answer


def _answered(request: Request, body: bytes, kind: str) -> Response:
    """The body, or 304 where the browser has it already."""
    mark = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": mark}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _trouble(status: int, words: str) -> Response:
    body = {"error": words, "error_type": "not_found" if status == 404 else "validation"}
    return Response(json.dumps(body, ensure_ascii=False), status, HEADERS, "application/json")
