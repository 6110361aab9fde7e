"""`Evaluator`: a fine-tuned model with its task, and its predictions in chunks of examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, read_heads
from bertsmith.model_io.run_folder import RECIPE, find_model_folder
from bertsmith.objectives.objective import Pipeline, objective_class
from bertsmith.system.devices import choose_device
from bertsmith.system.progress import Progress
from bertsmith.system.suggestions import OtherNames
from bertsmith.tasks.task import SPLITS, Example, Features, Prediction, Task, truncated_examples
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.training.finetune_data import dev_examples, predict_logits, train_and_dev
from bertsmith.training.recipe import (
    EVALUATION_NAMES,
    FILES,
    TASKS,
    FinetuneConfig,
    find_task,
    read_finetune_config,
    task_name,
)

CHUNK = 1024  # examples: bounds the memory and the interval between progress updates


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Settings of an evaluation."""

    other_names: ClassVar[OtherNames] = EVALUATION_NAMES
    task: Annotated[Any, Registry(TASKS)]
    max_length: int = 0  # tokens of a row; 0: the task's default, at most the model's positions
    bf16: bool = False  # compute in bfloat16
    max_errors: int = 100  # errors in the report, the most confident ones first
    metrics: str | dict[str, str] = ""  # of your own, as module:function; several with commas, or by name
    main_metric: str = ""  # the metric with the confidence interval; empty: the task's

    def __post_init__(self) -> None:
        if self.max_length < 0 or self.max_errors < 0:
            raise ConfigError("max_length and max_errors must not be negative")


@dataclass(frozen=True)
class Chunk:
    """Examples with their predictions and lengths."""

    examples: list[Example]
    predictions: list[Prediction]
    lengths: list[int]  # before truncation, in the task's `length_unit`
    truncated: list[bool]
    rows: int  # rows that the model has read
    by_model: tuple[Chunk, ...] = ()  # of an ensemble: those of each model


@dataclass(frozen=True)
class Evaluator:
    """A model on its device, and a task for which it has a head."""

    folder: Path
    model: Model
    tokenizer: Tokenizer
    task: Task
    max_length: int
    device: str
    bf16: bool

    @property
    def members(self) -> tuple[Evaluator, ...]:
        """The model itself, as in an ensemble of one."""
        return (self,)

    @property
    def name(self) -> str:
        """The model folder."""
        return str(self.folder)

    def predict(self, examples: Sequence[Example], *, title: str, quiet: bool) -> Iterator[Chunk]:
        """The predictions for all examples in order."""
        return in_chunks(self.chunk, examples, title=title, quiet=quiet)

    def chunk(self, examples: Sequence[Example]) -> Chunk:
        """The predictions for some examples."""
        outputs, features = self.outputs(examples)
        return chunk_of(self.task, examples, outputs, features)

    def outputs(self, examples: Sequence[Example]) -> tuple[list[Any], list[Features]]:
        """The output for each example (`Task.outputs`), and the features that the model has read."""
        task, padding_id, length = self.task, self.tokenizer.padding_id, self.max_length
        features = task.rows(examples, self.tokenizer, max_length=length)
        logits = predict_logits(
            self.model, features, task.objective, padding_id=padding_id, length=length, bf16=self.bf16
        )
        if not all(np.isfinite(one).all() for one in logits):
            raise DataError(f"{self.folder}: the logits are not finite: use an earlier checkpoint")
        return task.outputs(examples, features, logits), features

    def truncation_advice(self) -> str:
        """The tokens of a row, and the setting for longer ones."""
        length, positions = self.max_length, self.model.encoder.max_positions
        return f"{length} tokens" + (f": set max_length={min(2 * length, positions)}" if length < positions else "")


def in_chunks(
    predict: Callable[[Sequence[Example]], Chunk], examples: Sequence[Example], *, title: str, quiet: bool
) -> Iterator[Chunk]:
    """The predictions for all examples in order, with a progress bar."""
    done, total = 0, sum(_characters(example) for example in examples)
    with Progress(title, total=total, quiet=quiet) as progress:
        for begin, end in pairwise(_boundaries(examples)):
            chunk = predict(examples[begin:end])
            done += sum(_characters(example) for example in chunk.examples)
            progress.update(done, examples=end)
            yield chunk


def chunk_of(task: Task, examples: Sequence[Example], outputs: Sequence[Any], features: Sequence[Features]) -> Chunk:
    """The predictions from the outputs for some examples; lengths and truncation are those of the features."""
    predictions = task.predictions(examples, outputs)
    lengths = _token_counts(features, len(examples))
    if task.length_unit != "tokens":  # a row may contain several sentences, and a sentence may span several rows
        lengths = [len(prediction.value) for prediction in predictions]
    truncated = truncated_examples(features)
    flags = [index in truncated for index in range(len(examples))]
    return Chunk(list(examples), predictions, lengths, flags, sum(len(one.rows) for one in features))


def finetune_config_of(model: str | Path, head: str | None = None) -> FinetuneConfig | None:
    """The config of the fine-tuning run or sweep that contains a model; None if there is none.

    `head`: of a run with several tasks, the one whose task is meant.
    """
    run = find_model_folder(model).resolve().parent
    path = next((path for path in (run / RECIPE, *sorted(run.glob(f"lr-*/{RECIPE}"))) if path.is_file()), None)
    if path is None:
        return None
    try:
        fine_tuned = "task" in json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} is not a recipe: {error}") from error
    if not fine_tuned:
        return None
    found = config.read_file(FinetuneConfig, path)
    if not hasattr(found.task, "tasks"):
        return found
    if head not in (known := read_heads(model)):
        raise ConfigError(f"{model} has several heads: choose one, {' or '.join(f'--head {name}' for name in known)}")
    return found.for_head(head)


