"""`load`, `evaluate`, `open_run`, `list_recipes` and `list_tasks`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bertsmith.api.settings import PathLike, python_errors
from bertsmith.api.training import Examples, model_folder, save_examples

if TYPE_CHECKING:
    from bertsmith.evaluation.evaluation import Evaluation
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports.run import Run
    from bertsmith.tasks.task import Case, Example

T = TypeVar("T", "Case", "Example")
TASKS = {  # by the pipeline of a head
    "text-classification": "classification",
    "multi-label-classification": "multi_label",
    "text-regression": "regression",
    "token-classification": "tagging",
    "question-answering": "qa",
    "multiple-choice": "choice",
}


@python_errors
def load(
    folder: PathLike,
    *,
    device: str = "auto",
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
    head: str | None = None,
    ignore_heads: bool = False,
    tokenizer: PathLike | None = None,
) -> Predictor:
    """Loads a model.

    Args:
        folder: A model folder written by bertsmith, transformers or sentence-transformers, or a run, of which the best
            model is loaded.
        device: `auto`, `cpu`, `cuda` or `mps`.
        precision: Data type of the weight matrices.
        head: The only head to load: that of one of several tasks, such as `classify-cola`, or in a folder whose class
            bertsmith does not know, such as `classify`.
        ignore_heads: Load the encoder alone.
        tokenizer: The folder of the tokenizer; by default the model folder.

    Example:
        >>> import bertsmith as bs
        >>> model = bs.load("run")
        >>> model.encode(["iron is hot", "it is cold"]).shape
        (2, 32)
    """
    from bertsmith.inference.predictor import Predictor

    opening: dict[str, Any] = {"head": head, "ignore_heads": ignore_heads, "tokenizer": tokenizer}
    return Predictor.open(model_folder(folder), device=device, precision=precision, **opening)


@python_errors
def evaluate(
    model: PathLike | Predictor | Sequence[PathLike | Predictor],
    data: Examples | None = None,
    *,
    task: str = "",
    task_settings: Mapping[str, Any] | None = None,
    head: str | None = None,
    split: str = "",
    output: PathLike | None = None,
    max_length: int = 0,
    metrics: Mapping[str, Callable[[list[Any], list[Any]], float]] | None = None,
    device: str = "auto",
    quiet: bool = True,
) -> Evaluation:
    """Scores a fine-tuned model, with confidence interval, baseline, confusion matrix, calibration and errors.

    Args:
        model: A fine-tuned model folder, its run, or a predictor; or several models of one task, whose probabilities
            are averaged.
        data: Labelled examples: a file, the folder of a benchmark, or rows in memory as in `finetune`. By default the
            dev examples of the run.
        task: The task, such as `classification`; by default that of the run, or the one for the model's head.
        task_settings: Settings of the task, such as `{"text": "review"}`; by default those of the run.
        head: The head to evaluate, such as `classify-cola`, of a model with several tasks.
        split: Which examples of a folder, or of the run: `train`, `dev` (default) or `test`.
        output: Folder for scores, predictions and an HTML page.
        max_length: The maximum length of a row in tokens; by default as in the run.
        metrics: Metrics of your own by name: functions of true and predicted values.
        device: `auto`, `cpu`, `cuda` or `mps`.
        quiet: Do not show progress.

    Example:
        >>> import bertsmith as bs
        >>> scores = bs.evaluate("reviews", [("good iron", "positive"), ("bad iron", "negative")])
        >>> 0 <= scores["accuracy"] <= 1
        True
    """
    from bertsmith import config
    from bertsmith.errors import BertsmithError, DataError
    from bertsmith.evaluation import ensemble, evaluator
    from bertsmith.evaluation.evaluation import evaluate_with
    from bertsmith.evaluation.output_files import write_evaluation
    from bertsmith.inference.predictor import Predictor

    several = [model] if isinstance(model, str | os.PathLike | Predictor) else list(model)
    if not several:
        raise BertsmithError("an ensemble needs at least one model")
    folders = [model_folder(one) for one in several]
    runs = [evaluator.finetune_config_of(folder, head) for folder in folders]
    changes = {"task": task_settings or {}, **({"max_length": max_length} if max_length else {})}
    settings = [
        config.update(evaluator.make_evaluation_config(run, task or ("" if run else _task_for(folder))), changes)
        for folder, run in zip(folders, runs, strict=True)
    ]
    with _files(data, settings[0].task, split) as (files, split):
        files = ensemble.shared_files(folders, runs, files, split=split)
        if data is None and not files:
            raise DataError(f"{folders[0]} is not in a run with {split} examples: pass labelled examples as data")
        opened = ensemble.open_models(settings, folders, files, device=device, head=head)
        run = runs[0] if data is None else None
        result = evaluate_with(opened, settings[0], split, quiet=quiet, run=run, metrics=metrics or {})
        if not (data is None or isinstance(data, str | os.PathLike)):
            result = _with_row_numbers(result)
    if not result.scores:
        raise DataError(f"{split} has no labels: pass labelled examples, or use predict")
    if output is not None:
        write_evaluation(result, Path(output))
    return result


def _with_row_numbers(result: Evaluation) -> Evaluation:
    """The evaluation of rows in memory, whose sources are rows instead of lines of a file."""

    def renamed(items: Iterable[T]) -> list[T]:
        return [replace(item, source=f"row {item.source.rpartition(':')[2]}") for item in items]

    examples, predictions = result.predictions
    cases, errors = tuple(renamed(result.cases)), tuple(renamed(result.errors))
    return replace(result, cases=cases, errors=errors, predictions=(renamed(examples), predictions))


@contextmanager
def _files(data: Examples | None, task: Any, split: str) -> Iterator[tuple[dict[str, Path], str]]:
    """The files of the data, and the split; rows in memory are in a temporary file, which errors do not name."""
    from bertsmith.errors import DataError

    if data is None:
        yield {}, split or "dev"
    elif isinstance(data, str | os.PathLike):
        folder = Path(data).is_dir()
        split = split or ("dev" if folder else "test")
        yield {"data" if folder else split: Path(data)}, split
    else:
        with tempfile.TemporaryDirectory() as folder_name:
            path = save_examples(data, task, "data", Path(folder_name, "rows"))
            try:
                yield {"test": path}, "test"
            except DataError as error:
                message = re.sub(re.escape(str(path)) + r":(\d+)", r"row \1", str(error))
                raise DataError(message.replace(str(path), "the data")) from None


def _task_for(folder: Path) -> str:
    """The task of the model's head, for models that are not in a run."""
    from bertsmith.errors import ConfigError
    from bertsmith.model_io.model_folder import open_model
    from bertsmith.objectives.objective import objective_class

    model, _, _ = open_model(folder)
    tasks = [TASKS[pipeline] for name in model.objectives if (pipeline := objective_class(name).pipeline) in TASKS]
    if len(tasks) != 1:
        raise ConfigError(f"the task of {folder} is unknown: pass task=..., such as classification")
    return tasks[0]


@python_errors
def open_run(folder: PathLike) -> Run:
    """Opens a training run: its models, scores and history.

    Args:
        folder: The output folder of `pretrain` or `finetune`, or of the commands.

    Example:
        >>> import bertsmith as bs
        >>> bs.open_run("run").state
        'finished'
    """
    from bertsmith.reports.run import Run

    return Run(folder)


def list_recipes() -> dict[str, str]:
    """The recipes for `pretrain`, then those for `finetune` (as its task), each with one line about it.

    Example:
        >>> import bertsmith as bs
        >>> "bert/base" in bs.list_recipes()
        True
    """
    from bertsmith import recipes

    return {name: recipes.about(name) for name in [*recipes.names(), *recipes.finetuning_names()]}


def list_tasks() -> list[str]:
    """The tasks for `finetune`; benchmarks also take the name of a member, such as `glue/cola`.

    Example:
        >>> import bertsmith as bs
        >>> "classification" in bs.list_tasks()
        True
    """
    from bertsmith import config

    return config.kinds("bertsmith.tasks")
