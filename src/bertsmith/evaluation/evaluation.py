"""`evaluate`: scores and error analysis of a model on a split of a task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import bertsmith.evaluation.tables as tables
from bertsmith.evaluation.ensemble import Ensemble, open_models
from bertsmith.evaluation.evaluator import (
    Chunk,
    EvaluationConfig,
    Evaluator,
    finetune_config_of,
    make_evaluation_config,
    split_examples,
)
from bertsmith.metrics.confidence import ConfidenceInterval
from bertsmith.model_io.run_folder import distinct_names
from bertsmith.reports import html
from bertsmith.tasks.own_metrics import Metrics, named_metrics
from bertsmith.tasks.task import Case, Example, Prediction, Task
from bertsmith.training.finetune_data import check_examples
from bertsmith.training.recipe import FinetuneConfig, task_name

PER_CLASS, BY_LENGTH = "Per-class scores", "Scores by length"  # titles of tables
NOTEBOOK_LABELS = 20  # of the confusion matrix in a notebook
NOT_IN_JSON = ("cases", "predictions", "submission")
NOT_IN_ERRORS = ("example", "correct", "calibrated", "reported")


@dataclass(frozen=True)
class ModelScores:
    """The scores of one model of an ensemble."""

    name: str
    model: str  # folder
    max_length: int
    truncated: int
    scores: dict[str, float] = field(default_factory=dict)
    interval: ConfidenceInterval | None = None  # of the main metric


@dataclass(frozen=True)
class Evaluation:
    """Scores (between 0 and 1) and error analysis of a model; without labels only predictions and submission."""

    model: str
    task: str
    split: str
    objective: str
    main_metric: str
    max_length: int  # tokens of a row
    unit: str  # of the lengths of examples
    probabilities: bool  # whether predictions have one; in regression the confidence is the absolute error
    device: str
    examples: int
    truncated: int  # examples that were truncated
    unknown_word_rate: float  # share of the words of a sample of the examples
    seconds: float  # from texts to predictions
    texts_per_second: float  # rows that the model has read: choices and windows count as several
    detected: dict[str, str]  # facts detected in the files
    scores: dict[str, float] = field(default_factory=dict)
    interval: ConfidenceInterval | None = None  # of the main metric
    baseline: tables.Baseline | None = None
    confusion: tables.Confusion | None = None
    by_label: tuple[tables.LabelScores, ...] = ()
    calibration: tables.Calibration | None = None
    by_length: tuple[tables.LengthBucket, ...] = ()
    models: tuple[ModelScores, ...] = ()  # of an ensemble, the scores of each model alone
    error_count: int = 0  # wrong cases; in tagging, entities
    errors: tuple[Case, ...] = ()  # the most confident errors; in regression the largest
    cases: tuple[Case, ...] = field(default=(), repr=False)
    predictions: tuple[list[Example], list[Prediction]] = field(default=([], []), repr=False)
    submission: dict[str, bytes] = field(default_factory=dict, repr=False)  # the benchmark's files by name

    def __getitem__(self, metric: str) -> float:
        """A score by name: `result["accuracy"]`."""
        if metric not in self.scores:
            raise KeyError(f"{metric}: the metrics are {', '.join(self.scores) or 'none, without labels'}")
        return self.scores[metric]

    def __repr__(self) -> str:
        interval = f" [{format_score(self.interval.low)}, {format_score(self.interval.high)}]" if self.interval else ""
        shown = [f"{name}={format_score(value)}" for name, value in self.scores.items() if " " not in name]
        shown = [f"{one}{interval}" if one.startswith(f"{self.main_metric}=") else one for one in shown]
        return f"Evaluation({', '.join([f'{self.task} {self.split}', f'{self.examples:,} examples', *shown])})"

    def _repr_html_(self) -> str:
        """Scores, scores per class and confusion matrix, for notebooks."""
        shown = {title: table for title, table in score_tables(self).items() if title != BY_LENGTH}
        parts = [f"<h4>{escape(f'{self.task} {self.split}')}</h4>", html.figures(headline(self))]
        parts += [f"<h4>{title}</h4>{html.table(*table)}" for title, table in shown.items()]
        if self.confusion:
            parts.append(f"<h4>Confusion matrix</h4>{_confusion_markup(self.confusion)}")
        return html.notebook("".join(parts))

    def to_dict(self) -> dict[str, Any]:
        """JSON values of everything but the single predictions."""
        values = asdict(replace(self, cases=(), predictions=([], []), submission={}))
        for name in NOT_IN_JSON:
            del values[name]
        for error in values["errors"]:
            for name in NOT_IN_ERRORS:
                del error[name]
        return values


def headline(result: Evaluation) -> dict[str, str]:
    """The figures at the top: main metric with its interval, examples, throughput."""
    figures = {}
    if interval := result.interval:
        figures[metric_title(result.main_metric)] = format_score(result.scores[result.main_metric])
        figures[f"{interval.level:.0%} interval"] = f"{format_score(interval.low)} – {format_score(interval.high)}"
    figures["examples"] = f"{result.examples:,}"
    figures["truncated"] = f"{result.truncated:,}"
    figures["texts / s"] = f"{result.texts_per_second:,.0f}"
    return figures


def metric_title(key: str) -> str:
    """The name of a metric in a table."""
    return key.replace("_", " ")


def format_score(value: float | None) -> str:
    """A score with four digits."""
    return "–" if value is None else f"{value:.4f}"


def confidence_title(result: Evaluation) -> str:
    """The name of `Case.confidence`."""
    return "probability" if result.probabilities else "error"


def score_tables(result: Evaluation) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Headings and rows of each table of scores, by title."""
    found = {}
    if result.baseline:
        others, overall = result.baseline.scores, {key: value for key, value in result.scores.items() if " " not in key}
        single = {one.name: one.scores for one in result.models}
        columns = {"Ensemble" if single else "This model": overall, **single, result.baseline.description: others}
        rows = [[metric_title(key), *(format_score(one.get(key)) for one in columns.values())] for key in overall]
        found["Scores"] = (["Metric", *columns], rows)
    if result.by_label:
        rows = [
            [
                one.label,
                *map(format_score, (one.precision, one.recall, one.f1)),
                f"{one.support:,}",
                f"{one.predicted:,}",
            ]
            for one in result.by_label
        ]
        found[PER_CLASS] = (["Label", "Precision", "Recall", "F1", "Support", "Predicted"], rows)
    if result.by_length:
        rows = [
            [f"{one.shortest:,} – {one.longest:,}", f"{one.examples:,}", f"{one.truncated:,}", format_score(one.score)]
            for one in result.by_length
        ]
        found[BY_LENGTH] = (
            [result.unit.capitalize(), "Examples", "Truncated", metric_title(result.main_metric).capitalize()],
            rows,
        )
    return found


