"""The settings of a run: `Recipe` for pre-training, `FinetuneConfig` for fine-tuning."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import ConfigError
from bertsmith.system.suggestions import OtherNames
from bertsmith.tasks.task import task_files, unknown_task
from bertsmith.training.forward_backward import ComputeConfig, Precision, check_precision
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import BatchSizes, BatchSizeWarmup, Schedule, TrainingPlan, Unfreeze
from bertsmith.training.start import encoder_kind, finetuning_settings, sets_random_init, shape_overrides

TASKS = "bertsmith.tasks"
FILES = (".json", ".toml")  # of recipes
Changes = Iterable[str] | Mapping[str, Any]  # overrides from the command line, or settings by name from Python


def _warmup(values: Mapping[str, Any], steps: Any) -> str:
    known = isinstance(steps, int | float) and 0 < steps < (values.get("steps") or 0)
    return f"warmup is a share of the run: write warmup={steps / values['steps'] if known else 0.1:.3g}"


def _accumulation(values: Mapping[str, Any], parts: Any) -> str:
    batch_size = values.get("batch_size") or 32
    even = isinstance(parts, int) and parts > 0 and batch_size % parts == 0
    about = f"batch_size={batch_size} is that of a whole step"
    return f"{about}: for forward passes over parts of it write micro_batch_size={batch_size // parts if even else 8}"


def _is(name: str, setting: str) -> Callable[[Mapping[str, Any], Any], str]:
    return lambda values, value: f"{name}: write {setting.format(value)}"


# Names from other libraries. The same settings are understood; similar ones get an error that says what to write.
SAME = {
    "lr": "learning_rate",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "warmup_ratio": "warmup",
    "weight_decay": "optimizer.weight_decay",
    "per_device_train_batch_size": "batch_size",
    "save_steps": "save_every",
}
EPOCHS = ("epochs", "num_epochs", "num_train_epochs")
SIMILAR = {
    "warmup_steps": _warmup,
    "gradient_accumulation_steps": _accumulation,
    "fp16": _is("the 16-bit format is bfloat16", "precision=bf16"),
    "bf16": _is("this is the precision", "precision=bf16"),
    "device": _is("the device is an option", "--device {}"),
    "freeze": _is("to train only the top layer groups", "'unfreeze=[{{after=0, groups=1}}]'"),
}
SHAPE = {
    "num_layers": "layers",
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "feed_forward",
}
PRETRAINING_NAMES = OtherNames(
    "recipe",
    SAME | {"max_steps": "steps", "eval_steps": "eval_every"},
    SIMILAR
    | {name: _is(f"the encoder calls it {setting}", f"encoder.{setting}={{}}") for name, setting in SHAPE.items()}
    | dict.fromkeys(EPOCHS, _is("the length of a pre-training run is its steps, or its minutes", "steps=10000")),
)
FINETUNING_NAMES = OtherNames(
    "fine-tuning recipe",
    SAME | dict.fromkeys(EPOCHS[1:], "epochs") | {"metric_for_best_model": "main_metric"},
    SIMILAR
    | dict.fromkeys(("steps", "max_steps"), _is("the length of a fine-tuning run is its epochs", "epochs=3"))
    | {"eval_steps": _is("evaluations are counted by epoch", "evals_per_epoch=2")},
)
EVALUATION_NAMES = OtherNames(
    "evaluation",
    {name: setting for name, setting in SAME.items() if setting == "max_length"},
    dict.fromkeys(("fp16", "precision"), _is("evaluation computes in float32 or bfloat16", "bf16=true")),
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A pre-training run. The run folder holds it as recipe.json, which is accepted wherever a recipe's name is."""

    other_names: ClassVar[OtherNames] = PRETRAINING_NAMES
    name: str  # name of the run; family/recipe for a named recipe
    encoder: Annotated[Any, Registry("bertsmith.encoders")]  # the network
    objectives: dict[str, Annotated[Any, Registry("bertsmith.objectives")]]  # the losses, each by its own name
    packing: Annotated[Any, Registry("bertsmith.data.packing")]  # how documents become rows
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")]  # how gradients become updates
    steps: int  # optimizer steps of the run
    minutes: float = 0.0  # if set, the run ends after this time, and progress is measured by the clock
    learning_rate: float  # the peak learning rate
    warmup: float = 0.0  # share of the run in which the learning rate rises, below 1
    schedule: Schedule = field(default_factory=Schedule)  # schedule of the learning rate
    layer_decay: float = 1.0  # factor of the learning rate per layer group, from the top down
    unfreeze: tuple[Unfreeze, ...] = ()  # gradual unfreezing; empty: all layer groups are always trainable
    batch_size: int = 256  # rows of a step, on all ranks together
    batch_size_warmup: BatchSizeWarmup | None = None  # smaller batches at the start of the run
    micro_batch_size: int = 0  # rows of one forward on one rank; 0: the rank's rows of a step at once
    max_length: int = 128  # tokens of a row, special tokens included
    precision: Precision = "auto"  # auto: on CUDA bf16, or fp8 where faster; weights and optimizer state stay fp32
    compute: ComputeConfig = field(default_factory=ComputeConfig)  # how steps are computed
    seed: int = 0  # random seed of initial weights, data order, masks and dropout
    eval_every: int = 1000  # steps between evaluations on held-out rows; 0: only at the end
    eval_rows: int = 512  # held-out rows of an evaluation
    patience: int = 0  # evaluations without improvement before the run stops early; 0: never
    save_every: int = 1000  # steps between checkpoints
    keep_checkpoints: int = 2  # number of checkpoints that are kept
    vectors: str = ""  # file or model folder whose word vectors a new model's token table starts with
    start: str = ""  # model folder whose weights the run starts from: a second stage, or continued pre-training
    after: str = ""  # for a second stage: the recipe of the first stage, whose model it should start from
    # start: the tokenizer may be another; tokens that both have keep their vectors, the others start as the mean vector
    match_tokens: bool = False

    def __post_init__(self) -> None:
        if self.max_length > self.encoder.max_positions:
            raise ConfigError(
                f"max_length={self.max_length} exceeds encoder.max_positions={self.encoder.max_positions}: "
                f"write max_length={self.encoder.max_positions} or encoder.max_positions={self.max_length}"
            )
        if self.save_every < 1 or self.eval_rows < 1:
            raise ConfigError("save_every and eval_rows must be at least 1")
        self.schedule.check_evaluations("eval_every", self.eval_every)
        if self.eval_every < 0 or self.micro_batch_size < 0 or self.patience < 0:
            raise ConfigError("eval_every, micro_batch_size and patience must be at least 0")
        for name, settings in self.objectives.items():
            kind = type(settings).__module__.rsplit(".", 1)[-1]
            if name != kind:
                raise ConfigError(f"objectives.{name} has the settings of {kind}: rename it to objectives.{kind}")
        if self.by_column and self.compute.fsdp:
            raise ConfigError("compute.fsdp=true does not support recurrent encoders: leave it out")
        if self.by_column and self.batch_size_warmup:
            raise ConfigError(
                "batch_size_warmup: the columns of packing.kind=columns are the rows of a step: leave it out"
            )
        if self.vectors and self.start:
            raise ConfigError(f"vectors={self.vectors} and start={self.start}: leave out one of them")
        check_precision(self.precision, self.compute)
        _check_seed(self.seed)
        _ = self.plan, self.batch_sizes  # raise where their settings are invalid

    @property
    def by_column(self) -> bool:
        """Whether the rows of a step continue those of the step before."""
        return bool(getattr(self.packing, "by_column", False))

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


