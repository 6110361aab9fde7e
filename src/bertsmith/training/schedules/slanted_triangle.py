"""A short way up and a long one down, never to 0: ULMFiT's STLR (P-ULMFiT §3.2). The warm-up is the paper's cut."""

from __future__ import annotations

from dataclasses import dataclass

from bertsmith.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Config:
    """(1 + (ratio-1) · p) / ratio, where p goes from 0 to 1 and back to 0."""

    ratio: float = 32.0  # of the highest rate to the lowest

    def __post_init__(self) -> None:
        if self.ratio < 1:
            raise ConfigError(f"ratio={self.ratio} must be at least 1")

    def factor(self, progress: float, warmup: float) -> float:
        """See `Schedule.factor`."""
        # differs from the paper: where the cut is no whole number of steps, its p ends a little below 0; ours at 0
        height = progress / warmup if progress < warmup else (1 - progress) / (1 - warmup)
        return (1 + (self.ratio - 1) * height) / self.ratio
