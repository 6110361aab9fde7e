"""Scores of labels: accuracy, F1, Matthews correlation, each a function of one table of counts.

Labels are whole numbers or strings. C labels; a table [..., C, C] has a row for each gold label and a column for each
predicted one. The `*_of` functions take any number of tables at once, which is what resampling needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import DataError

Label = int | str
Labels = Sequence[int] | Sequence[str] | NDArray[Any]


@dataclass(frozen=True)
class ConfusionMatrix:
    """How often each label was taken for each."""

    labels: tuple[Label, ...]
    counts: NDArray[np.int64]  # [C, C] gold by predicted


def confusion_matrix(gold: Labels, predicted: Labels, *, labels: Sequence[Label] | None = None) -> ConfusionMatrix:
    """The table of counts. Without `labels`: those that occur on either side, sorted."""
    ours, theirs = _listed(gold, "gold"), _listed(predicted, "predicted")
    if len(ours) != len(theirs):
        raise DataError(f"{len(ours)} gold labels but {len(theirs)} predicted ones: every example needs one of each")
    if not ours:
        raise DataError("there are no labels to score: the set is empty")
    _same_kind([*ours, *theirs, *(labels or ())])
    known = tuple(labels) if labels is not None else tuple(sorted({*ours, *theirs}))
    number = {label: place for place, label in enumerate(known)}
    if len(number) != len(known):
        raise DataError(f"a label stands twice in {list(known)}")
    for label in (*ours, *theirs):
        if label not in number:
            raise DataError(f"label {label!r} is none of {list(known)}")
    size = len(known)
    cells = np.array([number[a] * size + number[b] for a, b in zip(ours, theirs, strict=True)], dtype=np.int64)
    return ConfusionMatrix(labels=known, counts=np.bincount(cells, minlength=size * size).reshape(size, size))


def accuracy(gold: Labels, predicted: Labels) -> float:
    """The share of examples whose label is right."""
    return float(accuracy_from_confusion(confusion_matrix(gold, predicted).counts))


def f1(gold: Labels, predicted: Labels, *, positive: Label = 1) -> float:
    """F1 of one label against all others (MRPC, QQP); 0 where it neither occurs nor is predicted."""
    return label_counts(confusion_matrix(gold, predicted), positive).f1


def macro_f1(gold: Labels, predicted: Labels) -> float:
    """The mean over labels of their F1, over those labels that are gold or predicted at least once."""
    return float(macro_f1_from_confusion(confusion_matrix(gold, predicted).counts))


def micro_f1(gold: Labels, predicted: Labels, *, labels: Sequence[Label] | None = None) -> float:
    """F1 of counts added up over labels: all of them, which is the accuracy, or only those named."""
    parts = scores_by_label(gold, predicted)
    chosen = [parts[label] for label in (parts if labels is None else labels) if label in parts]
    sums = [
        sum(part.correct for part in chosen),
        sum(part.predicted for part in chosen),
        sum(part.gold for part in chosen),
    ]
    return float(f1_from_counts(np.array(sums)))


def matthews(gold: Labels, predicted: Labels) -> float:
    """Matthews' correlation for two or more labels (CoLA; Gorodkin 2004); 0 where either side has one label only."""
    return float(matthews_from_confusion(confusion_matrix(gold, predicted).counts))


def scores_by_label(gold: Labels, predicted: Labels) -> dict[Label, MatchCounts]:
    """Precision, recall and F1 of every label that is gold or predicted at least once."""
    counted = confusion_matrix(gold, predicted)
    return {label: label_counts(counted, label) for label in counted.labels}


def label_counts(counted: ConfusionMatrix, label: Label) -> MatchCounts:
    """The counts of one label against all others."""
    if label not in counted.labels:
        if len(counted.labels) > 1:
            raise DataError(f"label {label!r} is none of {list(counted.labels)}: name the positive label")
        return MatchCounts(correct=0, predicted=0, gold=0)
    place = counted.labels.index(label)
    table = counted.counts
    return MatchCounts(
        correct=int(table[place, place]), predicted=int(table[:, place].sum()), gold=int(table[place, :].sum())
    )


def accuracy_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Accuracy of tables [..., C, C] as [...]."""
    return ratio(np.trace(table, axis1=-2, axis2=-1), table.sum(axis=(-2, -1)))


def label_f1_from_confusion(table: NDArray[np.int64], *, index: int) -> NDArray[np.float64]:
    """F1 of the label at one index of the tables [..., C, C] as [...]."""
    found, gold = table[..., :, index].sum(axis=-1), table[..., index, :].sum(axis=-1)
    return ratio(2 * table[..., index, index], found + gold)


def macro_f1_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Macro F1 of tables [..., C, C] as [...]; labels without a count in a table are left out of its mean."""
    sums = table.sum(axis=-2) + table.sum(axis=-1)
    each = ratio(2 * np.diagonal(table, axis1=-2, axis2=-1), sums)
    return ratio(each.sum(axis=-1), (sums > 0).sum(axis=-1))


def matthews_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Matthews' correlation of tables [..., C, C] as [...]."""
    counts = table.astype(np.float64)
    found, gold, every = counts.sum(axis=-2), counts.sum(axis=-1), counts.sum(axis=(-2, -1))
    correct = np.trace(counts, axis1=-2, axis2=-1)
    together = correct * every - (found * gold).sum(axis=-1)
    spread = (every**2 - (found**2).sum(axis=-1)) * (every**2 - (gold**2).sum(axis=-1))
    return ratio(together, np.sqrt(spread))


def _listed(values: Labels, side: str) -> list[Label]:
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for place, value in enumerate(listed):
        if not isinstance(value, int | str | np.integer):
            raise DataError(
                f"{side} label {place + 1} is {value!r}: labels are whole numbers or strings, one for each example"
            )
    return listed


def _same_kind(values: Iterable[Label]) -> None:
    kinds = {isinstance(value, str): value for value in values}
    if len(kinds) > 1:
        raise DataError(
            f"labels are all numbers or all strings, but {kinds[True]!r} and {kinds[False]!r} occur together"
        )


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """How many were found, how many there are, and how many of both; shares are fractions of 1."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """The share of what was found that is correct."""
        return float(ratio(self.correct, self.predicted))

    @property
    def recall(self) -> float:
        """The share of what there is that was found."""
        return float(ratio(self.correct, self.gold))

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return float(f1_from_counts(np.array([self.correct, self.predicted, self.gold])))


def ratio(part: ArrayLike, whole: ArrayLike) -> NDArray[np.float64]:
    """part / whole, element by element, and 0 where the whole is 0."""
    whole = np.asarray(whole, dtype=np.float64)
    divided = np.asarray(part, dtype=np.float64) / np.where(whole == 0, 1.0, whole)
    return np.where(whole == 0, 0.0, divided)


def f1_from_counts(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of counts [..., 3] in the order correct, found, gold, as [...]."""
    return ratio(2.0 * counts[..., 0], counts[..., 1] + counts[..., 2])