def with_overrides(
    recipe: Recipe,
    changes: Changes,
    *,
    from_file: bool = False,
    rows_per_epoch: Callable[[Recipe], int] | None = None,
) -> Recipe:
    """The recipe with dotted overrides such as `encoder.layers=4`, or with settings by name.

    With `start=FOLDER` among them the encoder has the folder's shape; a recipe `from_file` keeps its own.
    Steps among them end a run whose recipe has minutes. `rows_per_epoch`: of the data if they are known, so that the
    error for `epochs` can name the steps.
    """
    if isinstance(changes, Mapping):
        given = dict(changes)
        others: Changes = {name: value for name, value in changes.items() if name not in EPOCHS}
    else:
        changes = list(changes)
        pairs = [change.partition("=")[::2] for change in changes]
        given = {name: config.parse_value(value) for name, value in pairs}
        others = [change for change in changes if change.partition("=")[0] not in EPOCHS]
    epochs = next((name for name in EPOCHS if isinstance(given.get(name), int | float)), None)
    if epochs and rows_per_epoch:
        recipe = with_overrides(recipe, others, from_file=from_file)
        raise _epochs_error(recipe, f"{epochs}={given[epochs]:g}", given[epochs], rows_per_epoch(recipe))
    start = str(given.get("start", ""))
    implied = shape_overrides(recipe.encoder, start) if start and not from_file and Path(start).is_dir() else []
    if given.keys() & {"steps", "max_steps"} and "minutes" not in given:
        implied = [*implied, "minutes=0"]
    if isinstance(changes, Mapping):
        return config.update(recipe, changes, first=implied)
    return config.override(recipe, [*implied, *changes])


