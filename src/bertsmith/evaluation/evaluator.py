"""Which model is asked what: its folder, the run it lies in, the task with the model's own labels.

A model's predictions for many examples, part by part, with what each example took."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import CONFIG, open_model
from bertsmith.objectives.objective import pipeline_of
from bertsmith.reports.run_history import RECIPE
from bertsmith.system.devices import choose_device
from bertsmith.system.progress import Progress
from bertsmith.tasks.task import SPLITS, Example, Prediction, Task, truncated_examples
from bertsmith.tasks.task import Features as Question
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune_data import predict_logits
from bertsmith.training.recipe import TASKS, FinetuneConfig, find_task, task_name

IN_A_RUN = ("best", "last")  # the models of a run folder, the one that is taken first


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a model is asked."""

    task: Annotated[Any, Registry(TASKS)]  # what is asked
    max_length: int = 0  # places of a row; the task's own where 0, at most the model's positions
    bf16: bool = False  # in bfloat16
    errors: int = 100  # wrong answers that are told, the most confident ones first

    def __post_init__(self) -> None:
        if self.max_length < 0 or self.errors < 0:
            raise ConfigError("length and errors must not be under 0")

    @property
    def name(self) -> str:
        """Of the task, as on the command line."""
        return task_name(self.task)


@dataclass(frozen=True)
class Evaluator:
    """A model on its device, and a task that its head can answer."""

    folder: Path
    model: Model
    tokenizer: Tokenizer
    task: Task
    length: int
    device: str
    half: bool


def find_model_folder(path: str | Path) -> Path:
    """The model folder: the path itself, or the best model of the run that it holds."""
    folder = Path(path)
    if not (folder / CONFIG).exists():
        for name in IN_A_RUN:
            if (folder / name).is_dir():
                return folder / name
        if (folder / RECIPE).is_file():
            raise DataError(f"{folder} is a run without a model yet: finish it, with the command that began it")
    return folder


def finetune_config_of(model: Path) -> FinetuneConfig | None:
    """The settings of the fine-tuning run, or sweep, that a model folder lies in; None where it lies in none."""
    place = model.resolve().parent
    path = next((path for path in (place / RECIPE, *sorted(place.glob(f"lr-*/{RECIPE}"))) if path.is_file()), None)
    if path is None:
        return None
    try:
        fine_tuned = "task" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no recipe: {error}") from error
    return config.read_file(FinetuneConfig, path) if fine_tuned else None


def make_evaluation_config(tuning: FinetuneConfig | None, task: str, changes: Iterable[str] = ()) -> EvaluationConfig:
    """The settings from words. Where the task is that of the model's run, its settings there hold."""
    if tuning is not None and task in ("", tuning.name):
        found = EvaluationConfig(task=tuning.task, max_length=tuning.max_length)
    elif task:
        found = EvaluationConfig(task=find_task(task))
    else:
        raise ConfigError("this model lies in no fine-tuning run that says its task: pass --task, such as glue/cola")
    return config.override(found, changes)


def evaluation_files(tuning: FinetuneConfig | None, given: Mapping[str, Path], *, split: str) -> dict[str, Path]:
    """The files that were given, or else those of the run that the model lies in."""
    if split not in SPLITS:
        raise BertsmithError(f"--split {split} is not known: {', '.join(SPLITS)}")
    if given or tuning is None:
        return dict(given)
    return {name: Path(path) for name, path in tuning.files.items() if name in (split, "data")}


