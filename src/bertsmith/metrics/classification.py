"""Classification metrics, each a function of confusion matrices [..., C, C] of C labels: gold rows, predicted columns.

Labels are integers or strings. The `*_from_confusion` functions take any number of matrices at once, for resampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import DataError

Label = int | str
Labels = Sequence[int] | Sequence[str] | NDArray[Any]


@dataclass(frozen=True)
class ConfusionMatrix:
    """Counts of each pair of gold and predicted label."""

    labels: tuple[Label, ...]
    counts: NDArray[np.int64]  # [C, C] gold by predicted


def confusion_matrix(gold: Labels, predicted: Labels, *, labels: Sequence[Label] | None = None) -> ConfusionMatrix:
    """The confusion matrix. Without `labels`: all gold and predicted labels, sorted."""
    golds, predictions = _listed(gold, "gold"), _listed(predicted, "predicted")
    if len(golds) != len(predictions):
        raise DataError(f"{len(golds)} gold labels but {len(predictions)} predicted ones: every example needs both")
    if not golds:
        raise DataError("the set is empty: there are no labels to score")
    kinds = {isinstance(label, str): label for label in (*golds, *predictions, *(labels or ()))}
    if len(kinds) > 1:
        raise DataError(f"labels must be all numbers or all strings, found both {kinds[True]!r} and {kinds[False]!r}")
    known = tuple(labels) if labels is not None else tuple(sorted({*golds, *predictions}))
    index = {label: number for number, label in enumerate(known)}
    if len(index) != len(known):
        raise DataError(f"a label is repeated in {list(known)}")
    for label in (*golds, *predictions):
        if label not in index:
            raise DataError(f"label {label!r} is not one of {list(known)}")
    size = len(known)
    cells = np.array([index[a] * size + index[b] for a, b in zip(golds, predictions, strict=True)], dtype=np.int64)
    return ConfusionMatrix(labels=known, counts=np.bincount(cells, minlength=size * size).reshape(size, size))


def accuracy(gold: Labels, predicted: Labels) -> float:
    """The share of correct labels."""
    return float(accuracy_from_confusion(confusion_matrix(gold, predicted).counts))


def f1(gold: Labels, predicted: Labels, *, positive: Label = 1) -> float:
    """F1 of one label against all others (MRPC, QQP); 0 if it is neither gold nor predicted."""
    return label_counts(confusion_matrix(gold, predicted), positive).f1


def macro_f1(gold: Labels, predicted: Labels) -> float:
    """The mean F1 of the labels that are gold or predicted at least once."""
    return float(macro_f1_from_confusion(confusion_matrix(gold, predicted).counts))


def micro_f1(gold: Labels, predicted: Labels, *, labels: Sequence[Label] | None = None) -> float:
    """F1 of the summed counts of all labels, which is the accuracy, or of the given labels."""
    parts = scores_by_label(gold, predicted)
    chosen = [parts[label] for label in (parts if labels is None else labels) if label in parts]
    correct, predictions, golds = (sum(getattr(part, side) for part in chosen) for side in MatchCounts.__slots__)
    return MatchCounts(correct, predictions, golds).f1


def matthews(gold: Labels, predicted: Labels) -> float:
    """Matthews' correlation for two or more labels (CoLA; Gorodkin 2004); 0 if either side has only one label."""
    return float(matthews_from_confusion(confusion_matrix(gold, predicted).counts))


def scores_by_label(gold: Labels, predicted: Labels) -> dict[Label, MatchCounts]:
    """Precision, recall and F1 of every label that is gold or predicted at least once."""
    confusion = confusion_matrix(gold, predicted)
    return {label: label_counts(confusion, label) for label in confusion.labels}


def label_counts(confusion: ConfusionMatrix, label: Label) -> MatchCounts:
    """The counts of one label against all others."""
    if label not in confusion.labels:
        if len(confusion.labels) > 1:
            raise DataError(f"label {label!r} is not one of {list(confusion.labels)}: name the positive label")
        return MatchCounts(correct=0, predicted=0, gold=0)
    index, table = confusion.labels.index(label), confusion.counts
    return MatchCounts(int(table[index, index]), int(table[:, index].sum()), int(table[index, :].sum()))