def _epochs_error(recipe: Recipe, given: str, epochs: float, rows: int) -> ConfigError:
    steps = max(1, math.ceil(epochs * rows / recipe.batch_size))
    epoch = f"{rows:,} rows of {recipe.max_length} tokens an epoch, {recipe.batch_size} a step"
    return ConfigError(f"{given}: the length of a pre-training run is its steps: write steps={steps} ({epoch})")


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """A fine-tuning run; defaults of P-BERT §4: batch size 32, 3 epochs, warm-up over a tenth of the steps."""

    other_names: ClassVar[OtherNames] = FINETUNING_NAMES
    task: Annotated[Any, Registry(TASKS)]  # the task and its settings
    model: str  # model folder whose encoder is fine-tuned
    tokenizer: str = ""  # folder of the tokenizer; empty: the model folder
    files: dict[str, str] = field(default_factory=dict)  # files of the task by split, or its folder as data
    head: dict[str, Any] = field(default_factory=dict)  # settings of the head that the task does not set
    # weight of the language model's loss on the same texts, beside the task's (P-GPT1 §3.2): causal_lm or masked_lm
    auxiliary: dict[str, float] = field(default_factory=dict)
    dropout: float | None = None  # in the whole encoder; absent: as in the model folder
    # settings of the encoder that do not change its weights; with a kind such as taglm, those of a new encoder over it
    encoder: dict[str, Any] = field(default_factory=dict)
    random_init: bool = False  # start from random weights, as a baseline without pre-training
    max_length: int = 0  # tokens of a row; 0: the task's own
    batch_size: int = 32  # examples of a step
    micro_batch_size: int = 0  # examples of one forward on one rank; 0: the rank's examples of a step at once
    epochs: float = 3.0  # passes over the training examples
    learning_rate: float = 5e-5  # the peak learning rate
    warmup: float = 0.1  # share of the run in which the learning rate rises, below 1
    schedule: Schedule = field(default_factory=Schedule)  # schedule of the learning rate
    head_learning_rate: float | None = None  # the peak learning rate of the head; absent: learning_rate
    layer_decay: float = 1.0  # factor of the learning rate per layer group, from the top down
    unfreeze: tuple[Unfreeze, ...] = ()  # gradual unfreezing; empty: everything is trainable; groups=1: only the head
    # how gradients become updates; differs from the paper's code: bias correction, which small sets often need
    optimizer: Annotated[Any, Registry("bertsmith.training.optimizers")] = field(default_factory=adamw.Config)
    precision: Precision = "auto"  # auto: on CUDA bf16; weights and optimizer state stay fp32
    compute: ComputeConfig = field(default_factory=ComputeConfig)  # how steps are computed
    sampling: Literal["all", "balanced"] = "all"  # balanced: an epoch draws each class equally often
    group_by_length: bool = False  # examples of similar length in a batch: less padding for recurrent encoders
    seed: int = 0  # random seed of new heads, data order and dropout
    limit: int = 0  # training examples that are used; 0: all
    # which training examples limit keeps; stratified: drawn by class with the seed, smaller subsets within larger ones
    subset: Literal["first", "stratified"] = "first"
    dev_fraction: float = 0.0  # of the training examples, used as dev examples where the task has none
    evals_per_epoch: int = 1  # evaluations on the dev examples
    metrics: str | dict[str, str] = ""  # your own metrics, as module:function; several with commas, or by name
    main_metric: str = ""  # the metric whose highest value selects the best model; empty: the task's
    patience: int = 0  # evaluations without improvement before the run stops early; 0: never
    save_every: int = 500  # steps between checkpoints
    keep_checkpoints: int = 2  # number of checkpoints that are kept

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.save_every < 1 or self.epochs <= 0:
            raise ConfigError("batch_size and save_every must be at least 1, and epochs above 0")
        if min(self.micro_batch_size, self.max_length, self.evals_per_epoch, self.patience, self.limit) < 0:
            raise ConfigError("micro_batch_size, max_length, evals_per_epoch, patience and limit must be at least 0")
        for name, weight in self.auxiliary.items():
            if not 0 <= weight < math.inf:
                raise ConfigError(f"auxiliary.{name}={weight:g} must be at least 0")
        if not 0 <= self.dev_fraction < 1:
            raise ConfigError(f"dev_fraction={self.dev_fraction:g} must be at least 0 and below 1")
        check_precision(self.precision, self.compute)
        _check_seed(self.seed)
        self.schedule.check_evaluations("evals_per_epoch", self.evals_per_epoch)
        self.plan(10**9)  # raises where its settings are invalid

    @property
    def name(self) -> str:
        several = ", ".join(getattr(self.task, "tasks", ()))
        return f"{task_name(self.task)} ({several})" if several else task_name(self.task)

    @property
    def encoder_kind(self) -> str:
        """The kind of a new encoder that is built over the model folder's; empty: that one is fine-tuned."""
        return str(self.encoder.get("kind", ""))

    def head_settings(self, name: str) -> dict[str, Any]:
        """The settings of one head; `name` is classify-cola for cola, one of several tasks."""
        label = name.partition("-")[2]
        return self.head.get(label, {}) if label else self.head

    def for_head(self, name: str) -> FinetuneConfig:
        """The settings of one of several tasks, by the name of its head."""
        label = name.partition("-")[2]
        own: dict[str, Any] = {"files": task_files(self.files, label), "head": self.head_settings(name)}
        return replace(self, task=self.task.tasks[label], main_metric="", **own)

    @property
    def auxiliary_weights(self) -> dict[str, float]:
        """The auxiliary losses that count."""
        return {name: weight for name, weight in self.auxiliary.items() if weight}

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
    names, pretrains = ["learning_rate", "warmup", "schedule", "layer_decay", "unfreeze"], isinstance(settings, Recipe)
    names += [] if pretrains else ["head_learning_rate"]
    values = {name: getattr(settings, name) for name in names}
    return TrainingPlan(steps=steps, minutes=minutes, tied_on_top=pretrains, **values)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed={seed} must be at least 0 and below 2**63")


