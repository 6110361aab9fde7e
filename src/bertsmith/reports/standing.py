"""What counts of an event log: steps that a resumed run took again count once, abandoned ones not at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.reports.event_log import Column, EventReader, as_number

NO_CURVE = ("line", "kind", "time", "step", "skipped")
NEVER = float("inf")


@dataclass(frozen=True)
class Curve:
    """One number over the steps of a run; nan where it was not finite or not logged."""

    steps: NDArray[np.int64]
    values: Column

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def last(self) -> float:
        """The last value; nan where there is none."""
        return float(self.values[-1]) if len(self.values) else float("nan")


class Restarts:
    """The starts of a run, by which events of abandoned steps are told from those that stand."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.starts = [event for event in events if event["kind"] == "start"]
        self._lines = [start["line"] for start in self.starts]
        later = accumulate(reversed([start["step"] for start in self.starts]), min)
        self._back_to = [*reversed(list(later)), NEVER]  # to which step the run went back at this start or a later one

    def steps(self, steps: Mapping[str, Column]) -> dict[str, Column]:
        """Step events that stand, in order."""
        if not steps:
            return {}
        numbers, lines = steps["step"], steps["line"]
        back_to = np.array(self._back_to)[np.searchsorted(self._lines, lines, side="right")]
        kept = np.flatnonzero(numbers <= back_to)
        if (np.diff(numbers[kept]) <= 0).any():
            kept = kept[np.lexsort((lines[kept], numbers[kept]))]
            kept = kept[np.append(np.diff(numbers[kept]) > 0, True)]  # the last of each step
        return {name: values[kept] for name, values in steps.items()}

    def others(self, events: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
        """Events of another kind that stand, by step."""
        found = {}
        for event in events:
            if event["kind"] == kind and event["step"] <= self._back_to[bisect_right(self._lines, event["line"])]:
                found[event["step"]] = event
        return [found[step] for step in sorted(found)]


def held_out_curves(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every number of the evaluations, by its name."""
    names = dict.fromkeys(name for event in evaluations for name in event if name not in NO_CURVE)
    steps = np.array([event["step"] for event in evaluations], dtype=np.int64)
    found = {name: np.array([as_number(event.get(name)) for event in evaluations]) for name in names}
    return {name: Curve(steps, values) for name, values in found.items() if not np.isnan(values).all()}


def speeds(steps: Mapping[str, Column]) -> Column | None:
    """Tokens a second, by step."""
    if "tokens" not in steps or "seconds" not in steps:
        return None
    seconds = np.where(steps["seconds"] > 0, steps["seconds"], np.nan)
    return np.asarray(steps["tokens"] / seconds, dtype=np.float64)


def times(reader: EventReader) -> list[tuple[float, int]]:
    """Moments with their lines: of every event that is no step, and of the steps beside them."""
    found = [(as_number(event.get("time")), event["line"]) for event in reader.others]
    raw = reader.steps()
    if "time" in raw and len(raw["time"]):
        lines = raw["line"]
        order = np.argsort(lines, kind="stable") if (np.diff(lines) < 0).any() else np.arange(len(lines))
        cuts = np.searchsorted(lines[order], [line for _, line in found])
        places = sorted({0, len(lines) - 1, *(max(int(cut) - 1, 0) for cut in cuts)})
        found += [(float(raw["time"][order[place]]), int(lines[order[place]])) for place in places]
    return sorted(((time, line) for time, line in found if np.isfinite(time)), key=lambda pair: pair[1])


def wall(times: Sequence[tuple[float, int]], starts: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the first moment to the last one, without the time between restarts."""
    begins = {start["line"] for start in starts}
    gone = 0.0
    for (before, _), (after, line) in pairwise(times):
        gone += 0.0 if line in begins else max(after - before, 0.0)
    return gone
