"""Results of finished runs as JSON files, each with the key of everything that it depends on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json


def write_result(path: Path, key: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Writes the result of a finished run."""
    Disk().make_folder(path.parent)
    Disk().write_file(path, [checksummed_json({**key, "result": dict(result)})])


def read_result(path: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The result of a run with this key; None if it is missing, damaged or has another key."""
    stored = read_stored(path)
    if stored is None or {name: stored.get(name) for name in key} != plain(key):
        return None
    result: dict[str, Any] = stored["result"]
    return result


def read_stored(path: Path) -> dict[str, Any] | None:
    """The key and the `result`; None if the file is missing or damaged."""
    try:
        return read_checksummed_json(path)
    except DataError:
        return None


def plain(value: Any) -> Any:
    """A value as it is read back from JSON."""
    return json.loads(json.dumps(value))
