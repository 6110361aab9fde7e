"""How sure a score is: bootstrap and Wilson intervals, paired comparison of two systems, and scores over seeds.

N examples, K numbers for each, R resamples. A score that is a function of sums over examples (accuracy, F1, entity F1,
span F1) is resampled by its counts: equal examples are drawn together, so that a large set costs no more than its
distinct examples. Correlations are resampled example by example and ranked anew each time. Everything is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.classification import Labels, confusion_matrix
from bertsmith.metrics.regression import Floats, checked_pair

SumScore = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # sums [R, K] -> scores [R]
TableScore = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # tables [R, C, C] -> scores [R]
PairScore = Callable[[Floats, Floats], Floats]  # two rows [R, N] -> scores [R]
_AT_ONCE = 4_000_000  # numbers drawn at a time: bounds the memory, not the result


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A score and the bounds between which it lies at that level of confidence."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two systems on the same examples: how much better the first is, and how often chance alone does as much."""

    first: float
    second: float
    difference: float
    p: float  # two-sided


@dataclass(frozen=True, slots=True)
class SeedSummary:
    """One score over several runs."""

    runs: int
    mean: float
    deviation: float | None  # of a sample (n - 1); None for a single run
    median: float
    best: float


def bootstrap(
    statistics: ArrayLike, score: SumScore, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> ConfidenceInterval:
    """Percentile interval of a score of sums: statistics [N, K], or [N] for a mean or a sum of one number.

    `score` takes sums [R, K + 1], of which the last column is the number of examples.
    """
    rows = _rows(statistics)
    distinct, times = np.unique(rows, axis=0, return_counts=True)
    scores = [score(drawn @ distinct) for drawn in _draws(times, resamples, seed)]
    return _percentiles(score(rows.sum(axis=0, keepdims=True)), scores, level)


def mean_from_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the first number, for `bootstrap` and `compare`: exact match, F1 of answers, accuracy."""
    return sums[..., 0] / sums[..., -1]


def bootstrap_classification(
    gold: Labels, predicted: Labels, score: TableScore, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> ConfidenceInterval:
    """Percentile interval of a score of labels: `labels.accuracy_of`, `macro_f1_of`, `matthews_of`, `label_f1_of`."""
    table = confusion_matrix(gold, predicted).counts
    scores = [score(drawn.reshape(-1, *table.shape)) for drawn in _draws(table.reshape(-1), resamples, seed)]
    return _percentiles(score(table[None]), scores, level)


def bootstrap_regression(
    gold: ArrayLike,
    predicted: ArrayLike,
    score: PairScore,
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> ConfidenceInterval:
    """Percentile interval of a score of numbers: `numbers.pearson_of`, `spearman_of`, `mean_squared_error_of`."""
    ours, theirs = checked_pair(gold, predicted)
    generator = np.random.default_rng(seed)
    scores = []
    for count in _chunks(resamples, len(ours)):
        chosen = generator.integers(len(ours), size=(count, len(ours)))
        scores.append(score(ours[chosen], theirs[chosen]))
    return _percentiles(score(ours[None], theirs[None]), scores, level)


def wilson(correct: int, total: int, *, level: float = 0.95) -> ConfidenceInterval:
    """Wilson's score interval of a share of examples, such as an accuracy (Wilson 1927)."""
    if not 0 <= correct <= total or total == 0:
        raise DataError(f"{correct} of {total} is no share: 0 <= correct <= total and total > 0 are needed")
    z = NormalDist().inv_cdf(0.5 + _checked(level) / 2)
    share, weight = correct / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == total else middle + half
    return ConfidenceInterval(value=share, low=low, high=high, level=level)


def compare(first: ArrayLike, second: ArrayLike, score: SumScore, *, trials: int = 10_000, seed: int = 0) -> Comparison:
    """Approximate randomisation (Noreen 1989) for a score of sums; statistics of both systems as for `bootstrap`."""
    ours, theirs = _rows(first), _rows(second)
    if ours.shape != theirs.shape:
        raise DataError(f"statistics of shape {ours.shape} and {theirs.shape}: both systems answer the same examples")
    distinct, times = np.unique(np.concatenate([ours, theirs], axis=1), axis=0, return_counts=True)
    excess = distinct[:, : ours.shape[1]] - distinct[:, ours.shape[1] :]
    differs = excess.any(axis=1)  # to exchange equal answers changes nothing
    excess, times = excess[differs], times[differs]
    all_ours, all_theirs = ours.sum(axis=0, keepdims=True), theirs.sum(axis=0, keepdims=True)
    generator = np.random.default_rng(seed)
    gaps = []
    for count in _chunks(trials, len(times)):
        exchanged = generator.binomial(times, 0.5, size=(count, len(times))) @ excess
        gaps.append(score(all_ours - exchanged) - score(all_theirs + exchanged))
    return _compared(score(all_ours), score(all_theirs), gaps)


def compare_regression(
    gold: ArrayLike, first: ArrayLike, second: ArrayLike, score: PairScore, *, trials: int = 10_000, seed: int = 0
) -> Comparison:
    """Approximate randomisation for a score of numbers; put both systems on one scale first if they are not."""
    truth, ours = checked_pair(gold, first)
    _, theirs = checked_pair(gold, second)
    generator = np.random.default_rng(seed)
    gaps = []
    for count in _chunks(trials, len(truth)):
        exchanged = generator.integers(2, size=(count, len(truth)), dtype=np.int8) == 1
        golds = np.broadcast_to(truth, exchanged.shape)
        gaps.append(score(golds, np.where(exchanged, theirs, ours)) - score(golds, np.where(exchanged, ours, theirs)))
    return _compared(score(truth[None], ours[None]), score(truth[None], theirs[None]), gaps)


def summarize_seeds(scores: Sequence[float], *, higher_is_better: bool = True) -> SeedSummary:
    """Mean, standard deviation, median and best of one score over runs that differ in their seed."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise DataError(f"scores over seeds are a row of finite numbers, at least one; found {list(scores)}")
    return SeedSummary(
        runs=len(values),
        mean=float(values.mean()),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else None,
        median=float(np.median(values)),
        best=float(values.max() if higher_is_better else values.min()),
    )


def _rows(statistics: ArrayLike) -> NDArray[np.float64]:
    """Statistics [N, K] with a last column of ones, so that their sums carry the number of examples."""
    rows = np.asarray(statistics, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise DataError(f"statistics are finite numbers [N] or [N, K], at least one row; found shape {rows.shape}")
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def _draws(times: NDArray[np.int64], resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each distinct example is drawn in each resample of as many examples as there are [r, G]."""
    generator = np.random.default_rng(seed)
    total = int(times.sum())
    for count in _chunks(resamples, len(times)):
        yield generator.multinomial(total, times / total, size=count)


def _chunks(resamples: int, width: int) -> list[int]:
    if resamples < 1:
        raise ConfigError(f"{resamples} resamples: at least 1 is needed")
    size = max(1, _AT_ONCE // max(1, width))
    return [min(size, resamples - begin) for begin in range(0, resamples, size)]


def _percentiles(value: NDArray[np.float64], scores: list[NDArray[np.float64]], level: float) -> ConfidenceInterval:
    outside = (1 - _checked(level)) / 2
    low, high = np.quantile(np.concatenate(scores), [outside, 1 - outside])
    return ConfidenceInterval(value=float(value[0]), low=float(low), high=float(high), level=level)


def _compared(first: NDArray[np.float64], second: NDArray[np.float64], gaps: list[NDArray[np.float64]]) -> Comparison:
    difference = float(first[0] - second[0])
    every = np.concatenate(gaps)
    # Sums in another order differ by rounding: a gap that is equal on paper must count.
    as_large = int((np.abs(every) >= abs(difference) - 1e-12).sum())
    return Comparison(
        first=float(first[0]), second=float(second[0]), difference=difference, p=(as_large + 1) / (len(every) + 1)
    )


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise ConfigError(f"level={level}: a level of confidence lies between 0 and 1, as 0.95 does")
    return level
