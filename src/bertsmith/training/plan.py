"""Schedules, the learning rate of each layer group and the batch size of each step: pure functions of the progress.

learning rate of a group = learning_rate × schedule(progress) × layer_decay^(groups above it), or None while frozen. One
kind of schedule also reacts to evaluations: see `plateau`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from typing import Literal

from bertsmith.errors import ConfigError

ScheduleKind = Literal[
    "linear",
    "bert",
    "product",
    "cosine",
    "constant_then_decay",
    "inverse_root",
    "slanted_triangle",
    "reduce_on_plateau",
]
# The settings of each kind; the others have none.
SCHEDULE_SETTINGS = {
    "cosine": ("floor",),
    "constant_then_decay": ("floor", "decay", "shape"),
    "slanted_triangle": ("ratio",),
    "reduce_on_plateau": ("floor", "reduction", "patience", "every"),
}


@dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate as a function of progress and warm-up, both shares of the run.

    - linear: warm-up, then linear decay to 0; transformers' `linear`, fairseq's polynomial decay of power 1.
    - bert: BERT's own code (bert: optimization.py). It decays from the first step on and replaces the factor during
      warm-up, so that it drops from 1 to 1 - warmup where the warm-up ends.
    - product: decay × warm-up; ELECTRA (electra: model/optimization.py), GPT-1's fine-tuning (gpt1: opt.py).
    - cosine: warm-up, then half a cosine down to `floor`; GPT-1's pre-training (P-GPT1 §4.1).
    - constant_then_decay: warm-up, 1, and decay to `floor` at the end (Zhai et al. 2022; ModernBERT). A run can be
      continued from a checkpoint before the decay.
    - inverse_root: warm-up, then √(warmup/progress); the Transformer (Vaswani et al. 2017, §5.3), whose
      d^-0.5 · min(s^-0.5, s · W^-1.5) has the highest learning rate d^-0.5 · W^-0.5.
    - slanted_triangle: ULMFiT's STLR (P-ULMFiT §3.2), never 0; the warm-up is the paper's cut.
    - reduce_on_plateau: warm-up, then 1, multiplied by `reduction` at each evaluation that is not better than the best
      one, as torch's `ReduceLROnPlateau`; with `every` (CoVe) at all evaluations from the first such one on.
    """

    kind: ScheduleKind = "linear"  # the shape of the curve
    floor: float = 0.0  # cosine, constant_then_decay: the factor at the end; reduce_on_plateau: the lowest factor
    decay: float = 0.1  # constant_then_decay: length of the decay, a share of the run
    shape: Literal["linear", "root"] = "linear"  # constant_then_decay: root is 1 - √ of the share (ModernBERT)
    ratio: float = 32.0  # slanted_triangle: highest learning rate over the lowest
    reduction: float = 0.5  # reduce_on_plateau: what the learning rate is multiplied by
    patience: int = 0  # reduce_on_plateau: evaluations without improvement that are tolerated before each reduction
    every: bool = False  # reduce_on_plateau: once reduced, reduce at every evaluation, better or not

    def __post_init__(self) -> None:
        for item in fields(self)[1:]:
            if getattr(self, item.name) != item.default and item.name not in SCHEDULE_SETTINGS.get(self.kind, ()):
                raise ConfigError(f"schedule.{item.name} does not apply to schedule.kind={self.kind}: leave it out")
        if not 0 < self.decay <= 1 or not 0 <= self.floor <= 1:
            raise ConfigError(
                f"schedule.decay={self.decay:g} must be above 0 and at most 1, floor={self.floor:g} from 0 to 1"
            )
        if self.ratio < 1:
            raise ConfigError(f"schedule.ratio={self.ratio:g} must be at least 1")
        if not 0 < self.reduction < 1 or self.patience < 0:
            found = f"schedule.reduction={self.reduction:g} and schedule.patience={self.patience}"
            raise ConfigError(f"{found}: reduction must be above 0 and below 1, patience at least 0")

    def check_evaluations(self, setting: str, value: int) -> None:
        """Raises where it reacts to evaluations and a setting says that there are none."""
        if self.kind == "reduce_on_plateau" and value == 0:
            raise ConfigError(f"schedule.kind={self.kind} reacts to evaluations, but {setting}=0: write {setting}=1")

    def factor(self, progress: float, warmup: float) -> float:
        rising = progress < warmup
        match self.kind:
            case "linear":
                return progress / warmup if rising else (1 - progress) / (1 - warmup)
            case "bert":
                return progress / warmup if rising else 1 - progress
            case "product":
                return (1 - progress) * (progress / warmup if rising else 1)
            case "cosine":
                angle = math.pi * (progress - warmup) / (1 - warmup)
                return progress / warmup if rising else self.floor + (1 - self.floor) * (1 + math.cos(angle)) / 2
            case "constant_then_decay":
                decayed = max(0.0, (progress - (1 - self.decay)) / self.decay)
                factor = 1 - (decayed if self.shape == "linear" else decayed**0.5)
                return min(progress / warmup if rising else 1.0, self.floor + (1 - self.floor) * factor)
            case "inverse_root":
                if not warmup:
                    raise ConfigError("schedule.kind=inverse_root decays from the end of the warm-up: set warmup=0.1")
                return progress / warmup if rising else math.sqrt(warmup / progress)
            case "slanted_triangle":
                # differs from the paper: where the cut is not a whole number of steps, its p ends a little below 0
                height = progress / warmup if rising else (1 - progress) / (1 - warmup)
                return (1 + (self.ratio - 1) * height) / self.ratio
            case "reduce_on_plateau":
                return progress / warmup if rising else 1.0


