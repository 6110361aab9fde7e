"""Tables of an evaluation: what was taken for what, scores by label and by length, calibration, baselines.

Words and figures for an evaluation, the same in the terminal and on the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.evaluation.error_analysis import NO_ANSWER, NOTHING, OTHER_ANSWER, OTHER_BOUNDS, RIGHT_ANSWER, Case
from bertsmith.metrics.classification import MatchCounts
from bertsmith.objectives.objective import pipeline_of
from bertsmith.tasks.task import Example, Prediction, Task
from bertsmith.tasks.text_tasks import ClassificationTask
from bertsmith.tasks.token_classification import TokenClassificationTask

BINS = 10
SHORTEST = 16  # the first stretch of lengths ends there; every other one is twice as long as the one before


@dataclass(frozen=True, slots=True)
class Confusion:
    """How often each row, which is right, was taken for each column."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class LabelScores:
    """One label, or one type of entity, against all others."""

    label: str
    precision: float
    recall: float
    f1: float
    gold: int
    found: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers that a model was about equally sure of."""

    low: float
    high: float
    answers: int
    sure: float  # on average
    right: float  # the share of them


@dataclass(frozen=True, slots=True)
class Calibration:
    """Does a model know how sure it may be? ECE: expected calibration error (Naeini et al. 2015)."""

    ece: float
    bins: tuple[Bin, ...]  # those with an answer in them


@dataclass(frozen=True, slots=True)
class Stretch:
    """Examples of about the same length."""

    least: int
    most: int
    examples: int
    cut: int
    score: float  # the one that decides


@dataclass(frozen=True, slots=True)
class Baseline:
    """What saying always the same would score."""

    says: str
    scores: dict[str, float]


def confusion(task: Task, cases: Sequence[Case]) -> Confusion | None:
    """None where answers are no labels."""
    counted = Counter(case.cell for case in cases if case.cell)
    if isinstance(task, ClassificationTask):
        rows = columns = tuple(task.labels)
    elif isinstance(task, TokenClassificationTask):
        kinds = tuple(dict.fromkeys(label[2:] for label in task.labels if label != "O"))
        rows = columns = (*kinds, OTHER_BOUNDS, NOTHING)
    elif counted:
        rows, columns = ("answer", NO_ANSWER), (RIGHT_ANSWER, OTHER_ANSWER, NO_ANSWER)
    else:
        return None
    return Confusion(rows, columns, tuple(tuple(counted[row, column] for column in columns) for row in rows))


def by_label(task: Task, table: Confusion | None) -> tuple[LabelScores, ...]:
    """Precision, recall and F1 of each label or type; none for other tasks."""
    if table is None or not isinstance(task, ClassificationTask | TokenClassificationTask):
        return ()
    counts = np.array(table.counts)
    found = []
    for place, label in enumerate(table.rows):
        if label in (OTHER_BOUNDS, NOTHING) and isinstance(task, TokenClassificationTask):
            continue
        one = MatchCounts(
            correct=int(counts[place, place]), predicted=int(counts[:, place].sum()), gold=int(counts[place].sum())
        )
        found.append(LabelScores(label, one.precision, one.recall, one.f1, one.gold, one.predicted))
    return tuple(found)


def calibration(task: Task, cases: Sequence[Case]) -> Calibration | None:
    """Ten bins of equal width; None where answers have no probability."""
    chosen = [case for case in cases if case.counts]
    if pipeline_of(task.objective) == "text-regression" or not chosen:
        return None
    sure = np.array([case.sure for case in chosen])
    right = np.array([case.right for case in chosen])
    place = np.clip(np.ceil(sure * BINS).astype(int) - 1, 0, BINS - 1)  # a border belongs to the bin below it
    bins = []
    for number in range(BINS):
        inside = place == number
        if inside.any():
            means = float(sure[inside].mean()), float(right[inside].mean())
            bins.append(Bin(number / BINS, (number + 1) / BINS, int(inside.sum()), *means))
    ece = sum(one.answers * abs(one.sure - one.right) for one in bins) / len(chosen)
    return Calibration(float(ece), tuple(bins))


def by_length(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    *,
    sizes: Sequence[int],
    cut: Sequence[bool],
) -> tuple[Stretch, ...]:
    """The score that decides, for examples of each length."""
    edges = [0, SHORTEST]
    while edges[-1] < max(sizes):
        edges.append(edges[-1] * 2)
    places = np.searchsorted(edges, sizes, "left")
    found = []
    for number in range(len(edges)):
        chosen = np.flatnonzero(places == number).tolist()
        if chosen:
            score = task.score([examples[n] for n in chosen], [predictions[n] for n in chosen])[task.main_metric]
            least = edges[number - 1] + 1 if number else 0
            found.append(Stretch(least, edges[number], len(chosen), sum(cut[n] for n in chosen), score))
    return tuple(found)


def baselines(task: Task, examples: Sequence[Example]) -> tuple[Baseline, ...]:
    """What needs no model at all: the most frequent label, the mean, the first choice, no answer, no entity."""
    golds, pipeline = [example.gold for example in examples], pipeline_of(task.objective)
    if pipeline == "text-classification":
        most = Counter(golds).most_common(1)[0][0]
        says, said = f"always {most}", [Prediction(most)] * len(golds)
    elif pipeline == "text-regression":
        mean = float(np.mean(golds))
        says, said = f"always the mean, {mean:.3g}", [Prediction(mean)] * len(golds)
    elif pipeline == "multiple-choice":
        says, said = "always the first choice", [Prediction(0)] * len(golds)
    elif pipeline == "question-answering":
        nothing = Prediction("", detail={"answers": [], "null_odds": 0.0})
        says, said = "never an answer", [nothing] * len(golds)
    else:
        says, said = "never an entity", [Prediction(("O",) * len(gold)) for gold in golds]
    return (Baseline(says, task.score(examples, said)),)


def metric_title(key: str) -> str:
    """A score's name for people."""
    return key.replace("_", " ")


def format_score(value: float | None) -> str:
    """A score with four digits."""
    return "–" if value is None else f"{value:.4f}"


def sure_title(objective: str) -> str:
    """What the number beside an answer is."""
    return "off by" if pipeline_of(objective) == "text-regression" else "probability"


def labels_shown(table: Confusion, most: int) -> tuple[list[int], list[int]]:
    """The numbers of the rows and columns to show: all but empty rows of no label, or the most frequent ones."""
    rows, columns = list(range(len(table.rows))), list(range(len(table.columns)))
    if max(len(rows), len(columns)) > most and table.rows == table.columns:
        seen = [sum(table.counts[row]) + sum(line[row] for line in table.counts) for row in rows]
        rows = columns = sorted(sorted(rows, key=lambda row: -seen[row])[:most])
    return [row for row in rows if table.rows[row] not in (OTHER_BOUNDS, NOTHING) or any(table.counts[row])], columns


def most_confused(table: Confusion, most: int) -> list[tuple[str, str, int]]:
    """What was taken for something else most often: right, said, how often."""
    found = [
        (row, column, table.counts[y][x])
        for y, row in enumerate(table.rows)
        for x, column in enumerate(table.columns)
        if row != column and table.counts[y][x]
    ]
    return sorted(found, key=lambda one: -one[2])[:most]
