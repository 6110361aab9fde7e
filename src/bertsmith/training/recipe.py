"""The settings of a run: `Recipe` for pre-training, `FinetuneConfig` for fine-tuning."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.training.forward_backward import ComputeConfig, Precision, check_precision
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import BatchSizes, BatchSizeWarmup, Schedule, TrainingPlan, Unfreeze
from bertsmith.training.start import shape_overrides

TASKS = "bertsmith.tasks"
FILES = (".json", ".toml")  # of recipes


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
    schedule: Schedule = field(default_factory=Schedule)  # of the learning rate
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
        return _plan(self, self.steps, self.minutes)

    @cached_property
    def batch_sizes(self) -> BatchSizes:
        return BatchSizes(self.batch_size, self.batch_size_warmup)

    def rank_rows(self, world_size: int) -> int:
        """Rows of one forward on one rank."""
        return self.micro_batch_size or self.batch_size // world_size

    def to_json(self) -> bytes:
        """Every setting written out; equal recipes give equal bytes."""
        return (json.dumps(config.to_dict(self), indent=1, ensure_ascii=False) + "\n").encode()


def with_overrides(recipe: Recipe, changes: Iterable[str], *, from_file: bool = False) -> Recipe:
    """The recipe with dotted overrides such as `encoder.layers=4`.

    With `start=FOLDER` among them the encoder has the folder's shape; a recipe `from_file` keeps its own.
    """
    changes = list(changes)
    starts = [
        str(config.parse_value(change.removeprefix("start="))) for change in changes if change.startswith("start=")
    ]
    shape = starts and starts[-1] and not from_file and Path(starts[-1]).is_dir()
    return config.override(recipe, [*(shape_overrides(recipe.encoder, starts[-1]) if shape else ()), *changes])


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """A fine-tuning run; defaults of P-BERT §4: batch size 32, 3 epochs, warm-up over a tenth of the steps."""

    task: Annotated[Any, Registry(TASKS)]  # the task and its settings
    model: str  # model folder whose encoder is fine-tuned
    tokenizer: str = ""  # folder of its tokenizer; empty: the model folder
    files: dict[str, str] = field(default_factory=dict)  # of the task, by split, or its folder under data
    head: dict[str, Any] = field(default_factory=dict)  # settings of the objective that the task leaves open
    dropout: float | None = None  # in the whole encoder; absent: as in the model folder
    random_init: bool = False  # start from random weights, as a baseline without pre-training
    max_length: int = 0  # tokens of a row; 0: the task's own
    batch_size: int = 32  # examples of a step
    micro_batch_size: int = 0  # examples of one forward on one rank; 0: the rank's examples of a step at once
    epochs: float = 3.0  # passes over the training examples
    learning_rate: float = 5e-5  # the highest of the run
    warmup: float = 0.1  # share of the run, below 1
    schedule: Schedule = field(default_factory=Schedule)  # of the learning rate
    layer_decay: float = 1.0  # factor of the learning rate per layer group, from the top down
    unfreeze: tuple[Unfreeze, ...] = ()  # gradual unfreezing; empty: everything is trainable; groups=1: only the head
    # differs from the paper's code: with bias correction, without which small sets often fail to learn
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")] = field(default_factory=adamw.Config)
    precision: Precision = "auto"  # on CUDA bf16; weights and optimizer state stay fp32
    compute: ComputeConfig = field(default_factory=ComputeConfig)  # how steps are computed
    seed: int = 0  # of new heads, data order and dropout
    limit: int = 0  # training examples that are used, the first ones; 0: all
    dev_fraction: float = 0.0  # of the training examples, used as dev examples where the task has none
    evals_per_epoch: int = 1  # evaluations on the dev examples
    patience: int = 0  # evaluations without improvement before the run stops early; 0: never
    save_every: int = 500  # steps between checkpoints
    keep_checkpoints: int = 2  # that are kept

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.save_every < 1 or self.epochs <= 0:
            raise ConfigError("batch_size and save_every must be at least 1, and epochs above 0")
        if min(self.micro_batch_size, self.max_length, self.evals_per_epoch, self.patience, self.limit) < 0:
            raise ConfigError("micro_batch_size, max_length, evals_per_epoch, patience and limit must be at least 0")
        if not 0 <= self.dev_fraction < 1:
            raise ConfigError(f"dev_fraction={self.dev_fraction:g} must be at least 0 and below 1")
        check_precision(self.precision, self.compute)
        self.plan(10**9)  # raises where its settings are invalid

    @property
    def name(self) -> str:
        return task_name(self.task)

    def steps(self, examples: int) -> int:
        """Optimizer steps of the run."""
        return max(1, math.ceil(self.epochs * examples / self.batch_size))

    def eval_every(self, examples: int) -> int:
        """Steps between evaluations; 0: only at the end."""
        return max(1, math.ceil(examples / self.batch_size / self.evals_per_epoch)) if self.evals_per_epoch else 0

    def plan(self, examples: int) -> TrainingPlan:
        """The learning rates of the run."""
        return _plan(self, self.steps(examples))

    def to_json(self) -> bytes:
        """Every setting written out; equal settings give equal bytes."""
        return (json.dumps(config.to_dict(self), indent=1, ensure_ascii=False) + "\n").encode()


def _plan(settings: Recipe | FinetuneConfig, steps: int, minutes: float = 0.0) -> TrainingPlan:
    names = ("learning_rate", "warmup", "schedule", "layer_decay", "unfreeze")
    return TrainingPlan(steps=steps, minutes=minutes, **{name: getattr(settings, name) for name in names})


def task_name(settings: Any) -> str:
    """`glue/cola` for a member of a benchmark, `classification` for a task without members."""
    kind = type(settings).__module__.rsplit(".", 1)[-1]
    member = getattr(settings, "name", "")
    return f"{kind}/{member}" if member else kind


def find_task(name: str, changes: Iterable[str] = ()) -> Any:
    """The settings of a task by its name on the command line, such as `glue/cola`, with overrides."""
    kind, _, member = name.partition("/")
    found = config.find_kind(TASKS, kind).Config
    return config.override(config.from_dict(found, {"name": member} if member else {}, "task"), changes)


def make_finetune_config(
    task: str, model: str | Path, files: Mapping[str, Path], changes: Iterable[str]
) -> FinetuneConfig:
    """The settings of a run from command-line arguments; overrides `task.…` and `head.…` go to task and head."""
    for_task, for_run, head = [], [], {}
    for change in changes:
        if change.startswith("task."):
            for_task.append(change.removeprefix("task."))
        elif change.startswith("head."):
            key, _, value = change.removeprefix("head.").partition("=")
            head[key] = config.parse_value(value)
        else:
            for_run.append(change)
    paths = {name: str(path) for name, path in files.items()}
    settings = FinetuneConfig(task=find_task(task, for_task), model=str(model), files=paths, head=head)
    return config.override(settings, for_run)
