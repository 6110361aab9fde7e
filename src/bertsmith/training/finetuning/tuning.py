"""One frozen dataclass for one fine-tuning run: which model, which task, how long, how fast."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.training.optimizers import adamw
from bertsmith.training.passes import Settings
from bertsmith.training.plan import Plan, Thaw
from bertsmith.training.schedules import linear, schedule

TASKS = "bertsmith.tasks"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """P-BERT §4 by default: 32 examples a step, 3 epochs, warm-up over a tenth of the steps."""

    task: Annotated[Any, Registry(TASKS)]  # what is learned
    model: str  # the folder whose encoder is fine-tuned
    files: dict[str, str] = field(default_factory=dict)  # of the task, by split, or its folder under data
    head: dict[str, Any] = field(default_factory=dict)  # settings of the objective that are not the task's own
    dropout: float | None = None  # everywhere in the encoder while it learns; what its folder says where absent
    fresh: bool = False  # begin with random weights: how much did pre-training help?
    length: int = 0  # places of a row; the task's own where 0
    rows: int = 32  # examples of a step
    micro_rows: int = 0  # examples of one forward on one rank; 0: a step's all at once
    epochs: float = 3.0  # how often the examples are gone through
    rate: float = 5e-5  # the highest
    warmup: float = 0.1  # below 1 a share of the run, else steps
    schedule: Annotated[Any, Registry(schedule.FOLDER)] = field(default_factory=linear.Config)  # of the rate
    depth_decay: float = 1.0  # of the rate, for each part that is further down
    thaw: tuple[Thaw, ...] = ()  # all parts learn all the time where empty; one with parts=1: only the head
    # differs from the paper's code: with bias correction, without which small sets often fail to learn
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")] = field(default_factory=adamw.Config)
    passes: Settings = field(default_factory=Settings)  # how steps are computed
    seed: int = 0  # of new heads, order and dropout
    dev_share: float = 0.0  # of the train examples, set aside as dev examples where there are none
    evaluations: int = 1  # in each epoch, on the dev examples
    patience: int = 0  # evaluations in a row that are no better than the best, until the run ends; 0: all epochs
    save_every: int = 500  # steps between checkpoints
    keep: int = 2  # checkpoints that stay

    def __post_init__(self) -> None:
        if self.rows < 1 or self.epochs <= 0 or self.save_every < 1:
            raise ConfigError("rows and save_every must be at least 1, epochs over 0")
        if self.micro_rows < 0 or self.length < 0 or self.evaluations < 0 or self.patience < 0:
            raise ConfigError("micro_rows, length, evaluations and patience must not be under 0")
        if not 0 <= self.dev_share < 1:
            raise ConfigError(f"dev_share={self.dev_share:g} must be at least 0 and under 1")

    @property
    def name(self) -> str:
        """Of the task, as on the command line."""
        return task_name(self.task)

    def steps(self, examples: int) -> int:
        """Of the whole run."""
        return max(1, math.ceil(self.epochs * examples / self.rows))

    def evaluate_every(self, examples: int) -> int:
        """Steps between evaluations; 0: only at the end."""
        return max(1, math.ceil(examples / self.rows / self.evaluations)) if self.evaluations else 0

    def plan(self, examples: int) -> Plan:
        """The rates of the run."""
        return Plan(
            steps=self.steps(examples),
            rate=self.rate,
            schedule=self.schedule,
            warmup=self.warmup,
            depth_decay=self.depth_decay,
            thaw=self.thaw,
        )

    def to_json(self) -> bytes:
        """Every setting written out; the same settings give the same bytes."""
        return (json.dumps(config.to_dict(self), indent=1, ensure_ascii=False) + "\n").encode()


def task_name(settings: Any) -> str:
    """`glue/cola` for the settings of a family's member, `classification` where there are no members."""
    kind = type(settings).__module__.rsplit(".", 1)[-1]
    member = getattr(settings, "name", "")
    return f"{kind}/{member}" if member else kind


def find_task(name: str, changes: Iterable[str] = ()) -> Any:
    """The settings of a task by its name on the command line, such as `glue/cola`, with overrides."""
    kind, _, member = name.partition("/")
    found = config.find_kind(TASKS, kind).Config
    return config.override(config.from_dict(found, {"name": member} if member else {}, "task"), changes)


def make_tuning(task: str, model: str | Path, files: Mapping[str, Path], changes: Iterable[str]) -> Tuning:
    """The settings of a run from words; overrides that begin with `task.` or `head.` are of those."""
    own, mine, head = [], [], {}
    for change in changes:
        if change.startswith("task."):
            own.append(change.removeprefix("task."))
        elif change.startswith("head."):
            key, _, value = change.removeprefix("head.").partition("=")
            head[key] = config.parse_value(value)
        else:
            mine.append(change)
    made = Tuning(
        task=find_task(task, own),
        model=str(model),
        files={name: str(path) for name, path in files.items()},
        head=head,
    )
    return config.override(made, mine)
