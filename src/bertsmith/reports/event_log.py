"""The event log of a run (events.jsonl), read as columns.

A million steps are read in seconds, and a second call reads only what was appended since the first. A resumed run logs
the steps after its checkpoint again: each step counts once, and abandoned steps do not count.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import DataError, StorageError

STEP_PREFIX = b'{"kind": "step"'
STRING_VALUE = b': "'
CHUNK = 1 << 24  # bytes per read
MIN_COLUMNAR_LINES = 64  # below this pyarrow is not worth its start-up
STEP_KINDS, MAX_STEP = ("step", "evaluation", "checkpoint", "start"), 1 << 53  # larger integers are not exact
NOT_COLUMNS = ("kind", "line")
NOT_CURVES = ("line", "kind", "time", "step", "skipped")

Column = NDArray[np.float64]
Event = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One metric over the steps of a run; nan where it was not logged or not finite."""

    steps: NDArray[np.int64]
    values: Column

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        """The last value; nan if the curve is empty."""
        return float(self.values[-1]) if len(self.values) else float("nan")

    def at(self, step: int) -> float:
        """The value after a step; nan without one."""
        found = self.values[self.steps == step]
        return float(found[-1]) if len(found) else float("nan")


class EventReader:
    """Reads an event log incrementally: every call of `read` continues where the previous one ended.

    An unterminated last line is left for the next call: its writer has not finished it, or was killed. Damaged lines
    are skipped.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.other_events: list[Event] = []  # every event except steps, with its line number under "line"
        self.skipped: list[str] = []  # one message for each damaged line
        self._blocks: list[dict[str, Column]] = []
        self._offset = self._lines = 0

    def read(self) -> None:
        """Reads what was appended since the last call."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    raise DataError(f"{self.path} became shorter while it was being read: read it again")
                file.seek(self._offset)
                while data := file.read(CHUNK) + file.readline():
                    complete = data.rfind(b"\n") + 1
                    if not complete:
                        break
                    self._parse(data[: complete - 1].split(b"\n"))
                    self._offset += complete
                    file.seek(self._offset)
        except FileNotFoundError:
            pass  # the run has not logged anything yet
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading {self.path}") from error

    def steps(self) -> dict[str, Column]:
        """All step events in log order, by key, with their line numbers under "line"; nan where a key is missing."""
        names = dict.fromkeys(name for block in self._blocks for name in block)
        columns = {}
        for name in names:
            chunks = [block.get(name, np.full(len(block["line"]), np.nan)) for block in self._blocks]
            columns[name] = np.concatenate(chunks)
        self._blocks = [columns] if columns else []
        return columns

    def time_span(self) -> tuple[float, float] | tuple[None, None]:
        """Unix times of the first and the last event; None for an empty log."""
        times = np.array([as_number(event.get("time")) for event in self.other_events])
        times = np.concatenate([times, self.steps().get("time", times[:0])])
        times = times[np.isfinite(times)]
        return (float(times.min()), float(times.max())) if len(times) else (None, None)

    def _parse(self, lines: list[bytes]) -> None:
        first = self._lines + 1
        numeric = [
            index
            for index, line in enumerate(lines)
            if line.startswith(STEP_PREFIX) and line.find(STRING_VALUE, len(STEP_PREFIX)) < 0
        ]
        block = _parse_columns([lines[index] for index in numeric]) if len(numeric) >= MIN_COLUMNAR_LINES else None
        rest: Iterable[int] = range(len(lines))
        if block is not None:
            rest = np.setdiff1d(np.arange(len(lines)), numeric, assume_unique=True).tolist()
            self._blocks.append(block | {"line": np.array(numeric, dtype=np.float64) + first})
        steps: list[Event] = []
        for index in rest:
            try:
                event = parse_event(lines[index]) | {"line": index + first}
            except ValueError as error:
                self.skipped.append(f"{self.path.name}:{index + first} is not an event and was skipped: {error}")
                continue
            (steps if event["kind"] == "step" else self.other_events).append(event)
        if steps:
            names = dict.fromkeys(name for event in steps for name in event if name != "kind")
            self._blocks.append({name: np.array([as_number(event.get(name)) for event in steps]) for name in names})
        self._lines += len(lines)


def parse_event(line: bytes) -> Event:
    """The event of a line; a ValueError that says what is wrong with it."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(event, dict) or "kind" not in event:
        raise ValueError('it has no "kind"')
    step = event.get("step")
    if event["kind"] in STEP_KINDS and not (isinstance(step, int) and 0 <= step < MAX_STEP):
        raise ValueError(f'this {event["kind"]} has no "step"')
    return event


def _parse_columns(lines: list[bytes]) -> dict[str, Column] | None:
    """Columns of step lines that contain only numbers; None if pyarrow finds anything else."""
    import pyarrow as arrow
    from pyarrow import json as arrow_json

    try:
        table = arrow_json.read_json(BytesIO(b"\n".join(lines)))
    except arrow.ArrowInvalid:
        return None
    types = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean)
    names = [name for name in table.column_names if name not in NOT_COLUMNS]
    numeric = all(any(matches(table[name].type) for matches in types) for name in names)
    numbered = "step" in names and arrow.types.is_integer(table["step"].type) and not table["step"].null_count
    if not numeric or not numbered or len(table) != len(lines):
        return None
    return {name: np.asarray(table[name].cast("float64").to_numpy(), dtype=np.float64) for name in names}


def as_number(value: Any) -> float:
    """A number of an event, nan for anything else. The log writes numbers that are not finite as strings."""
    try:
        return float(value) if isinstance(value, bool | int | float) or value in ("inf", "-inf") else float("nan")
    except OverflowError:
        return float("nan")


class Restarts:
    """The starts of a run, by which events of abandoned steps are recognised."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.starts = [event for event in events if event["kind"] == "start"]
        self._lines = [start["line"] for start in self.starts]
        later = accumulate(reversed([start["step"] for start in self.starts]), min)
        # by start: the lowest step that this start or a later one resumed from
        self._resumed_from = [*reversed(list(later)), float("inf")]

    def steps(self, steps: Mapping[str, Column]) -> dict[str, Column]:
        """The step events that count, by step."""
        if not steps:
            return {}
        numbers, lines = steps["step"], steps["line"]
        limit = np.array(self._resumed_from)[np.searchsorted(self._lines, lines, side="right")]
        kept = np.flatnonzero(numbers <= limit)
        if (np.diff(numbers[kept]) <= 0).any():
            kept = kept[np.lexsort((lines[kept], numbers[kept]))]
            kept = kept[np.append(np.diff(numbers[kept]) > 0, True)]  # the last event of each step
        return {name: values[kept] for name, values in steps.items()}

    def events(self, events: Iterable[Event], kind: str) -> list[Event]:
        """The events of another kind that count, by step."""
        by_step = {}
        for event in events:
            if event["kind"] == kind and event["step"] <= self._resumed_from[bisect_right(self._lines, event["line"])]:
                by_step[event["step"]] = event
        return [by_step[step] for step in sorted(by_step)]


def held_out_curves(evaluations: Sequence[Event]) -> dict[str, Curve]:
    """Every metric of the evaluations, by name."""
    names = dict.fromkeys(name for event in evaluations for name in event if name not in NOT_CURVES)
    steps = np.array([event["step"] for event in evaluations], dtype=np.int64)
    columns = {name: np.array([as_number(event.get(name)) for event in evaluations]) for name in names}
    return {name: Curve(steps, values) for name, values in columns.items() if not np.isnan(values).all()}
