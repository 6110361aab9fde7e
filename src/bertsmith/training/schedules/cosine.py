"""Up to the highest rate, then down along half a cosine: GPT-1's pre-training (P-GPT1 §4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertsmith.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config:
    """progress/warmup, then from 1 to `floor`."""

    floor: float = 0.0  # what is left of the rate at the end

    def __post_init__(self) -> None:
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"floor={self.floor} must be from 0 to 1")

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        if progress < warmup:
            return progress / warmup
        turned = math.pi * (progress - warmup) / (1 - warmup)
        return self.floor + (1 - self.floor) * (1 + math.cos(turned)) / 2
