"""Up, then down with the root of the steps: the Transformer (Vaswani et al. 2017, §5.3).

The paper's d^-0.5 · min(s^-0.5, s · W^-1.5) is this with the highest rate d^-0.5 · W^-0.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bertsmith.errors import ConfigError


@dataclass(frozen=True)
class Config:
    """progress/warmup, then √(warmup/progress)."""

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        if not warmup:
            raise ConfigError("inverse_root falls from where the warm-up ends: set warmup")
        return progress / warmup if progress < warmup else math.sqrt(warmup / progress)
