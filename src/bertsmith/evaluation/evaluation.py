"""`evaluate`: a model's answers to a split of a task, scored and taken apart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.evaluation.error_analysis import Case, cases_of
from bertsmith.evaluation.evaluator import (
    EvaluationConfig,
    find_model_folder,
    finetune_config_of,
    in_parts,
    make_evaluation_config,
    open_evaluator,
    unit_of,
)
from bertsmith.evaluation.tables import (
    Baseline,
    Calibration,
    Confusion,
    LabelScores,
    Stretch,
    baselines,
    by_label,
    by_length,
    calibration,
    confusion,
    format_score,
    metric_title,
)
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.tasks.task import Example, Prediction, Task
from bertsmith.training.recipe import task_name


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some examples, and where it errs. Scores are shares of 1.

    Where nobody knows the right answers there are only predictions and the files of `submission`.
    """

    model: str
    task: str
    split: str
    objective: str
    main_metric: str  # the score that decides
    max_length: int  # places of a row
    unit: str  # what lengths of examples are counted in
    device: str
    examples: int
    truncated: int  # examples of which not everything could be read
    seconds: float  # from texts to predictions
    texts_per_second: float  # rows that the model has read: choices and windows are several
    detected: dict[str, str]  # what was guessed of the files
    scores: dict[str, float] = field(default_factory=dict)
    interval: ConfidenceInterval | None = None  # of the score that decides
    baselines: tuple[Baseline, ...] = ()
    confusion: Confusion | None = None
    by_label: tuple[LabelScores, ...] = ()
    calibration: Calibration | None = None
    by_length: tuple[Stretch, ...] = ()
    wrong: int = 0  # how many cases are wrong, of tags entities
    errors: tuple[Case, ...] = ()  # the most confident wrong answers; of numbers, those furthest off
    cases: tuple[Case, ...] = field(default=(), repr=False)  # all of them
    answered: tuple[list[Example], list[Prediction]] = field(default=([], []), repr=False)
    submission: dict[str, bytes] = field(default_factory=dict, repr=False)  # the benchmark's own files, by name

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: everything but the single predictions."""
        small = replace(self, cases=(), answered=([], []), submission={})
        found = asdict(small)
        for name in ("cases", "answered", "submission"):
            del found[name]
        for error in found["errors"]:
            for name in ("example", "right", "counts", "told"):
                del error[name]
        return found


def evaluate(
    model: str | Path,
    task: Any,
    files: Mapping[str, str | Path],
    *,
    split: str = "dev",
    length: int = 0,
    half: bool = False,
    errors: int = 100,
    device: str = "auto",
    quiet: bool = True,
) -> Evaluation:
    """Scores a fine-tuned model folder, or the best model of a run folder.

    `task`: its name, such as `glue/cola`, or its settings, such as `classification.Config(text="review")`. `files`: by
    split, or the benchmark's folder under `data`. `length`: 0 is that of the run, or the task's own.
    """
    tuning = finetune_config_of(find_model_folder(model))
    named = task if isinstance(task, str) else task_name(task)
    asking = make_evaluation_config(tuning, named)
    asking = replace(asking, max_length=length or asking.max_length, bf16=half, errors=errors)
    if not isinstance(task, str):
        asking = replace(asking, task=task)
    return evaluate_with(asking, model, {name: Path(path) for name, path in files.items()}, split, device, quiet=quiet)


def evaluate_with(
    asking: EvaluationConfig, model: str | Path, files: Mapping[str, Path], split: str, device: str, *, quiet: bool
) -> Evaluation:
    """The same with all settings in one."""
    asked = open_evaluator(asking, model, files, device=device)
    if not asked.task.has_split(split):
        raise DataError(f"{asked.task.name} has no {split} file: pass --data DIR, or --file FILE with --split {split}")
    examples = asked.task.examples(split)
    if not examples:
        raise DataError(f"{asked.task.name}: there is no example in {split}")
    began = time.perf_counter()
    parts = list(in_parts(asked, examples, title="evaluate", quiet=quiet))
    seconds = time.perf_counter() - began
    predictions = [prediction for part in parts for prediction in part.predictions]
    sizes, cut = [size for part in parts for size in part.sizes], [lost for part in parts for lost in part.cut]
    found = Evaluation(
        model=str(asked.folder),
        task=asked.task.name,
        split=split,
        objective=asked.task.objective,
        main_metric=asked.task.main_metric,
        max_length=asked.length,
        unit=unit_of(asked.task),
        device=asked.device,
        examples=len(examples),
        truncated=sum(cut),
        seconds=seconds,
        texts_per_second=sum(part.texts for part in parts) / seconds,
        detected=dict(asked.task.detected),
        answered=(examples, predictions),
        submission=asked.task.submission(examples, predictions),
    )
    if all(example.gold is None for example in examples):
        return found
    return analyze(found, asked.task, sizes=sizes, cut=cut, most=asking.errors)


def analyze(found: Evaluation, task: Task, *, sizes: Sequence[int], cut: Sequence[bool], most: int = 100) -> Evaluation:
    """The evaluation with everything that right answers show; `sizes` and `cut` are by example."""
    examples, predictions = found.answered
    scores = task.score(examples, predictions)
    cases = cases_of(task, examples, predictions)
    table = confusion(task, cases)
    wrong = [case for case in cases if not case.right and case.told]
    return replace(
        found,
        scores=scores,
        interval=task.interval(examples, predictions),
        baselines=baselines(task, examples),
        confusion=table,
        by_label=by_label(task, table),
        calibration=calibration(task, cases),
        by_length=by_length(task, examples, predictions, sizes=sizes, cut=cut),
        wrong=len(wrong),
        errors=tuple(sorted(wrong, key=lambda case: -case.sure)[:most]),
        cases=tuple(cases),
    )


def headline(evaluation: Evaluation) -> dict[str, str]:
    """The figures at the top of a report: main metric with its interval, examples, throughput."""
    figures = {}
    if interval := evaluation.interval:
        figures[metric_title(evaluation.main_metric)] = format_score(evaluation.scores[evaluation.main_metric])
        figures[f"{interval.level:.0%} interval"] = f"{format_score(interval.low)} – {format_score(interval.high)}"
    figures["examples"] = f"{evaluation.examples:,}"
    figures["truncated"] = f"{evaluation.truncated:,}"
    figures["texts / s"] = f"{evaluation.texts_per_second:,.0f}"
    return figures
