"""How fast each part learns at each moment, and how many rows a step takes: pure functions, no state, no model.

The rate of a part is schedule(progress) × depth_decay^(parts above it) × whether it is awake.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.training.schedules import linear, schedule


@dataclass(frozen=True, kw_only=True)
class Thaw:
    """From `after` on, only the top `parts` parts learn. `after`: below 1 a share of the run, else steps."""

    after: float  # below 1 a share of the run, else steps
    parts: int  # that learn, counted from the top


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rates of a run. `progress` is the share of it that is gone: of its steps, or of its minutes if it has any."""

    steps: int  # optimiser steps of the whole run
    rate: float  # the highest
    schedule: Annotated[Any, Registry(schedule.FOLDER)] = field(default_factory=linear.Config)  # how the rate goes
    warmup: float = 0.0  # below 1 a share of the run, else steps
    minutes: float = 0.0  # where given, the clock drives the run instead of the steps
    depth_decay: float = 1.0  # of the rate, for each part that is further down
    thaw: tuple[Thaw, ...] = ()  # all parts learn all the time where empty

    def __post_init__(self) -> None:
        if self.steps < 1 or self.minutes < 0:
            raise ConfigError(f"steps={self.steps} must be at least 1 and minutes={self.minutes} not under 0")
        if self.rate < 0 or not 0 < self.depth_decay <= 1:
            raise ConfigError(
                f"rate={self.rate} must not be under 0, depth_decay={self.depth_decay} over 0 and up to 1"
            )
        if not 0 <= self.share(self.warmup) < 1:
            raise ConfigError(f"warmup={self.warmup:g} must be less than the run of steps={self.steps}")
        moments = [self.share(thaw.after) for thaw in self.thaw]
        if moments and (moments[0] != 0 or moments != sorted(set(moments))):
            raise ConfigError("thaw must begin with after=0, and each entry come after the one before it")
        if any(thaw.parts < 1 for thaw in self.thaw):
            raise ConfigError("thaw: at least parts=1 must learn")
        self.factor(0.5)

    def share(self, moment: float) -> float:
        """A moment given as a share of the run or in steps, as a share; a share of steps is cut to whole ones."""
        if moment < 1 and self.minutes:
            return moment
        return (int(self.steps * moment) if moment < 1 else moment) / self.steps

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is gone after so many steps and seconds, from 0 to 1."""
        return min(1.0, seconds / (60 * self.minutes) if self.minutes else step / self.steps)

    def factor(self, progress: float) -> float:
        """What the schedule makes of the highest rate."""
        found: float = self.schedule.factor(progress, self.share(self.warmup))
        return found

    def rates(self, progress: float, *, parts: int) -> list[float | None]:
        """The rate of each part, bottom first; None where it is asleep."""
        top = self.rate * self.factor(progress)
        awake = self.awake(progress, parts=parts)
        return [
            top * self.depth_decay ** (parts - 1 - depth) if depth >= parts - awake else None for depth in range(parts)
        ]

    def awake(self, progress: float, *, parts: int) -> int:
        """How many parts learn, counted from the top."""
        begun = [thaw.parts for thaw in self.thaw if self.share(thaw.after) <= progress]
        return min(parts, begun[-1]) if begun else parts


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many rows each step takes: `full`, or from `first` to it in even steps of `multiple` during `warmup` steps.

    `multiple` is the rows of one micro-batch on all ranks together, or a multiple of that.
    """

    full: int = 256  # rows of a step, on all ranks together
    first: int = 0  # `full` where 0
    warmup: int = 0  # steps until a step has all its rows
    multiple: int = 1  # rows by which a step grows

    def __post_init__(self) -> None:
        if self.multiple < 1 or self.full < 1 or self.full % self.multiple or self.first % self.multiple:
            raise ConfigError(f"full={self.full} and first={self.first} rows must be multiples of {self.multiple}")
        if not 0 <= self.first <= self.full or self.warmup < 0 or bool(self.first) != bool(self.warmup):
            raise ConfigError(
                f"first={self.first} rows must be from 1 to full={self.full}, and go with warmup={self.warmup} steps"
            )

    def at(self, step: int) -> int:
        """The rows of a step, the first step being 0."""
        if step >= self.warmup:
            return self.full
        return self.first + (self.full - self.first) * step // self.warmup // self.multiple * self.multiple

    def before(self, step: int) -> int:
        """The rows of all steps before one."""
        growing = min(step, self.warmup)
        return self._sums[growing] + (step - growing) * self.full

    def micro_batches(self, step: int, rows: int) -> range:
        """Which micro-batches of so many rows, counted from the beginning of the run, make up a step."""
        if (self.multiple if self.warmup else self.full) % rows:
            raise ConfigError(
                f"micro-batches of {rows} rows on all ranks do not divide steps of {self.full} rows evenly"
            )
        return range(self.before(step) // rows, self.before(step + 1) // rows)

    @cached_property
    def _sums(self) -> list[int]:
        return list(accumulate((self.at(step) for step in range(self.warmup)), initial=0))