@dataclass(frozen=True, kw_only=True)
class Unfreeze:
    """From `after` on, only the top `groups` layer groups are trainable."""

    after: float  # share of the run, below 1
    groups: int  # trainable layer groups, counted from the top


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Learning rates of a run. `progress` is the share of its steps that is done, or of its minutes if set."""

    steps: int
    learning_rate: float
    schedule: Schedule = field(default_factory=Schedule)
    warmup: float = 0.0
    minutes: float = 0.0
    layer_decay: float = 1.0
    unfreeze: tuple[Unfreeze, ...] = ()
    head_learning_rate: float | None = None  # of the top layer group; None: `learning_rate`
    tied_on_top: bool = False  # token tables that are also the output of a head belong to the top layer group

    def __post_init__(self) -> None:
        if self.steps < 1 or self.minutes < 0:
            raise ConfigError(f"steps={self.steps} must be at least 1 and minutes={self.minutes:g} at least 0")
        if self.learning_rate < 0:
            raise ConfigError(f"learning_rate={self.learning_rate:g} must be at least 0")
        if self.head_learning_rate is not None and self.head_learning_rate < 0:
            raise ConfigError(f"head_learning_rate={self.head_learning_rate:g} must be at least 0")
        if not 0 < self.layer_decay <= 1:
            raise ConfigError(f"layer_decay={self.layer_decay:g} must be above 0 and at most 1")
        if not 0 <= self.warmup < 1:
            raise ConfigError(f"warmup={self.warmup:g} must be a share of the run: at least 0 and below 1")
        starts = [entry.after for entry in self.unfreeze]
        if starts and (starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] >= 1):
            raise ConfigError("unfreeze: the first entry must have after=0, the others increasing shares below 1")
        if any(entry.groups < 1 for entry in self.unfreeze):
            raise ConfigError("unfreeze: groups must be at least 1")
        self.factor(0.5)

    def share(self, moment: float) -> float:
        """A share of the run, rounded down to a whole number of steps unless the clock drives the run."""
        return moment if self.minutes else int(self.steps * moment) / self.steps

    def progress(self, step: int, seconds: float) -> float:
        """The share of the run that is done after that many steps and seconds, from 0 to 1."""
        return min(1.0, seconds / (60 * self.minutes) if self.minutes else step / self.steps)

    def factor(self, progress: float) -> float:
        """The schedule's multiplier of `learning_rate`."""
        return self.schedule.factor(progress, self.share(self.warmup))

    def learning_rates(self, progress: float, *, groups: int) -> list[float | None]:
        """The learning rate of each layer group, bottom first; None where it is frozen."""
        factor, trainable = self.factor(progress), self.trainable(progress, groups=groups)
        rates = [self.learning_rate * factor * self.layer_decay ** (groups - 1 - depth) for depth in range(groups)]
        if self.head_learning_rate is not None:
            rates[-1] = self.head_learning_rate * factor
        return [rate if depth >= groups - trainable else None for depth, rate in enumerate(rates)]

    def trainable(self, progress: float, *, groups: int) -> int:
        """The number of trainable layer groups, counted from the top."""
        begun = [entry.groups for entry in self.unfreeze if self.share(entry.after) <= progress]
        return min(groups, begun[-1]) if begun else groups


