"""Result files of the benchmark: one result.json per contestant, one file per contestant and task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.system.durable import Disk

RESULT, SCORES, MODEL = "result.json", "scores", "last"


def write(path: Path, contents: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically."""
    Disk().make_folder(path.parent)
    Disk().write_file(path, [(json.dumps(contents, indent=1, ensure_ascii=False) + "\n").encode()])


def read(path: Path) -> dict[str, Any] | None:
    """The contents of a result file, None if it does not exist."""
    if not path.is_file():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def finished(folder: Path, settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> dict[str, Any] | None:
    """The result in a contestant's folder, if any; raises where its settings or data differ."""
    result = read(folder / RESULT)
    if result is not None and config.resume_differences(result["settings"], json.loads(json.dumps(settings))):
        raise ConfigError(f"{folder} holds a result with other settings: choose another name")
    if result is not None and result["fingerprints"] != dict(fingerprints):
        raise ConfigError(f"{folder} holds a result on other data: choose another name")
    return result


def contestants(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Results by name; for duplicates the last folder counts."""
    return {result["name"]: result for result in _all(folders, f"*/{RESULT}")}


def task_scores(folders: Iterable[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """Scores by contestant and task; for duplicates the last folder counts."""
    return {(result["name"], result["task"]): result for result in _all(folders, f"{SCORES}/*/*.json")}


def scores_path(output: Path, name: str, task: str) -> Path:
    """Path of the scores of a contestant on a task."""
    return output / SCORES / name / f"{task.replace('/', '-')}.json"


def _all(folders: Iterable[Path], pattern: str) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for path in sorted(folder.glob(pattern)):
            result = read(path)
            if result is not None:
                yield result