def open_evaluator(
    asking: EvaluationConfig, model: str | Path, files: Mapping[str, Path], *, device: str = "auto"
) -> Evaluator:
    """Opens the model and builds the task for it; a head that cannot answer the task is an error."""
    folder = find_model_folder(model)
    opened, tokenizer, _ = open_model(folder)
    objective = asking.task.build(files=files).objective
    heads = {name: getattr(head, "config", None) for name, head in opened.objectives.items()}
    head = opened.head_for(pipeline_of(objective))
    if head is None:
        answers = ", ".join(f"{name}{_classes(head)}" for name, head in heads.items()) or "nothing"
        raise DataError(
            f"{folder} answers {answers}; {asking.name} asks {objective}: take a model that was fine-tuned for it"
        )
    task: Task = asking.task.build(files=files, labels=getattr(heads[head], "labels", ()))
    task.objective = head
    positions = opened.encoder.max_positions
    if asking.max_length > positions:
        raise ConfigError(
            f"length={asking.max_length} is more than the {positions} positions of {folder}: make it less"
        )
    place = choose_device(device)
    length = asking.max_length or min(task.max_length, positions)
    return Evaluator(folder, opened.to(place), tokenizer, task, length, place, asking.bf16)


def _classes(head: Any) -> str:
    return f" ({len(head.labels)} labels)" if hasattr(head, "labels") else ""


AT_ONCE = 1024  # examples: bounds the memory, and how long nothing is heard


@dataclass(frozen=True)
class Part:
    """Some examples, what was said of them, how long each is, and of which not everything could be read."""

    examples: list[Example]
    predictions: list[Prediction]
    sizes: list[int]  # tokens of the longest row, with what was cut; of tags, words or characters
    cut: list[bool]
    texts: int  # rows that the model has read


def in_parts(asked: Evaluator, examples: Sequence[Example], *, title: str, quiet: bool) -> Iterator[Part]:
    """Every example in order, each once."""
    total = sum(_letters(example) for example in examples)
    done = 0
    with Progress(title, total=total, quiet=quiet) as progress:
        for begin, end in pairwise(_cuts(examples)):
            found = _part(asked, examples[begin:end])
            done += sum(_letters(example) for example in found.examples)
            progress.update(done, examples=end)
            yield found


def unit_of(task: Task) -> str:
    """What sizes are counted in."""
    if pipeline_of(task.objective) != "token-classification":
        return "tokens"
    return "characters" if getattr(task, "unit", "word") == "character" else "words"


def _letters(example: Example) -> int:
    return sum(len(text) for text in example.texts)


def _cuts(examples: Sequence[Example]) -> list[int]:
    """Where parts begin and end: sentences of one document stay together."""
    found = [0]
    for place in range(1, len(examples)):
        document = getattr(examples[place], "document", "")
        together = document and document == getattr(examples[place - 1], "document", "")
        if place - found[-1] >= AT_ONCE and not together:
            found.append(place)
    return [*found, len(examples)] if len(examples) else found


def _part(asked: Evaluator, examples: Sequence[Example]) -> Part:
    task, tokenizer = asked.task, asked.tokenizer
    questions = task.rows(examples, tokenizer, max_length=asked.length)
    logits = predict_logits(
        asked.model,
        questions,
        task.objective,
        padding_id=tokenizer.padding_id,
        length=asked.length,
        bf16=asked.half,
    )
    if not all(np.isfinite(one).all() for one in logits):
        raise DataError(f"{asked.folder} answers with numbers that are not finite: its weights are of no use")
    predictions = task.decode(examples, questions, logits)
    sizes = _sizes(questions, len(examples))
    if (
        pipeline_of(task.objective) == "token-classification"
    ):  # a row may hold several sentences, and a sentence several rows
        sizes = [len(prediction.value) for prediction in predictions]
    cut = truncated_examples(questions)
    texts = sum(len(question.rows) for question in questions)
    return Part(list(examples), predictions, sizes, [number in cut for number in range(len(examples))], texts)


def _sizes(questions: Sequence[Question], examples: int) -> list[int]:
    """Tokens of each example: of its longest row, to the end of the last window."""
    found = [0] * examples
    for question in questions:
        longest = max(question.start + len(row) + sum(row.truncated) for row in question.rows)
        found[question.example_index] = max(found[question.example_index], longest)
    return found
