"""Learning rates that react to evaluations: schedule.kind=reduce_on_plateau. Its state is in the checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bertsmith.training.plan import Schedule


@dataclass
class PlateauState:
    """What the evaluations so far mean for the learning rate; equal on all ranks, as evaluations are."""

    best: float | None = None  # the lowest cost
    waited: int = 0  # evaluations since then, or since the last reduction
    reductions: int = 0


class Plateau:
    """The factor of all learning rates after the evaluations so far."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self._state = schedule, PlateauState()

    @property
    def factor(self) -> float:
        """1 before the first reduction, and for the other kinds of schedules."""
        return max(self.schedule.reduction**self._state.reductions, self.schedule.floor) if self._reacts else 1.0

    @property
    def _reacts(self) -> bool:
        return self.schedule.kind == "reduce_on_plateau"

    def observe(self, cost: float) -> bool:
        """Counts an evaluation, whose cost is better if lower; whether the learning rate was reduced.

        As torch's `ReduceLROnPlateau` without a threshold; with `every`, as OpenNMT (Optim.py): once it was reduced,
        every evaluation reduces it further.
        """
        state, before = self._state, self.factor
        if not self._reacts:
            return False
        if state.best is None or cost < state.best:
            state.best, state.waited = cost if math.isfinite(cost) else state.best, 0
        else:
            state.waited += 1
        if state.waited <= self.schedule.patience and not (self.schedule.every and state.reductions):
            return False
        state.waited = 0
        state.reductions += 1
        return self.factor < before

    def state(self) -> dict[str, Any]:
        """Plain JSON; empty where nothing is to be remembered."""
        return asdict(self._state) if self._reacts else {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restores a `state`."""
        self._state = PlateauState(**state)
