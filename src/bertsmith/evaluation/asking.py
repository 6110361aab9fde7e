"""Which model is asked what: its folder, the run it lies in, the task with the model's own labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.hf_config import CONFIG
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model
from bertsmith.reports.run_history import RECIPE
from bertsmith.system.devices import choose_device
from bertsmith.tasks.task import SPLITS, Task
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetuning.tuning import TASKS, FinetuneConfig, find_task, task_name

IN_A_RUN = ("best", "last")  # the models of a run folder, the one that is taken first


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How a model is asked."""

    task: Annotated[Any, Registry(TASKS)]  # what is asked
    length: int = 0  # places of a row; the task's own where 0, at most the model's positions
    half: bool = False  # in bfloat16
    errors: int = 100  # wrong answers that are told, the most confident ones first

    def __post_init__(self) -> None:
        if self.length < 0 or self.errors < 0:
            raise ConfigError("length and errors must not be under 0")

    @property
    def name(self) -> str:
        """Of the task, as on the command line."""
        return task_name(self.task)


@dataclass(frozen=True)
class Asked:
    """A model on its device, and a task that its head can answer."""

    folder: Path
    model: Model
    tokenizer: Tokenizer
    task: Task
    length: int
    device: str
    half: bool


def model_in(path: str | Path) -> Path:
    """The model folder: the path itself, or the best model of the run that it holds."""
    folder = Path(path)
    if not (folder / CONFIG).exists():
        for name in IN_A_RUN:
            if (folder / name).is_dir():
                return folder / name
        if (folder / RECIPE).is_file():
            raise DataError(f"{folder} is a run without a model yet: finish it, with the command that began it")
    return folder


def tuning_of(model: Path) -> FinetuneConfig | None:
    """The settings of the fine-tuning run, or sweep, that a model folder lies in; None where it lies in none."""
    place = model.resolve().parent
    path = next((path for path in (place / RECIPE, *sorted(place.glob(f"lr-*/{RECIPE}"))) if path.is_file()), None)
    if path is None:
        return None
    try:
        fine_tuned = "task" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no recipe: {error}") from error
    return config.read(FinetuneConfig, path) if fine_tuned else None


def make_asking(tuning: FinetuneConfig | None, task: str, changes: Iterable[str] = ()) -> Asking:
    """The settings from words. Where the task is that of the model's run, its settings there hold."""
    if tuning is not None and task in ("", tuning.name):
        found = Asking(task=tuning.task, length=tuning.max_length)
    elif task:
        found = Asking(task=find_task(task))
    else:
        raise ConfigError("this model lies in no fine-tuning run that says its task: pass --task, such as glue/cola")
    return config.override(found, changes)


def files_of(tuning: FinetuneConfig | None, given: Mapping[str, Path], *, split: str) -> dict[str, Path]:
    """The files that were given, or else those of the run that the model lies in."""
    if split not in SPLITS:
        raise BertsmithError(f"--split {split} is not known: {', '.join(SPLITS)}")
    if given or tuning is None:
        return dict(given)
    return {name: Path(path) for name, path in tuning.files.items() if name in (split, "data")}


def ask(asking: Asking, model: str | Path, files: Mapping[str, Path], *, device: str = "auto") -> Asked:
    """Opens the model and builds the task for it; a head that cannot answer the task is an error."""
    folder = model_in(model)
    opened, tokenizer, _ = open_model(folder)
    objective = asking.task.build(files=files).objective
    heads = {name: getattr(head, "config", None) for name, head in opened.objectives.items()}
    if objective not in heads:
        answers = ", ".join(f"{name}{_classes(head)}" for name, head in heads.items()) or "nothing"
        raise DataError(
            f"{folder} answers {answers}; {asking.name} asks {objective}: take a model that was fine-tuned for it"
        )
    task: Task = asking.task.build(files=files, labels=getattr(heads[objective], "labels", ()))
    positions = opened.encoder.max_positions
    if asking.length > positions:
        raise ConfigError(f"length={asking.length} is more than the {positions} positions of {folder}: make it less")
    place = choose_device(device)
    length = asking.length or min(task.length, positions)
    return Asked(folder, opened.to(place), tokenizer, task, length, place, asking.half)


def _classes(head: Any) -> str:
    return f" ({len(head.labels)} labels)" if hasattr(head, "labels") else ""