def accuracy_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Accuracy of matrices [..., C, C] as [...]."""
    return ratio(np.trace(table, axis1=-2, axis2=-1), table.sum(axis=(-2, -1)))


def label_f1_from_confusion(table: NDArray[np.int64], *, index: int) -> NDArray[np.float64]:
    """F1 of the label at `index` of matrices [..., C, C] as [...]."""
    predicted, gold = table[..., :, index].sum(axis=-1), table[..., index, :].sum(axis=-1)
    return ratio(2 * table[..., index, index], predicted + gold)


def macro_f1_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Macro F1 of matrices [..., C, C] as [...]; labels without counts are excluded from the mean."""
    sums = table.sum(axis=-2) + table.sum(axis=-1)
    each = ratio(2 * np.diagonal(table, axis1=-2, axis2=-1), sums)
    return ratio(each.sum(axis=-1), (sums > 0).sum(axis=-1))


def matthews_from_confusion(table: NDArray[np.int64]) -> NDArray[np.float64]:
    """Matthews' correlation of matrices [..., C, C] as [...]."""
    counts = table.astype(np.float64)
    predicted, gold, every = counts.sum(axis=-2), counts.sum(axis=-1), counts.sum(axis=(-2, -1))
    correct = np.trace(counts, axis1=-2, axis2=-1)
    covariance = correct * every - (predicted * gold).sum(axis=-1)
    spread = (every**2 - (predicted**2).sum(axis=-1)) * (every**2 - (gold**2).sum(axis=-1))
    return ratio(covariance, np.sqrt(spread))


def multi_label_counts(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, labels: Sequence[str]
) -> NDArray[np.int64]:
    """Correct, predicted and gold occurrences of each label in each example [N, K, 3], for any number of labels."""
    a, b = (np.array([[label in one for label in labels] for one in side], bool) for side in (gold, predicted))
    return np.stack([a & b, b, a], axis=-1).astype(np.int64)


def micro_f1_from_counts(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of the summed counts [..., K, 3] of all labels as [...]."""
    return f1_from_counts(counts.sum(axis=-2))


def macro_f1_from_counts(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean F1 of all labels from counts [..., K, 3] as [...]; a label that never occurs has the F1 0."""
    mean: NDArray[np.float64] = f1_from_counts(counts).mean(axis=-1)
    return mean


def best_threshold(probabilities: NDArray[np.float64], gold: NDArray[np.bool_]) -> float:
    """The threshold above which predicting the label has the best F1; of equally good ones, the nearest to 0.5.

    It is 0.5 or halfway between two neighbouring probabilities [N], so that rounding does not change a prediction.
    """
    values = np.concatenate([[0.0], np.unique(probabilities), [1.0]])
    cuts = np.append((values[1:] + values[:-1]) / 2, 0.5)
    above, hits = (
        len(some) - np.searchsorted(np.sort(some), cuts, "right") for some in (probabilities, probabilities[gold])
    )
    scores = ratio(2 * hits, above + gold.sum())
    best = cuts[scores >= scores.max() - 1e-12]
    return float(best[np.abs(best - 0.5).argmin()])


def _listed(values: Labels, side: str) -> list[Label]:
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    for number, value in enumerate(listed):
        if not isinstance(value, int | str | np.integer):
            raise DataError(f"{side} label {number + 1} is {value!r}: labels are integers or strings, one per example")
    return listed


@dataclass(frozen=True, slots=True)
class MatchCounts:
    """Numbers of correct, predicted and gold items; ratios are fractions of 1, and 0 if the denominator is 0."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """correct / predicted."""
        return float(ratio(self.correct, self.predicted))

    @property
    def recall(self) -> float:
        """correct / gold."""
        return float(ratio(self.correct, self.gold))

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return float(f1_from_counts(np.array([self.correct, self.predicted, self.gold])))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.float64]:
    """Element-wise numerator / denominator, and 0 where the denominator is 0."""
    denominator = np.asarray(denominator, dtype=np.float64)
    divided = np.asarray(numerator, dtype=np.float64) / np.where(denominator == 0, 1.0, denominator)
    return np.where(denominator == 0, 0.0, divided)


def f1_from_counts(counts: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """F1 of counts [..., 3] in the order correct, predicted, gold, as [...]."""
    return ratio(2.0 * counts[..., 0], counts[..., 1] + counts[..., 2])
