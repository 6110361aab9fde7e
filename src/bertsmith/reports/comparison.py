"""Several runs side by side: where their recipes part, and what came of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.reports.run_history import TOTAL, History, find_runs, read_run
from bertsmith.reports.run_summary import parts_of, perplexity

ABSENT = None  # stands where a recipe has no such setting


def read_runs(folders: Iterable[str | Path]) -> list[History]:
    """Runs, named so that they can be told apart; a folder of runs stands for all that lie below it."""
    found: dict[Path, Path] = {}
    for folder in folders:
        below = find_runs(folder)
        if not below:
            raise BertsmithError(f"there is no run in {folder} or below it")
        found |= {path.resolve(): path for path in below}
    return told_apart([read_run(path) for path in found.values()])


def told_apart(runs: Sequence[History]) -> list[History]:
    """The same runs; those that share a name are called by more of their path."""
    names = [run.name for run in runs]
    parts = [run.folder.resolve().parts for run in runs]
    depth = 1
    while len(set(names)) < len(names) and depth < max(map(len, parts)):
        depth += 1
        names = [
            "/".join(part[-depth:]) if names.count(name) > 1 else name for name, part in zip(names, parts, strict=True)
        ]
    return [run if run.name == name else replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def dotted(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as one flat dict: `{"encoder": {"layers": 3}}` -> `{"encoder.layers": 3}`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= dotted(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def differences(runs: Sequence[History]) -> dict[str, list[Any]]:
    """Settings by dotted key whose values are not the same in all runs, a value for each run."""
    return {key: values for key, values in _side_by_side(runs).items() if any(value != values[0] for value in values)}


def shared(runs: Sequence[History]) -> dict[str, Any]:
    """Settings by dotted key that all runs have in common."""
    return {
        key: values[0] for key, values in _side_by_side(runs).items() if all(value == values[0] for value in values)
    }


def _side_by_side(runs: Sequence[History]) -> dict[str, list[Any]]:
    flat = [dotted(run.recipe) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one)
    return {key: [one.get(key, ABSENT) for one in flat] for key in keys}


def scores(runs: Sequence[History]) -> list[dict[str, Any]]:
    """One row for each run: how far it came, how fast, and its last held-out numbers; the columns of all are equal."""
    rows = [_row(run) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _row(run: History) -> dict[str, Any]:
    facts = summary(run)
    row = {name: facts[name] for name in ("run", "state", "steps", "tokens", "seconds", "tokens_per_second")}
    several = len(parts_of(run)) != 1
    for name, value in facts["held_out"].items():
        if several or name != TOTAL:
            row[name] = value
        if value is not None and (found := perplexity(name, value)) is not None:
            row[f"perplexity/{name.partition('/')[2]}"] = found
    return row | {"best": facts["best"], "best_step": facts["best_step"]}


def summary(run: History) -> dict[str, Any]:
    """A run as plain JSON, without its curves."""
    return {
        "run": run.name,
        "folder": str(run.folder),
        "recipe": run.recipe_name,
        "state": run.state,
        "steps": run.steps,
        "planned": run.planned,
        "tokens": run.tokens,
        "seconds": run.seconds,
        "wall": run.wall,
        "tokens_per_second": _finite(run.speed),
        "training": {name: _finite(curve.last) for name, curve in run.curves.items()},
        "held_out": {name: _finite(curve.last) for name, curve in run.held_out.items()},
        "best": run.best[1] if run.best else None,
        "best_step": run.best[0] if run.best else None,
        "checkpoint": run.checkpoint,
        "began": run.began,
        "ended": run.ended,
        "notes": list(run.notes),
        "facts": run.facts,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
