"""The schedule of BERT's own code (bert: optimization.py): down from the first step on, replaced while warming up.

So the first update has the rate 0, and the rate jumps down from 1 to 1-warmup where the warm-up ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """progress/warmup, then 1-progress."""

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        return progress / warmup if progress < warmup else 1 - progress
