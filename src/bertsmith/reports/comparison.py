"""Several runs side by side: the differences of their recipes, and their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.reports.run_history import LOSS, RunHistory, find_runs, read_run
from bertsmith.reports.run_summary import objectives_of, perplexity, summary


def read_runs(folders: Iterable[str | Path]) -> list[RunHistory]:
    """The runs in or below these folders, with unique names."""
    paths: dict[Path, Path] = {}
    for folder in folders:
        if not (below := find_runs(folder)):
            raise BertsmithError(f"no run in {folder} or below it")
        paths |= {path.resolve(): path for path in below}
    return with_unique_names([read_run(path) for path in paths.values()])


def with_unique_names(runs: Sequence[RunHistory]) -> list[RunHistory]:
    """The same runs; runs with the same folder name are named by more of their path."""
    names = [run.name for run in runs]
    parts = [run.folder.resolve().parts for run in runs]
    depth = 1
    while len(set(names)) < len(names) and depth < max(map(len, parts)):
        depth += 1
        names = [
            "/".join(part[-depth:]) if names.count(name) > 1 else name for name, part in zip(names, parts, strict=True)
        ]
    return [run if run.name == name else replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one flat dict: `{"encoder": {"layers": 3}}` -> `{"encoder.layers": 3}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def differences(runs: Sequence[RunHistory]) -> dict[str, list[Any]]:
    """Settings that are not equal in all runs: dotted key -> one value per run, None where a run has no such key."""
    return {key: values for key, values in _settings(runs).items() if any(value != values[0] for value in values)}


def shared(runs: Sequence[RunHistory]) -> dict[str, Any]:
    """Settings that are equal in all runs, by dotted key."""
    return {key: values[0] for key, values in _settings(runs).items() if all(value == values[0] for value in values)}


def _settings(runs: Sequence[RunHistory]) -> dict[str, list[Any]]:
    flat = [dotted(run.recipe) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    return {key: [settings.get(key) for settings in flat] for key in keys}


def scores(runs: Sequence[RunHistory]) -> list[dict[str, Any]]:
    """One row per run: progress, throughput and the best model's held-out metrics; all rows have the same columns."""
    rows = [_scores(run) for run in runs]
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


def _scores(run: RunHistory) -> dict[str, Any]:
    facts = summary(run)
    row = {name: facts[name] for name in ("run", "state", "steps", "tokens", "seconds", "tokens_per_second")}
    several = len(objectives_of(run)) != 1
    for name, value in facts["held_out"].items():
        if several or name != LOSS:
            row[name] = value
        if value is not None and (exponential := perplexity(name, value)) is not None:
            row[f"perplexity/{name.partition('/')[2]}"] = exponential
    return row | {"best": facts["best"], "best_step": facts["best_step"]}
