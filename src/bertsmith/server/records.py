"""Runs and evaluations beneath one folder, read for the page: found by name, never by a path that somebody sends."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.evaluation.output_files import NUMBERS, read_cases, read_numbers
from bertsmith.evaluation.page import page_main
from bertsmith.reports.report_page import page_data, page_parts
from bertsmith.reports.run_history import CHECKPOINTS, EVENTS, RunHistory, RunReader, find_runs, is_locked
from bertsmith.reports.run_summary import summary

DEPTH = 6  # folders below the given one in which evaluations are looked for
MOST_READERS = 16  # logs that are kept in memory, so that reading on costs only what is new
MOST_TOGETHER = 10  # runs in one picture
TOLD = ("recipe", "state", "steps", "planned_steps", "tokens", "seconds", "best", "best_step", "started", "updated")


class Absent(BertsmithError):
    """Nothing has that name."""


class Records:
    """What lies beneath a folder. Threads may share one."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BertsmithError(f"no such folder: {folder}")
        self.folder = folder
        self._lock = threading.Lock()
        self._readers: OrderedDict[str, RunReader] = OrderedDict()
        self._runs, self._evaluations = _Told(), _Told()

    def runs(self) -> list[dict[str, Any]]:
        """Every run in a few words, those under way first, then the newest; one that cannot be read says why."""
        with self._lock:
            found = self._runs.all(self._run_folders(), self._run, self.plain)
        return sorted(found, key=lambda run: (run.get("state") != "running", -(run.get("updated") or 0.0)))

    def history(self, names: Sequence[str]) -> dict[str, Any]:
        """What a report about these runs shows: `runs` with their states, `data` for the charts, `parts` as markup."""
        names = list(dict.fromkeys(names))
        if len(names) > MOST_TOGETHER:
            raise BertsmithError(f"{len(names)} runs in one picture: at most {MOST_TOGETHER}")
        with self._lock:
            folders = self._run_folders()
            read = [self._read(name, _named(folders, name, "run")) for name in names]
        shown = [{"name": run.name, "state": run.state} for run in read]
        return {"runs": shown, "data": page_data(read), "parts": page_parts(read)}

    def evaluations(self) -> list[dict[str, Any]]:
        """Every evaluation in a few words, the newest first; one that cannot be read says why."""
        with self._lock:
            found = self._evaluations.all(self._evaluation_folders(), _evaluation, self.plain)
        return sorted(found, key=lambda one: -one.get("written", 0.0))

    def evaluation(self, name: str) -> dict[str, Any]:
        """What the page about one evaluation shows: `main` as markup, `data` for its table of cases."""
        folder = _named(self._evaluation_folders(), name, "evaluation")
        numbers, data = read_numbers(folder), read_cases(folder)
        return {"name": name, "main": page_main(numbers, data), "data": data}

    def plain(self, error: BertsmithError) -> str:
        """An error in words, without where on this machine the folder lies."""
        return str(error).replace(f"{self.folder}{os.sep}", "").replace(str(self.folder), "the folder of runs")

    def _run_folders(self) -> dict[str, Path]:
        return {self._name(path): path for path in find_runs(self.folder)}

    def _evaluation_folders(self) -> dict[str, Path]:
        return {self._name(path): path for path in _beneath(self.folder, DEPTH) if (path / NUMBERS).is_file()}

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix() if path != self.folder else self.folder.resolve().name

    def _read(self, name: str, folder: Path) -> RunHistory:
        reader = self._readers.pop(name, None) or RunReader(folder)
        run = replace(reader.read(), name=name)  # a log that became shorter is an error, and read afresh next time
        self._readers[name] = reader
        while len(self._readers) > MOST_READERS:
            self._readers.popitem(last=False)
        return run

    def _run(self, name: str, folder: Path) -> dict[str, Any]:
        found = summary(self._read(name, folder))
        return {fact: found[fact] for fact in TOLD}


class _Told:
    """What is told of each name, told again only where its files have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, dict[str, Any]]] = {}

    def all(
        self,
        folders: dict[str, Path],
        tell: Callable[[str, Path], dict[str, Any]],
        plain: Callable[[BertsmithError], str],
    ) -> list[dict[str, Any]]:
        """A few words on each, by `tell`, or why there are none."""
        known: dict[str, tuple[object, dict[str, Any]]] = {}
        failed = []
        for name, folder in folders.items():
            stamp = (_stamp(folder / EVENTS), _stamp(folder / NUMBERS), is_locked(folder))
            before = self._known.get(name)
            try:
                if before is None or before[0] != stamp:
                    before = (stamp, {"name": name, **tell(name, folder)})
                known[name] = before
            except BertsmithError as error:
                failed.append({"name": name, "error": plain(error)})
        self._known = known
        return [*(facts for _, facts in known.values()), *failed]


def _named(folders: dict[str, Path], name: str, kind: str) -> Path:
    if name not in folders:
        raise Absent(f"there is no {kind} {name!r}")
    return folders[name]


def _evaluation(name: str, folder: Path) -> dict[str, Any]:
    found = read_numbers(folder)
    score = found.scores.get(found.main_metric, math.nan)
    return {
        "task": found.task,
        "split": found.split,
        "main": found.main_metric.replace("_", " "),
        "score": score if math.isfinite(score) else None,
        "examples": found.examples,
        "written": (folder / NUMBERS).stat().st_mtime,
    }


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _beneath(folder: Path, depth: int) -> Iterator[Path]:
    """The folder and those below it; links, hidden ones and checkpoints are left out."""
    yield folder
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name) if depth else []
    except OSError:
        return  # nobody may read it, or it has just gone
    for entry in inside:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".") and entry.name != CHECKPOINTS:
            yield from _beneath(Path(entry.path), depth - 1)
