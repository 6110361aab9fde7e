"""Up, level, and down only at the end (Zhai et al. 2022; ModernBERT): a run can be prolonged from before the fall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertsmith.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config:
    """progress/warmup, then 1, then down to `floor` during the last `decay` of the run."""

    decay: float = 0.1  # share of the run
    shape: Literal["linear", "root"] = "linear"  # root: 1 - the root of the share of the fall (ModernBERT)
    floor: float = 0.0  # what is left of the rate at the end

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1 or not 0 <= self.floor <= 1:
            raise ConfigError(f"decay={self.decay} must be over 0 and up to 1, floor={self.floor} from 0 to 1")

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        rising = progress / warmup if progress < warmup else 1.0
        fallen = max(0.0, (progress - (1 - self.decay)) / self.decay)
        falling = 1 - (fallen if self.shape == "linear" else fallen**0.5)
        return min(rising, self.floor + (1 - self.floor) * falling)
