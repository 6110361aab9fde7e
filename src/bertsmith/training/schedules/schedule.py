"""What every schedule is: a factor of the rate, by the share of the run that is gone.

By shares, not by steps, so that minutes can drive a run as well as steps.
"""

from __future__ import annotations

from typing import Protocol

FOLDER = "bertsmith.training.schedules"


class Schedule(Protocol):
    """A schedule's `Config`, which is so small that it is the schedule itself."""

    def factor(self, progress: float, warmup: float) -> float:
        """What the highest rate is multiplied with; both are shares of the run, from 0 to 1."""