def _confusion_markup(table: tables.Confusion) -> str:
    def cell(row: int, column: int, count: int, share: float) -> str:
        tone = "46, 139, 87" if table.rows[row] == table.columns[column] else "200, 70, 50"
        return f'<td style="background: rgba({tone}, {0.1 + share / 2:.2f})">{count:,}</td>'

    note = f"<p>{omission}</p>" if (omission := table.omission(NOTEBOOK_LABELS)) else ""
    return f'{note}<table class="matrix">{table.markup(NOTEBOOK_LABELS, cell)}</table>'


def evaluate(
    model: str | Path | Sequence[str | Path],
    task: Any,
    files: Mapping[str, str | Path],
    *,
    split: str = "dev",
    max_length: int = 0,
    bf16: bool = False,
    max_errors: int = 100,
    metrics: Metrics = "",
    main_metric: str = "",
    device: str = "auto",
    quiet: bool = True,
) -> Evaluation:
    """Scores a fine-tuned model folder, or the best model of a run folder; of several models, their ensemble.

    `task`: its name, such as `glue/cola`, or its config, such as `classification.Config(text="review")`. `files`: by
    split, or the benchmark's folder under `data`. `max_length`: 0 is that of the run, or the task's default.
    `metrics`: of your own, functions or their names by name; `main_metric`: the one with the confidence interval.
    """
    name = task if isinstance(task, str) else task_name(task)
    models = [model] if isinstance(model, str | Path) else list(model)
    configs = []
    for one in models:
        settings = make_evaluation_config(finetune_config_of(one), name)
        settings = replace(settings, max_length=max_length or settings.max_length, bf16=bf16, max_errors=max_errors)
        settings = settings if isinstance(task, str) else replace(settings, task=task)
        configs.append(replace(settings, main_metric=main_metric or settings.main_metric))
    paths = {key: Path(path) for key, path in files.items()}
    opened = open_models(configs, models, paths, device=device)
    return evaluate_with(opened, configs[0], split, quiet=quiet, metrics=metrics)


