"""A run on one rank: what pre-training and fine-tuning have in common for the loop that drives them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, is_out_of_memory
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import save_model
from bertsmith.model_io.run_folder import DATA, MODELS, RECIPE
from bertsmith.reports.run_history import EVENTS, read_run
from bertsmith.system.durable import Disk
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.checkpoints import TrainingState
from bertsmith.training.distributed import World
from bertsmith.training.prefetch import Prefetcher
from bertsmith.training.recipe import FinetuneConfig, Recipe
from bertsmith.training.trainer import Trainer

T = TypeVar("T", Recipe, FinetuneConfig)
PARTS = ("checkpoints", *MODELS, "tensorboard", "trackers.json", "report.html")  # of a run, beside its log and recipe
OVERWRITE = "pass --overwrite to replace it"  # advice that `advise_removal` replaces
# Settings that may change when a run resumes: results depend on them only through rounding and dropout.
CHANGEABLE = {"micro_batch_size", "save_every", "keep_checkpoints", "eval_every", "eval_rows", "patience"}
CHANGEABLE |= {"compute.compile", "compute.cuda_graphs", "compute.activation_checkpointing", "compute.fsdp"}
CHANGEABLE |= {"compute.deterministic"}


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]  # for the log
    cost: float  # lower is better: the model with the lowest is kept as best/
    summary: str  # one line for people


@dataclass(kw_only=True)
class Run(ABC):
    """One run on one rank. Subclasses say how the model is evaluated and how it is built for saving."""

    config: Recipe | FinetuneConfig
    folder: Path
    tokenizer: Tokenizer
    trainer: Trainer
    loader: Prefetcher
    eval_every: int  # steps; 0: only at the end
    lean: bool = False  # a finished run leaves only its log and best/
    facts: dict[str, Any] = field(init=False)  # for the log; flops_per_token and peak_flops give the MFU
    best: tuple[int, float] = (0, float("inf"))  # step and cost
    best_metrics: dict[str, float] = field(default_factory=dict)  # on rank 0
    last: tuple[int, Evaluation | None] = (-1, None)
    saved_at: float = 0.0  # seconds of training at the last checkpoint

    def __post_init__(self) -> None:
        self.facts = self.collect_facts()

    @property
    @abstractmethod
    def fingerprints(self) -> dict[str, str]:
        """Of data and tokenizer; a run does not resume with others."""

    @abstractmethod
    def evaluate(self) -> Evaluation | None:
        """The same on all ranks; None where there is nothing to evaluate on."""

    @abstractmethod
    def new_model(self) -> Model:
        """A model of the same structure, into which sharded weights are loaded for saving."""

    @abstractmethod
    def card_facts(self, metrics: Mapping[str, float]) -> dict[str, object]:
        """Facts about the saved model for its model card."""

    def opening_lines(self) -> list[str]:
        """What the run trains on, for the user, when it starts."""
        return []

    def closing_notes(self) -> list[str]:
        """What the user should know about the result."""
        return []

    def initial_state(self) -> tuple[TrainingState, list[str]] | None:
        """The state that a new run starts from, and notes for the user; None: as the trainer is."""
        return None

    def trained_model(self) -> Model:
        """The model to save, with weights of the trainer."""
        return self.model

    def model_to_save(self, model: Model) -> Model:
        """What is saved of a model."""
        return model

    def collect_facts(self) -> dict[str, Any]:
        world = self.trainer.world
        return {
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "device": world.environment()["device"],
            "ranks": world.size,
            "threads": torch.get_num_threads(),
        }

    @property
    def model(self) -> Model:
        assert isinstance(self.trainer.module, Model)
        return self.trainer.module

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products outside FP8."""
        return torch.bfloat16 if self.trainer.forward_backward.bf16 else torch.float32

    def write_model(self, name: str, metrics: Mapping[str, float]) -> None:
        """Saves the model folder `name` (best or last), and the auxiliary models of objectives in folders beside it."""
        weights, model = self.trainer.full_weights(), self.trained_model()
        if not self.trainer.world.is_main:
            return
        if self.trainer.sharded:
            model = self.new_model()
            model.load_state_dict(weights)
        model = self.model_to_save(model)
        facts = self.card_facts(metrics)
        save_model(model, self.tokenizer, self.folder / name, facts=facts, replace=True)
        for part, auxiliary in model.auxiliary_models().items():
            save_model(auxiliary, self.tokenizer, self.folder / part / name, facts=facts, replace=True)

    def stops_early(self) -> bool:
        """Whether `patience` evaluations have passed without improvement."""
        since = self.trainer.steps_done - self.best[0]
        patience = self.config.patience * self.eval_every
        return bool(patience) and self.best[0] > 0 and since >= patience


def agree_on_best(world: World, best: tuple[int, float]) -> tuple[int, float]:
    """Rank 0's best evaluation on all ranks: they must agree on when a model is saved."""
    step, cost = best if world.is_main else (0, 0.0)
    shared = world.all_reduce({"step": world.scalar(step), "cost": world.scalar(cost)})
    return int(shared["step"]), float(shared["cost"])


def with_saved_precision(settings: T, folder: Path) -> T:
    """Settings with precision=auto get the precision that the run in the folder started with, if there is one."""
    if settings.precision != config.AUTO or not (folder / RECIPE).exists():
        return settings
    saved = config.read_file(type(settings), folder / RECIPE).precision
    return replace(settings, precision=saved)