def make_evaluation_config(run: FinetuneConfig | None, task: str, changes: Iterable[str] = ()) -> EvaluationConfig:
    """The config from the command line. If the task is that of the model's run, the run's settings apply."""
    if task.endswith(FILES):
        run, task = read_finetune_config(Path(task), ""), ""
    if run is not None and task in ("", run.name):
        own: dict[str, Any] = {"metrics": run.metrics, "main_metric": run.main_metric}
        settings = EvaluationConfig(task=run.task, max_length=run.max_length, **own)
    elif task:
        settings = EvaluationConfig(task=find_task(task))
    else:
        raise ConfigError("this model is not in a fine-tuning run that names its task: pass --task, such as glue/cola")
    return config.override(settings, changes)


def evaluation_files(run: FinetuneConfig | None, given: Mapping[str, Path], *, split: str) -> dict[str, Path]:
    """The given files, or those of the model's run."""
    if split not in SPLITS:
        raise BertsmithError(f"--split {split} must be one of {', '.join(SPLITS)}")
    if given or run is None:
        return dict(given)
    names = {split, "data"} | ({"train"} if run.dev_fraction and split == "dev" else set())
    files = {name: Path(path) for name, path in run.files.items() if name in names}
    for name, path in files.items():
        if not path.exists():
            advice = f"pass {_option_of(split)}, or run this command in the folder where the run was started"
            raise DataError(f"{path}, the {name} data of the run, does not exist here: {advice}")
    return files


def _option_of(split: str) -> str:
    return "--dev FILE" if split == "dev" else f"--file FILE --split {split}"


def split_examples(task: Task, split: str, run: FinetuneConfig | None = None) -> list[Example]:
    """The examples of a split. `run`: the run whose files these are; its dev may be a fraction of its train."""
    if run is not None and run.dev_fraction and split != "test" and not task.has_split("dev"):
        return dev_examples(run, task) if split == "dev" else train_and_dev(run, task)[0]
    if not task.has_split(split):
        found = f"{task.name} has no {split} file" if run is None else f"this run has no {split} examples"
        raise DataError(
            f"{found}: pass {_option_of(split)}, or --data DIR{'' if run is None else ', or another --split'}"
        )
    if not (examples := task.examples(split)):
        raise DataError(f"{task.name}: {split} has no examples")
    return examples


def open_evaluator(
    settings: EvaluationConfig, model: str | Path, files: Mapping[str, Path], *, device: str = "auto", **opening: Any
) -> Evaluator:
    """Loads the model and builds the task with its labels; a DataError if the model has no head for the task."""
    folder = find_model_folder(model)
    loaded, tokenizer, _ = open_model(folder, **opening)
    pipeline = _pipeline(settings, files)
    if loaded.only_head_for(pipeline) is None:
        heads = ", ".join(map(_described, loaded.objectives.values())) or "none"
        missing = f"{folder} has no head for {task_name(settings.task)} ({pipeline})"
        raise DataError(f"{missing}; its heads: {heads}: use a model fine-tuned for it")
    task = build_task(settings, loaded, files)
    positions = loaded.encoder.max_positions
    if settings.max_length > positions:
        found = f"max_length={settings.max_length} exceeds the {positions} positions of {folder}"
        raise ConfigError(f"{found}: write max_length={positions}")
    max_length, device = settings.max_length or min(task.max_length, positions), choose_device(device)
    return Evaluator(folder, loaded.to(device), tokenizer, task, max_length, device, settings.bf16)


def build_task(settings: EvaluationConfig, model: Model, files: Mapping[str, Path]) -> Task:
    """The task with the labels of the model's head for it."""
    head = model.only_head_for(_pipeline(settings, files))
    assert head is not None
    task: Task = settings.task.build(files=files, labels=_labels(model.objectives[head]) or ())
    task.objective = head
    task.use_head_config(getattr(model.objectives[head], "config", None))
    task.use_head(model.objectives[head])
    return task


def _pipeline(settings: EvaluationConfig, files: Mapping[str, Path]) -> Pipeline:
    """The pipeline of the task's objective."""
    return objective_class(settings.task.build(files=files).objective).pipeline


def _labels(head: Any) -> tuple[str, ...] | None:
    """The label names of a head that has them."""
    return getattr(getattr(head, "config", None), "labels", None)


def _described(head: Any) -> str:
    labels = _labels(head)
    return f"{head.name} ({len(labels)} labels)" if labels is not None else str(head.name)


def _characters(example: Example) -> int:
    return sum(len(text) for text in example.texts)


def _boundaries(examples: Sequence[Example]) -> list[int]:
    """Boundaries of chunks; the sentences of one document stay together."""
    bounds = [0]
    for index in range(1, len(examples)):
        document = getattr(examples[index], "document", "")
        same = document and document == getattr(examples[index - 1], "document", "")
        if index - bounds[-1] >= CHUNK and not same:
            bounds.append(index)
    return [*bounds, len(examples)] if len(examples) else bounds


def _token_counts(features: Sequence[Features], examples: int) -> list[int]:
    """Tokens of each example: of its longest row before truncation, up to the end of the last window."""
    counts = [0] * examples
    for one in features:
        longest = max(one.start + len(row) + sum(row.truncated) for row in one.rows)
        counts[one.example_index] = max(counts[one.example_index], longest)
    return counts