def evaluate_with(
    opened: Evaluator | Ensemble,
    settings: EvaluationConfig,
    split: str,
    *,
    quiet: bool,
    run: FinetuneConfig | None = None,
    metrics: Metrics = "",
) -> Evaluation:
    """`evaluate` with an open model or ensemble; `run`: as for `split_examples`.

    `metrics`: of your own, beside those of the config.
    """
    task, members = opened.task, opened.members
    task.use_metrics({**named_metrics(settings.metrics), **named_metrics(metrics)}, settings.main_metric)
    examples = split_examples(task, split, run)
    began = time.perf_counter()
    chunks = list(opened.predict(examples, title="evaluate", quiet=quiet))
    seconds = time.perf_counter() - began
    predictions = [prediction for chunk in chunks for prediction in chunk.predictions]
    lengths = [length for chunk in chunks for length in chunk.lengths]
    truncated = [flag for chunk in chunks for flag in chunk.truncated]
    result = Evaluation(
        model=opened.name,
        task=task.name,
        split=split,
        objective=task.objective,
        main_metric=task.main_metric,
        max_length=max(one.max_length for one in members),
        unit=task.length_unit,
        probabilities=task.has_probabilities,
        device=members[0].device,
        examples=len(examples),
        truncated=sum(truncated),
        unknown_word_rate=max(check_examples(one.tokenizer, examples) for one in members),
        seconds=seconds,
        texts_per_second=sum(chunk.rows for chunk in chunks) / seconds,
        detected=dict(task.detected),
        predictions=(examples, predictions),
        submission=task.submission(examples, predictions),
    )
    labelled = any(example.gold is not None for example in examples)
    if isinstance(opened, Ensemble):
        result = replace(result, models=tuple(_model_scores(opened, examples, chunks, labelled=labelled)))
    if not labelled:
        return result
    return analyze(result, task, lengths=lengths, truncated=truncated, max_errors=settings.max_errors)


def _model_scores(
    ensemble: Ensemble, examples: Sequence[Example], chunks: Sequence[Chunk], *, labelled: bool
) -> Iterator[ModelScores]:
    """Each model of an ensemble, with scores if the examples are labelled."""
    task, names = ensemble.task, distinct_names([member.folder for member in ensemble.members])
    for number, member in enumerate(ensemble.members):
        own = [chunk.by_model[number] for chunk in chunks]
        predictions = [prediction for chunk in own for prediction in chunk.predictions]
        truncated = sum(sum(chunk.truncated) for chunk in own)
        one = ModelScores(names[number], member.name, member.max_length, truncated)
        scores = task.scores(examples, predictions) if labelled else {}
        yield replace(one, scores=scores, interval=task.main_interval(examples, predictions) if labelled else None)


def analyze(
    result: Evaluation, task: Task, *, lengths: Sequence[int], truncated: Sequence[bool], max_errors: int = 100
) -> Evaluation:
    """The evaluation with scores and error analysis; `lengths` and `truncated` by example."""
    examples, predictions = result.predictions
    cases = task.cases(examples, predictions)
    confusion = tables.confusion(task, cases)
    errors = [case for case in cases if not case.correct and case.reported]
    return replace(
        result,
        scores=task.scores(examples, predictions),
        interval=task.main_interval(examples, predictions),
        baseline=tables.baseline(task, examples),
        confusion=confusion,
        by_label=tables.by_label(task, confusion, examples, predictions),
        calibration=tables.calibration(cases) if task.has_probabilities else None,
        by_length=tables.by_length(task, examples, predictions, lengths=lengths, truncated=truncated),
        error_count=len(errors),
        errors=tuple(sorted(errors, key=lambda case: -case.confidence)[:max_errors]),
        cases=tuple(cases),
    )
