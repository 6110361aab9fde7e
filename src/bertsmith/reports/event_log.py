"""The events of a run as columns: a million steps in seconds, and only what is new when it is read again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError, StorageError

STEP = b'{"kind": "step"'  # how the log begins a step's line
TEXT = b': "'  # before a value that is no number
CHUNK = 1 << 24  # bytes read at once
FEW = 64  # lines that are not worth the columnar reader
KEEP_OUT = ("kind", "line")

Column = NDArray[np.float64]


class EventReader:
    """Reads an event log from its beginning, and on from there with every further call of `read`.

    A last line without an end is left for later: its writer is at it, or was killed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.others: list[dict[str, Any]] = []  # every event that is no step, with the number of its "line"
        self._blocks: list[dict[str, Column]] = []
        self._offset = self._lines = 0

    def read(self) -> bool:
        """Takes in what has been written since the last call, and says whether that was anything."""
        before = self._offset
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    raise DataError(f"{self.path} has become shorter while it was read: read it again")
                file.seek(self._offset)
                while data := file.read(CHUNK):
                    whole = data.rfind(b"\n") + 1
                    if not whole:
                        data += file.readline()  # a line longer than a chunk
                        whole = data.rfind(b"\n") + 1
                    if not whole:
                        break
                    self._take(data[: whole - 1].split(b"\n"))
                    self._offset += whole
                    file.seek(self._offset)
        except FileNotFoundError:
            pass  # a run that has not come to its first event
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading {self.path}") from error
        return self._offset > before

    def steps(self) -> dict[str, Column]:
        """All step events as written, by name; nan where an event lacks a number, and "line" says where each stood."""
        names = dict.fromkeys(name for block in self._blocks for name in block)
        found = {}
        for name in names:
            parts = [block.get(name, np.full(len(block["line"]), np.nan)) for block in self._blocks]
            found[name] = np.concatenate(parts)
        self._blocks = [found] if found else []
        return found

    def _take(self, lines: list[bytes]) -> None:
        first = self._lines + 1
        plain = [
            number for number, line in enumerate(lines) if line.startswith(STEP) and line.find(TEXT, len(STEP)) < 0
        ]
        block = self._fast([lines[number] for number in plain]) if len(plain) >= FEW else None
        rest: Iterable[int] = range(len(lines))
        if block is not None:
            rest = np.setdiff1d(np.arange(len(lines)), plain, assume_unique=True).tolist()
            self._blocks.append(block | {"line": np.array(plain, dtype=np.float64) + first})
        slow, slow_lines = [], []
        for number in rest:
            event = self._event(lines[number], number + first)
            if event["kind"] == "step":
                slow.append(event)
                slow_lines.append(number + first)
            else:
                self.others.append(event | {"line": number + first})
        if slow:
            names = dict.fromkeys(name for event in slow for name in event if name not in KEEP_OUT)
            columns = {name: np.array([as_number(event.get(name)) for event in slow]) for name in names}
            self._blocks.append(columns | {"line": np.array(slow_lines, dtype=np.float64)})
        self._lines += len(lines)

    def _event(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.path}:{number} is no event: {error}") from error
        if not isinstance(event, dict) or "kind" not in event:
            raise DataError(f"{self.path}:{number} is no event: it has no kind")
        if event["kind"] in ("step", "evaluation", "checkpoint", "start") and not isinstance(event.get("step"), int):
            raise DataError(f"{self.path}:{number} is no event: a {event['kind']} without the number of its step")
        return event

    @staticmethod
    def _fast(lines: list[bytes]) -> dict[str, Column] | None:
        """Columns of step lines that hold nothing but numbers; None for all that needs a closer look."""
        import pyarrow as arrow
        from pyarrow import json as arrow_json

        try:
            table = arrow_json.read_json(BytesIO(b"\n".join(lines)))
        except arrow.ArrowInvalid:
            return None
        kinds = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
        names = [name for name in table.column_names if name not in KEEP_OUT]
        plain = all(any(kind(table[name].type) for kind in kinds) for name in names)
        whole = "step" in names and arrow.types.is_integer(table["step"].type) and not table["step"].null_count
        if not plain or not whole or len(table) != len(lines):
            return None
        return {name: np.asarray(table[name].cast("float64").to_numpy(), dtype=np.float64) for name in names}


def as_number(value: Any) -> float:
    """A number of an event; nan for what is none. The log writes numbers that are not finite as text."""
    if isinstance(value, bool | int | float):
        return float(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return float("nan")
