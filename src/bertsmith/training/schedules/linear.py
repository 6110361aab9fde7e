"""Up to the highest rate, then straight down to 0: transformers' `linear`, fairseq's polynomial decay of power 1."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """progress/warmup, then (1-progress)/(1-warmup)."""

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        return progress / warmup if progress < warmup else (1 - progress) / (1 - warmup)
