"""What the contest leaves behind: one result.json for each contestant, one file for each of its tasks."""

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
    """A JSON file, whole or not at all."""
    Disk().make_folder(path.parent)
    Disk().write_file(path, [(json.dumps(contents, indent=1, ensure_ascii=False) + "\n").encode()])


def read(path: Path) -> dict[str, Any] | None:
    """What such a file says, if it is there."""
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def finished(folder: Path, settings: Mapping[str, Any], fingerprints: Mapping[str, str]) -> dict[str, Any] | None:
    """The result that lies in a contestant's folder; an error where it came about in another way."""
    found = read(folder / RESULT)
    if found is not None and config.resume_differences(found["settings"], json.loads(json.dumps(settings))):
        raise ConfigError(f"{folder} holds a result with other settings: choose another name")
    if found is not None and found["fingerprints"] != dict(fingerprints):
        raise ConfigError(f"{folder} holds a result on other data: choose another name")
    return found


def contestants(folders: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Results by name; of several of one name the one in the last folder."""
    return {one["name"]: one for one in _all(folders, f"*/{RESULT}")}


def task_scores(folders: Iterable[Path]) -> dict[tuple[str, str], dict[str, Any]]:
    """Scores by contestant and task; of several the one in the last folder."""
    return {(one["name"], one["task"]): one for one in _all(folders, f"{SCORES}/*/*.json")}


def scores_path(output: Path, name: str, task: str) -> Path:
    """Where the scores of a contestant on a task lie."""
    return output / SCORES / name / f"{task.replace('/', '-')}.json"


def _all(folders: Iterable[Path], pattern: str) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for path in sorted(folder.glob(pattern)):
            found = read(path)
            if found is not None:
                yield found