def task_name(settings: Any) -> str:
    """`glue/cola` for a member of a benchmark, `classification` for a task without members."""
    kind, member = type(settings).__module__.rsplit(".", 1)[-1], getattr(settings, "name", "")
    return f"{kind}/{member}" if member else kind


def find_task(name: str) -> Any:
    """The settings of a task by its name on the command line, such as `glue/cola`."""
    kind, _, member = name.partition("/")
    if kind not in config.kinds(TASKS):
        raise unknown_task(name)
    cls = config.find_kind(TASKS, kind).Config
    if not member and any(item.name == "name" and item.default is MISSING for item in fields(cls)):
        raise unknown_task(name)
    return config.from_dict(cls, {"name": member} if member else {}, "task")


def make_finetune_config(
    task: Any, model: str | Path, files: Mapping[str, str | Path], changes: Changes, *, encoder: str = ""
) -> FinetuneConfig:
    """The settings of a run; `task`: its name, its config, a fine-tuning recipe or its path, or several tasks by name.

    Settings of the task and of the head are `task.…` and `head.…`. The files given replace those of a recipe. Where the
    paper of the model's encoder has fine-tuning settings of its own, they are the defaults. `encoder`: its kind; by
    default it is read from the model folder.
    """
    paths = {name: str(path) for name, path in files.items()}
    if isinstance(task, FinetuneConfig):
        settings = replace(task, model=str(model), files=paths)
    elif isinstance(task, str) and task.endswith(FILES):
        settings = read_finetune_config(Path(task), str(model))
        kept = {} if "data" in settings.files.keys() | paths.keys() and paths else settings.files
        settings = replace(settings, files={**kept, **paths})
    else:
        if isinstance(task, Mapping):
            several = {name: find_task(one) for name, one in task.items()}
            task = config.find_kind(TASKS, "multi_task").Config(tasks=several, weights=dict.fromkeys(several, 1.0))
        task = find_task(task) if isinstance(task, str) else task
        heads: dict[str, Any] = {name: {} for name in getattr(task, "tasks", ())}
        settings = FinetuneConfig(task=task, model=str(model), files=paths, head=heads)
        kind, random_init = encoder_kind(changes) or encoder, sets_random_init(changes)
        settings = config.update(settings, finetuning_settings(str(model), kind, random_init=random_init))
    return config.update(settings, changes) if isinstance(changes, Mapping) else config.override(settings, changes)


def read_finetune_config(path: Path, model: str) -> FinetuneConfig:
    """A fine-tuning recipe: a TOML file of `bertsmith init --task`, or the recipe.json of a run."""

    def complete(data: Any) -> Any:
        if isinstance(data, dict) and "encoder" in data and "task" not in data:
            raise ConfigError(
                f"{path} is a pre-training recipe: write one for fine-tuning with bertsmith init --task TASK"
            )
        return data | {"model": model}

    return config.read_file(FinetuneConfig, path, complete=complete)
