"""The event log of a run, one JSON object per line, appended at once: a kill loses at most the line being written.

Numbers that are not finite are written as strings ("nan", "inf"), which `float` reads: JSON has no literal for them.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from bertsmith.errors import StorageError
from bertsmith.reports.event_log import parse_event

NAME = "events.jsonl"


class EventLog(AbstractContextManager["EventLog"]):
    """`with EventLog(run / NAME) as log: log.write("step", **step.metrics())`; one writer at a time."""

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._clock = clock
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o666)
            self.removed_bytes = self._remove_torn_line()
        except OSError as error:
            raise StorageError(f"{error.strerror}: opening {self.path}") from error

    def _remove_torn_line(self) -> int:
        """Removes the incomplete last line of a killed writer; returns its bytes."""
        size = end = os.fstat(self._file).st_size
        while end:
            begin = max(0, end - (1 << 16))
            newline = os.pread(self._file, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        os.ftruncate(self._file, end)
        return size - end

    def write(self, kind: str, **facts: Any) -> None:
        event = {"kind": kind, "time": round(self._clock(), 3), **facts}
        line = json.dumps(to_json(event), allow_nan=False) + "\n"
        rest, begin = memoryview(line.encode()), os.fstat(self._file).st_size
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with suppress(OSError):  # or the next event would be appended to this line
                os.ftruncate(self._file, begin)
            raise StorageError(f"{error.strerror}: writing {self.path} wanted {len(line):,} bytes") from error

    def sync(self) -> None:
        """Returns once all events are durable; called with every checkpoint."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise StorageError(f"{error.strerror}: syncing {self.path}") from error

    def close(self) -> None:
        os.close(self._file)

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_events(path: str | Path) -> list[dict[str, Any]]:
    """All events in order, without damaged lines; a resumed run has logged steps after its checkpoint twice."""
    path = Path(path)
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # the rest after the last newline is torn
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    events = []
    for line in lines:
        with suppress(ValueError):
            events.append(parse_event(line))
    return events


def last_of_each_step(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The events of one kind by step, as if the run had never been interrupted."""
    by_step = {event["step"]: event for event in events if event["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def to_json(value: Any) -> Any:
    """The value with numbers that are not finite as strings."""
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
