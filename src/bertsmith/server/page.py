"""The web page: its panels and assets, and the runs and evaluations that two of the panels show.

Panels and assets contain no data of a model, run or user, and need no API key. Pages load nothing from other hosts: a
content security policy enforces it. Runs and evaluations are found by name, never by a path of the request.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from bertsmith.errors import BertsmithError
from bertsmith.evaluation.output_files import NUMBERS, read_cases, read_numbers
from bertsmith.evaluation.page import page_main
from bertsmith.reports.report_page import page_data, page_parts
from bertsmith.reports.run_history import CHECKPOINTS, EVENTS, RunHistory, RunReader, find_runs, is_locked
from bertsmith.reports.run_summary import summary

PANELS = {
    "playground": "Playground",
    "attention": "Attention",
    "contexts": "Words in context",
    "tokenizer": "Tokenizer",
    "training": "Training",
    "evaluation": "Evaluation",
}
PUBLIC = ("/", *(f"/{name}" for name in PANELS), "/assets/{name}")  # need no API key: pages and assets, never data
PANEL_STYLES = {"training": "report.css", "evaluation": "evaluation.css"}
ASSET_PACKAGES = ("bertsmith.server", "bertsmith.reports", "bertsmith.evaluation")
MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
NO_RUNS = "this server shows no runs: start it with --runs FOLDER"
MAX_DEPTH = 6  # of folders that are searched for evaluations
MAX_READERS = 16  # whose logs are kept in memory, so that an update reads only new lines
MAX_RUNS = 10  # in one chart
RUN_KEYS = ("recipe", "state", "steps", "planned_steps", "tokens", "seconds", "best", "best_step", "started", "updated")

Endpoint = Callable[[Request], Response]
Summaries = dict[str, tuple[object, dict[str, Any]]]  # state of the files and summary, by name


def routes(*, runs: Path | None) -> list[Route]:
    """The routes of the page; `runs` is the folder that is searched for runs and evaluations."""
    records = Records(runs) if runs is not None else None
    pages = [Route("/", lambda request: RedirectResponse("playground", 307, HEADERS), methods=["GET"])]
    pages += [Route(f"/{name}", _panel(name), methods=["GET"], name=name) for name in PANELS]
    pages.append(Route("/assets/{name}", _assets(), methods=["GET"]))
    data: dict[str, Callable[[Records, Request], Any]] = {
        "/runs": lambda records, request: records.runs(),
        "/runs/{name:path}/history": lambda records, request: records.history(
            [request.path_params["name"], *request.query_params.getlist("with")]
        ),
        "/evaluations": lambda records, request: records.evaluations(),
        "/evaluations/{name:path}": lambda records, request: records.evaluation(request.path_params["name"]),
    }
    return pages + [Route(path, _data(records, read), methods=["GET"]) for path, read in data.items()]


def _panel(panel: str) -> Endpoint:
    body = (files("bertsmith.server") / "assets" / f"{panel}.html").read_text(encoding="utf-8")
    markup = render(panel, PANELS[panel], body).encode()
    return lambda request: with_etag(request, markup, "text/html")


def render(name: str, title: str, body: str) -> str:
    """A page with the header of all panels, and the script of that name."""
    links = (
        f'<a href="{panel}"{" aria-current=page" if panel == name else ""}>{escape(label)}</a>'
        for panel, label in PANELS.items()
    )
    values = {
        "title": title,
        "panels": "".join(links),
        "panel": name,
        "styles": f'<link rel="stylesheet" href="assets/{PANEL_STYLES[name]}">' if name in PANEL_STYLES else "",
        "body": body,
    }
    template = (files("bertsmith.server") / "assets" / "page.html").read_text(encoding="utf-8")
    return re.sub(r"<!--(\w+)-->", lambda match: values[match[1]], template)


def _assets() -> Endpoint:
    """Scripts, styles and images by name: a fixed list, so that no name leads to another file."""
    assets = {
        path.name: (path.read_bytes(), MEDIA_TYPES[Path(path.name).suffix])
        for package in ASSET_PACKAGES
        for path in (files(package) / "assets").iterdir()
        if Path(path.name).suffix in MEDIA_TYPES
    }

    def respond(request: Request) -> Response:
        name = request.path_params["name"]
        return with_etag(request, *assets[name]) if name in assets else _error(404, f"asset {name!r} does not exist")

    return respond


def _data(records: Records | None, read: Callable[[Records, Request], Any]) -> Endpoint:
    def respond(request: Request) -> Response:
        if records is None:
            return _error(404, NO_RUNS)
        try:
            value = read(records, request)
        except BertsmithError as error:
            return _error(404 if isinstance(error, RecordNotFound) else 422, records.message(error))
        body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return with_etag(request, body.encode("utf-8", "replace"), "application/json")

    return respond


def with_etag(request: Request, body: bytes, media_type: str) -> Response:
    """The body, or 304 if the browser has it already."""
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = HEADERS | {"ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def _error(status: int, message: str) -> Response:
    body = {"error": message, "error_type": "not_found" if status == 404 else "validation"}
    return Response(json.dumps(body, ensure_ascii=False), status, HEADERS, "application/json")


class RecordNotFound(BertsmithError):
    """No run or evaluation has that name."""


class Records:
    """The runs and evaluations in a folder. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BertsmithError(f"folder {folder} does not exist")
        self.folder = folder
        self._lock = threading.Lock()
        self._readers: dict[str, RunReader] = {}  # the most recently used last
        self._runs: Summaries = {}
        self._evaluations: Summaries = {}

    def runs(self) -> list[dict[str, Any]]:
        """A summary or an error for each run, running ones first, then by time."""
        with self._lock:
            summaries = self._summarize(self._run_folders(), self._summarize_run, self._runs)
        return sorted(summaries, key=lambda run: (run.get("state") != "running", -(run.get("updated") or 0.0)))

    def history(self, names: Sequence[str]) -> dict[str, Any]:
        """The report of these runs: `runs` with their states, `data` for the charts, `parts` as HTML."""
        names = list(dict.fromkeys(names))
        if len(names) > MAX_RUNS:
            raise BertsmithError(f"{len(names)} runs in one chart: choose at most {MAX_RUNS}")
        with self._lock:
            folders = self._run_folders()
            read = [self._read_run(name, _lookup(folders, name, "run")) for name in names]
        states = [{"name": run.name, "state": run.state} for run in read]
        return {"runs": states, "data": page_data(read), "parts": page_parts(read)}

    def evaluations(self) -> list[dict[str, Any]]:
        """A summary or an error for each evaluation, the newest first."""
        with self._lock:
            summaries = self._summarize(self._evaluation_folders(), _summarize_evaluation, self._evaluations)
        return sorted(summaries, key=lambda one: -one.get("written", 0.0))

    def evaluation(self, name: str) -> dict[str, Any]:
        """The page of one evaluation: `main` as HTML, `data` for its table of cases."""
        folder = _lookup(self._evaluation_folders(), name, "evaluation")
        numbers, data = read_numbers(folder), read_cases(folder)
        return {"name": name, "main": page_main(numbers, data), "data": data}

    def message(self, error: BertsmithError) -> str:
        """The message of an error, without the location of the folder on this machine."""
        return str(error).replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), "the folder of runs")

    def _run_folders(self) -> dict[str, Path]:
        return {self._name(path): path for path in find_runs(self.folder)}

    def _evaluation_folders(self) -> dict[str, Path]:
        return {self._name(path): path for path in _walk(self.folder) if (path / NUMBERS).is_file()}

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else self.folder.resolve().name

    def _read_run(self, name: str, folder: Path) -> RunHistory:
        reader = self._readers.pop(name, None) or RunReader(folder)
        run = replace(reader.read(), name=name)  # if the log became shorter, this fails and the next call starts anew
        self._readers[name] = reader
        if len(self._readers) > MAX_READERS:
            del self._readers[next(iter(self._readers))]
        return run

    def _summarize(
        self, folders: dict[str, Path], summarize: Callable[[str, Path], dict[str, Any]], cache: Summaries
    ) -> list[dict[str, Any]]:
        """A summary of each folder, computed again when its files have changed, or its error."""
        known, failed = dict(cache), []
        cache.clear()
        for name, folder in folders.items():
            state = (_file_state(folder / EVENTS), _file_state(folder / NUMBERS), is_locked(folder))
            cached = known.get(name)
            try:
                if cached is None or cached[0] != state:
                    cached = (state, {"name": name, **summarize(name, folder)})
                cache[name] = cached
            except BertsmithError as error:
                failed.append({"name": name, "error": self.message(error)})
        return [*(one for _, one in cache.values()), *failed]

    def _summarize_run(self, name: str, folder: Path) -> dict[str, Any]:
        fields = summary(self._read_run(name, folder))
        return {name: fields[name] for name in RUN_KEYS}


def _lookup(folders: dict[str, Path], name: str, kind: str) -> Path:
    if name not in folders:
        raise RecordNotFound(f"there is no {kind} {name!r}")
    return folders[name]


def _summarize_evaluation(name: str, folder: Path) -> dict[str, Any]:
    numbers = read_numbers(folder)
    score = numbers.scores.get(numbers.main_metric, math.nan)
    return {
        "task": numbers.task,
        "split": numbers.split,
        "main": numbers.main_metric.replace("_", " "),
        "score": score if math.isfinite(score) else None,
        "examples": numbers.examples,
        "written": (folder / NUMBERS).stat().st_mtime,
    }


def _file_state(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _walk(folder: Path) -> Iterator[Path]:
    """The folder and its readable subfolders, without links, hidden folders and checkpoints."""
    for path, below, _ in os.walk(folder):
        yield Path(path)
        deepest = len(Path(path).relative_to(folder).parts) == MAX_DEPTH
        below[:] = [] if deepest else sorted(name for name in below if name[0] != "." and name != CHECKPOINTS)