def recipe_changes(folder: Path, settings: Recipe | FinetuneConfig) -> list[str]:
    """Differences from the settings of the run in a folder; an error where they would change its result.

    A finished run may get more steps or epochs: it continues with the learning rates of the longer run.
    """
    if not (folder / RECIPE).exists():
        return []
    before = config.read_file(type(settings), folder / RECIPE)
    changes = config.resume_differences(config.to_dict(before), config.to_dict(settings))
    length = "steps" if isinstance(settings, Recipe) else "epochs"
    old, new = (float(getattr(one, length)) for one in (before, settings))
    longer, finished = new > old, new > old and bool(read_run(folder).finish)
    conflicts = [
        change for change in changes if change.split(" ")[0] not in CHANGEABLE | ({length} if finished else set())
    ]
    if conflicts:
        advice = f", or finish it with {length}={old:g} first" if longer and len(conflicts) == 1 else ""
        if {change.split(" ")[0] for change in conflicts} <= _moved_paths(before, settings):
            advice = ", or run this command in the folder where that run was started"
        raise ConfigError(
            f"{folder} holds a run with other settings: {'; '.join(conflicts[:3])}: choose another -o, "
            f"or {OVERWRITE}{advice}"
        )
    extended = (
        f"the finished run of {length}={old:g} continues to {length}={new:g} with the learning rates of the longer "
        "run: its result differs from a run of that length from the start"
    )
    return [extended if change.startswith(f"{length} ") else change for change in changes]


def _moved_paths(before: Recipe | FinetuneConfig, now: Recipe | FinetuneConfig) -> set[str]:
    """The settings whose two paths may be of the same file or folder, seen from two working directories."""
    old, new = _paths(before), _paths(now)
    return {name for name in old.keys() & new.keys() if _same_end(Path(old[name]), Path(new[name]))}


def _same_end(*paths: Path) -> bool:
    """Whether one path ends with the other, without `..` and the root."""
    parts = [[part for part in path.parts if part not in ("..", path.anchor)] for path in paths]
    shared = min(map(len, parts))
    return shared > 0 and parts[0][-shared:] == parts[1][-shared:]


def _paths(settings: Recipe | FinetuneConfig) -> dict[str, str]:
    if isinstance(settings, Recipe):
        return {"start": settings.start, "vectors": settings.vectors}
    files = {f"files.{name}": path for name, path in settings.files.items()}
    return {"model": settings.model, "tokenizer": settings.tokenizer, **files}


@contextmanager
def advise_removal() -> Iterator[None]:
    """For commands without `--overwrite`: errors about another run in a folder say to remove that folder."""
    try:
        yield
    except ConfigError as error:
        if OVERWRITE not in str(error):
            raise
        raise ConfigError(str(error).replace(OVERWRITE, "remove that folder")) from error


def replace_run(folder: Path, settings: Recipe | FinetuneConfig, world: World, *, resume: str) -> None:
    """`remove_run` on rank 0; the others wait."""
    if resume != "auto":
        raise ConfigError(f"--overwrite starts a new run: leave out --resume {resume}")
    if world.is_main:
        remove_run(folder, settings)
    world.all_reduce({"removed": world.scalar(1)})


def remove_run(folder: Path, settings: Recipe | FinetuneConfig, *, disk: Disk | None = None) -> None:
    """Removes the run in a folder, for `--overwrite`, and no other files; raises if `settings` are of another kind.

    The log goes first and the recipe last: if interrupted at any moment, the rest can be resumed or removed.
    """
    disk = disk or Disk()
    if not folder.exists() or (folder.is_dir() and not any(path.name != DATA for path in folder.iterdir())):
        return
    noun = "pre-training" if isinstance(settings, Recipe) else "fine-tuning"
    refused = "--overwrite replaces nothing else; choose another -o"
    try:
        config.read_file(type(settings), folder / RECIPE)
    except BertsmithError as error:
        raise ConfigError(f"{folder} is not a {noun} run: {refused}") from error
    start = settings.start if isinstance(settings, Recipe) else settings.model
    if start and Path(start).resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"the run starts from {start}, which --overwrite would remove: choose another -o")
    with disk.lock(folder):
        below = [path for path in folder.iterdir() if path.is_dir() and path.name not in (DATA, *PARTS)]
        auxiliary = [path for path in below if {model.name for model in path.iterdir()} <= set(MODELS)]
        for path in [folder / EVENTS, *(folder / name for name in PARTS), *auxiliary, folder / RECIPE]:
            if path.is_dir():
                disk.remove_folder(path)
            elif path.exists():
                disk.remove(path)
        disk.make_folder(folder / PARTS[0])  # it is still a run folder, whatever other files it holds


@contextmanager
def memory_advice(rows: int, what: str) -> Iterator[None]:
    """Turns an out-of-memory error into one line with the setting to change; `rows` are those of one forward."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        half = max((size for size in range(1, rows // 2 + 1) if rows % size == 0), default=0)
        advice = f"micro_batch_size={half}" if half else "compute.activation_checkpointing=true or a smaller encoder"
        raise BertsmithError(f"out of memory with {rows} {what} in one forward: resume with {advice}") from error
