"""The way down times the way up: ELECTRA (electra: model/optimization.py) and GPT-1's fine-tuning (gpt1: opt.py)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """(1-progress) · min(1, progress/warmup)."""

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        return (1 - progress) * (progress / warmup if progress < warmup else 1)
