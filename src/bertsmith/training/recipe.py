"""The recipe: every setting of a pre-training run in one frozen dataclass."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.training.passes import ComputeConfig, Precision, check_precision
from bertsmith.training.plan import BatchSizes, BatchSizeWarmup, TrainingPlan, Unfreeze
from bertsmith.training.schedules import linear, schedule


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A pre-training run. The run folder holds it as recipe.json, which is accepted wherever a recipe's name is."""

    name: str  # of the run; family/recipe for a named recipe
    encoder: Annotated[Any, Registry("bertsmith.encoders")]  # the network
    objectives: dict[str, Annotated[Any, Registry("bertsmith.objectives")]]  # the losses, each by its own name
    packing: Annotated[Any, Registry("bertsmith.data.packing")]  # how documents become rows
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")]  # how gradients become updates
    steps: int  # optimizer steps of the run
    minutes: float = 0.0  # if set, the run ends after this time, and progress is measured by the clock
    learning_rate: float  # the highest of the run
    warmup: float = 0.0  # share of the run, below 1
    schedule: Annotated[Any, Registry(schedule.FOLDER)] = field(default_factory=linear.Config)  # of the learning rate
    layer_decay: float = 1.0  # factor of the learning rate per layer group, from the top down
    unfreeze: tuple[Unfreeze, ...] = ()  # gradual unfreezing; empty: all layer groups are always trainable
    batch_size: int = 256  # rows of a step, on all ranks together
    batch_size_warmup: BatchSizeWarmup | None = None  # smaller batches at the start of the run
    micro_batch_size: int = 0  # rows of one forward on one rank; 0: the rank's rows of a step at once
    max_length: int = 128  # tokens of a row, special tokens included
    precision: Precision = "auto"  # on CUDA bf16, or fp8 where that is faster; weights and optimizer state stay fp32
    compute: ComputeConfig = field(default_factory=ComputeConfig)  # how steps are computed
    seed: int = 0  # of initial weights, data order, masks and dropout
    eval_every: int = 1000  # steps between evaluations on held-out rows; 0: only at the end
    eval_rows: int = 512  # held-out rows of an evaluation
    patience: int = 0  # evaluations without improvement before the run stops early; 0: never
    save_every: int = 1000  # steps between checkpoints
    keep_checkpoints: int = 2  # that are kept
    start: str = ""  # model folder whose weights the run starts from: a second stage, or continued pre-training
    after: str = ""  # of a second stage: the recipe of the first, whose model it is meant to start from

    def __post_init__(self) -> None:
        if self.max_length > self.encoder.max_positions:
            raise ConfigError(
                f"max_length={self.max_length} exceeds encoder.max_positions={self.encoder.max_positions}: "
                "lower max_length or raise encoder.max_positions"
            )
        if self.save_every < 1 or self.eval_rows < 1:
            raise ConfigError("save_every and eval_rows must be at least 1")
        if self.eval_every < 0 or self.micro_batch_size < 0 or self.patience < 0:
            raise ConfigError("eval_every, micro_batch_size and patience must be at least 0")
        for name, settings in self.objectives.items():
            kind = type(settings).__module__.rsplit(".", 1)[-1]
            if name != kind:
                raise ConfigError(f"objectives.{name} has the settings of {kind}: rename it to objectives.{kind}")
        check_precision(self.precision, self.compute)
        _ = self.plan, self.batch_sizes  # raise where their settings are invalid

    @cached_property
    def plan(self) -> TrainingPlan:
        """The learning rates of the run."""
        return TrainingPlan(
            steps=self.steps,
            minutes=self.minutes,
            learning_rate=self.learning_rate,
            warmup=self.warmup,
            schedule=self.schedule,
            layer_decay=self.layer_decay,
            unfreeze=self.unfreeze,
        )

    @cached_property
    def batch_sizes(self) -> BatchSizes:
        """The rows of each step."""
        return BatchSizes(self.batch_size, self.batch_size_warmup)

    def rank_rows(self, world_size: int) -> int:
        """Rows of one forward on one rank."""
        return self.micro_batch_size or self.batch_size // world_size

    def to_json(self) -> bytes:
        """Every setting written out; equal recipes give equal bytes."""
        return (json.dumps(config.to_dict(self), indent=1, ensure_ascii=False) + "\n").encode()


def read_recipe(path: Path) -> Recipe:
    """A recipe from a JSON or TOML file."""
    return config.read_file(Recipe, path)


def with_overrides(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with dotted overrides such as `encoder.layers=4`."""
    return config.override(recipe, changes)