@dataclass(frozen=True, kw_only=True)
class BatchSizeWarmup:
    """The batch size grows from `initial` to the full batch size in even increments of `multiple` during `steps` steps.

    `multiple` must be a multiple of the rows that all ranks together compute in one forward.
    """

    initial: int  # rows of the first step
    steps: int  # until the full batch size
    multiple: int = 1  # rows of one increment

    def __post_init__(self) -> None:
        if self.initial < 1 or self.steps < 1 or self.multiple < 1:
            raise ConfigError("batch_size_warmup: initial, steps and multiple must be at least 1")


def micro_batch_advice(batch_size: int, micro_batch_size: int, ranks: int) -> str:
    """The largest micro-batch that divides steps evenly, as advice at the end of an error."""
    sizes = (size for size in range(micro_batch_size, 0, -1) if batch_size % (size * ranks) == 0)
    return next((f": write micro_batch_size={size}" for size in sizes), f": {ranks} ranks must divide them")


@dataclass(frozen=True)
class BatchSizes:
    """The rows of each step, on all ranks together."""

    full: int
    warmup: BatchSizeWarmup | None = None

    def __post_init__(self) -> None:
        if self.full < 1:
            raise ConfigError(f"batch_size={self.full} must be at least 1")
        if self.warmup is None:
            return
        initial, multiple = self.warmup.initial, self.warmup.multiple
        if self.full % multiple or initial % multiple:
            raise ConfigError(
                f"batch_size={self.full} and batch_size_warmup.initial={initial} must be multiples of "
                f"batch_size_warmup.multiple={multiple}"
            )
        if initial > self.full:
            raise ConfigError(f"batch_size_warmup.initial={initial} must be at most batch_size={self.full}")

    def at(self, step: int) -> int:
        """The rows of a step, counted from 0."""
        if self.warmup is None or step >= self.warmup.steps:
            return self.full
        initial, multiple = self.warmup.initial, self.warmup.multiple
        return initial + (self.full - initial) * step // self.warmup.steps // multiple * multiple

    def before(self, step: int) -> int:
        """The rows of all earlier steps."""
        growing = min(step, self.warmup.steps if self.warmup else 0)
        return self._sums[growing] + (step - growing) * self.full

    def micro_batches(self, step: int, rows: int, ranks: int = 1) -> range:
        """The micro-batches of a step, counted from the start of the run; `rows` of each, on all ranks together."""
        if self.increment % rows:
            found = f"micro-batches of {rows} rows on all ranks do not divide steps of {self.full} rows evenly"
            raise ConfigError(found + micro_batch_advice(self.increment, rows // ranks, ranks))
        return range(self.before(step) // rows, self.before(step + 1) // rows)

    @property
    def increment(self) -> int:
        """Rows that every batch size is a multiple of."""
        return self.warmup.multiple if self.warmup else self.full

    @cached_property
    def _sums(self) -> list[int]:
        growing = self.warmup.steps if self.warmup else 0
        return list(accumulate((self.at(step) for step in range(growing)), initial=0))
