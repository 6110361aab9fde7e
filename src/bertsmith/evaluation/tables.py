"""Tables of an evaluation: confusion matrix, scores by label and by length, calibration, baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from bertsmith.errors import MetricError
from bertsmith.metrics.classification import MatchCounts
from bertsmith.tasks.entity_cases import NOTHING, OTHER_BOUNDS
from bertsmith.tasks.task import Case, Example, Prediction, Task

BINS = 10
EMPTY = '<td class="empty">·</td>'  # of a confusion matrix
FIRST_BUCKET = 16  # upper bound of the first length bucket; each further bucket doubles it


@dataclass(frozen=True, slots=True)
class Confusion:
    """Confusion matrix: counts of predicted labels (columns) for true labels (rows)."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    def shown(self, most: int) -> tuple[list[int], list[int]]:
        """Indices of rows and columns to show: all, or the most frequent labels, without empty rows of no label."""
        rows, columns = list(range(len(self.rows))), list(range(len(self.columns)))
        if max(len(rows), len(columns)) > most and self.rows == self.columns:
            seen = [sum(self.counts[row]) + sum(line[row] for line in self.counts) for row in rows]
            rows = columns = sorted(sorted(rows, key=lambda row: -seen[row])[:most])
        rows = [row for row in rows if self.rows[row] not in (OTHER_BOUNDS, NOTHING) or any(self.counts[row])]
        return rows, columns

    def omission(self, most: int) -> str:
        """A sentence about the labels that `shown` leaves out; "" if there are none."""
        rest = len(self.columns) - len(self.shown(most)[1])
        return f" The {rest} rarest labels are left out." if rest else ""

    def markup(self, most: int, cell: Callable[[int, int, int, float], str]) -> str:
        """Head and body as HTML; `cell` renders a count, from row, column, count and share of the row."""
        rows, columns = self.shown(most)
        head = "".join(f'<th scope="col">{escape(self.columns[column])}</th>' for column in columns)
        body = []
        for row in rows:
            counts, total = self.counts[row], max(sum(self.counts[row]), 1)
            cells = (cell(row, at, counts[at], counts[at] / total) if counts[at] else EMPTY for at in columns)
            body.append(f'<tr><th scope="row">{escape(self.rows[row])}</th>{"".join(cells)}</tr>')
        return (
            f'<thead><tr><td></td><th class="axis" colspan="{len(columns)}">predicted</th></tr>'
            f'<tr><th class="axis" scope="col">true</th>{head}</tr></thead><tbody>{"".join(body)}</tbody>'
        )

    def most_confused(self, most: int) -> list[tuple[str, str, int]]:
        """The most frequent confusions: true label, predicted label, count."""
        confused = [
            (row, column, self.counts[y][x])
            for y, row in enumerate(self.rows)
            for x, column in enumerate(self.columns)
            if row != column and self.counts[y][x]
        ]
        return sorted(confused, key=lambda one: -one[2])[:most]


@dataclass(frozen=True, slots=True)
class LabelScores:
    """One label, or one entity type, against all others."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int  # true labels
    predicted: int


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Predictions of similar confidence."""

    low: float
    high: float
    count: int
    confidence: float  # mean
    accuracy: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Expected calibration error (Naeini et al. 2015) and the nonempty bins."""

    ece: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Examples of similar length."""

    shortest: int
    longest: int
    examples: int
    truncated: int
    score: float  # the main metric


@dataclass(frozen=True, slots=True)
class Baseline:
    """The scores of a constant prediction."""

    description: str
    scores: dict[str, float]


def confusion(task: Task, cases: Sequence[Case]) -> Confusion | None:
    """The confusion matrix of a task that has one."""
    labels = task.confusion_labels()
    if labels is None:
        return None
    counted = Counter(case.cell for case in cases if case.cell)
    rows, columns = labels
    return Confusion(rows, columns, tuple(tuple(counted[row, column] for column in columns) for row in rows))


def by_label(
    task: Task, table: Confusion | None, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> tuple[LabelScores, ...]:
    """Precision, recall and F1 of each label or entity type: of the task, or from a square confusion matrix."""
    matches = task.label_matches(examples, predictions)
    if table is not None and table.rows == table.columns:
        counts = np.array(table.counts)
        for index, label in enumerate(table.rows):
            if label not in task.pseudo_labels:
                sums = counts[:, index].sum(), counts[index].sum()
                matches[label] = MatchCounts(int(counts[index, index]), *map(int, sums))
    return tuple(
        LabelScores(label, one.precision, one.recall, one.f1, one.gold, one.predicted) for label, one in matches.items()
    )


def calibration(cases: Sequence[Case]) -> Calibration | None:
    """Ten bins of equal width; None without calibrated cases."""
    chosen = [case for case in cases if case.calibrated]
    if not chosen:
        return None
    confidence = np.array([case.confidence for case in chosen])
    correct = np.array([case.correct for case in chosen])
    bin_of = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)  # a border belongs to the bin below it
    bins = []
    for number in range(BINS):
        inside = bin_of == number
        if inside.any():
            means = float(confidence[inside].mean()), float(correct[inside].mean())
            bins.append(CalibrationBin(number / BINS, (number + 1) / BINS, int(inside.sum()), *means))
    ece = sum(one.count * abs(one.confidence - one.accuracy) for one in bins) / len(chosen)
    return Calibration(float(ece), tuple(bins))


def by_length(
    task: Task,
    examples: Sequence[Example],
    predictions: Sequence[Prediction],
    *,
    lengths: Sequence[int],
    truncated: Sequence[bool],
) -> tuple[LengthBucket, ...]:
    """The main metric by length of the examples."""
    edges = [0, FIRST_BUCKET]
    while edges[-1] < max(lengths):
        edges.append(edges[-1] * 2)
    bucket_of = np.searchsorted(edges, lengths, "left")
    buckets = []
    for number in range(len(edges)):
        chosen = np.flatnonzero(bucket_of == number).tolist()
        if chosen:
            try:
                scores = task.scores([examples[n] for n in chosen], [predictions[n] for n in chosen])
            except MetricError:  # a metric of the user's own may need more examples
                continue
            shortest = edges[number - 1] + 1 if number else 0
            count = sum(truncated[n] for n in chosen)
            buckets.append(LengthBucket(shortest, edges[number], len(chosen), count, scores[task.main_metric]))
    return tuple(buckets)


def baseline(task: Task, examples: Sequence[Example]) -> Baseline:
    """The scores of the task's baseline without a model."""
    description, predictions = task.baseline(examples)
    try:
        return Baseline(description, task.scores(examples, predictions))
    except MetricError:
        return Baseline(description, task.score(examples, predictions))
