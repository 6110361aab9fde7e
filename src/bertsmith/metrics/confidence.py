"""Confidence of a score: bootstrap and Wilson intervals, paired comparison of two systems, summaries over seeds.

N examples, K statistics per example, R resamples. A score of sums over examples is resampled by counts: equal examples
are drawn together, so that the cost depends only on the number of distinct ones. Correlations are resampled by example.
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
ConfusionScore = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # confusion matrices [R, C, C] -> scores [R]
PairScore = Callable[[Floats, Floats], Floats]  # two arrays [R, N] -> scores [R]
_CHUNK_SIZE = 4_000_000  # numbers drawn at a time: limits the memory, does not change the result


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A score and the bounds of its confidence interval."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores of two systems on the same examples, their difference and its p-value."""

    first: float
    second: float
    difference: float
    p: float  # two-sided


@dataclass(frozen=True, slots=True)
class SeedSummary:
    """Summary of one score over several runs."""

    runs: int
    mean: float
    deviation: float | None  # sample standard deviation (n - 1); None for a single run
    median: float
    best: float


def bootstrap(
    statistics: ArrayLike, score: SumScore, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> ConfidenceInterval:
    """Percentile interval of a score of sums; statistics [N, K], or [N] for K = 1.

    `score` takes sums [R, K + 1]; the last column is the number of examples.
    """
    rows = _rows(statistics)
    distinct, times = np.unique(rows, axis=0, return_counts=True)
    scores = [score(drawn @ distinct) for drawn in _draws(times, resamples, seed)]
    return _percentiles(score(rows.sum(axis=0, keepdims=True)), scores, level)


def mean_from_sums(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the first statistic, for `bootstrap` and `compare`: exact match, F1 of answers, accuracy."""
    return sums[..., 0] / sums[..., -1]


def bootstrap_classification(
    gold: Labels, predicted: Labels, score: ConfusionScore, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> ConfidenceInterval:
    """Percentile interval of a `*_from_confusion` score of `metrics.classification`."""
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
    """Percentile interval of a `batched_*` score of `metrics.regression`."""
    a, b = checked_pair(gold, predicted)
    generator = np.random.default_rng(seed)
    scores = []
    for count in _chunks(resamples, len(a)):
        chosen = generator.integers(len(a), size=(count, len(a)))
        scores.append(score(a[chosen], b[chosen]))
    return _percentiles(score(a[None], b[None]), scores, level)


def bootstrap_examples(
    size: int, score: Callable[[list[int]], float], *, resamples: int = 200, level: float = 0.95, seed: int = 0
) -> ConfidenceInterval:
    """Percentile interval of any score of `size` examples, a function of their indices.

    Few resamples, as the score is computed anew for each. One for which it is not a number does not count.
    """
    generator, every = np.random.default_rng(seed), list(range(size))
    scores = np.array([score(generator.integers(size, size=size).tolist()) for _ in range(resamples)])
    value = np.array([score(every)])
    return _percentiles(value, [scores[np.isfinite(scores)] if np.isfinite(scores).any() else value], level)


def wilson(correct: int, total: int, *, level: float = 0.95) -> ConfidenceInterval:
    """Wilson score interval of a proportion, such as an accuracy (Wilson 1927)."""
    if not 0 <= correct <= total or total == 0:
        raise DataError(f"{correct} of {total} is not a proportion: expected 0 <= correct <= total and total > 0")
    z = NormalDist().inv_cdf(0.5 + _checked(level) / 2)
    share, weight = correct / total, z * z / total
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    low = 0.0 if correct == 0 else middle - half
    high = 1.0 if correct == total else middle + half
    return ConfidenceInterval(value=share, low=low, high=high, level=level)


def compare(first: ArrayLike, second: ArrayLike, score: SumScore, *, trials: int = 10_000, seed: int = 0) -> Comparison:
    """Approximate randomisation (Noreen 1989) for a score of sums; statistics as for `bootstrap`."""
    a, b = _rows(first), _rows(second)
    if a.shape != b.shape:
        raise DataError(
            f"statistics have shapes {a.shape} and {b.shape}: both systems must be scored on the same examples"
        )
    distinct, times = np.unique(np.concatenate([a, b], axis=1), axis=0, return_counts=True)
    excess = distinct[:, : a.shape[1]] - distinct[:, a.shape[1] :]
    differs = excess.any(axis=1)  # exchanging equal predictions has no effect
    excess, times = excess[differs], times[differs]
    total_a, total_b = a.sum(axis=0, keepdims=True), b.sum(axis=0, keepdims=True)
    generator = np.random.default_rng(seed)
    gaps = []
    for count in _chunks(trials, len(times)):
        exchanged = generator.binomial(times, 0.5, size=(count, len(times))) @ excess
        gaps.append(score(total_a - exchanged) - score(total_b + exchanged))
    return _compared(score(total_a), score(total_b), gaps)


def compare_regression(
    gold: ArrayLike, first: ArrayLike, second: ArrayLike, score: PairScore, *, trials: int = 10_000, seed: int = 0
) -> Comparison:
    """Approximate randomisation for a regression score; both systems must predict on the same scale."""
    truth, a = checked_pair(gold, first)
    _, b = checked_pair(gold, second)
    generator = np.random.default_rng(seed)
    gaps = []
    for count in _chunks(trials, len(truth)):
        exchanged = generator.integers(2, size=(count, len(truth)), dtype=np.int8) == 1
        golds = np.broadcast_to(truth, exchanged.shape)
        gaps.append(score(golds, np.where(exchanged, b, a)) - score(golds, np.where(exchanged, a, b)))
    return _compared(score(truth[None], a[None]), score(truth[None], b[None]), gaps)


def summarize_seeds(scores: Sequence[float], *, higher_is_better: bool = True) -> SeedSummary:
    """Mean, standard deviation, median and best of one score over runs with different seeds."""
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise DataError(f"scores over seeds must be a non-empty list of finite numbers, found {list(scores)}")
    return SeedSummary(
        runs=len(values),
        mean=float(values.mean()),
        deviation=float(values.std(ddof=1)) if len(values) > 1 else None,
        median=float(np.median(values)),
        best=float(values.max() if higher_is_better else values.min()),
    )


def _rows(statistics: ArrayLike) -> NDArray[np.float64]:
    """Statistics [N, K + 1] with a last column of ones, whose sum is the number of examples."""
    rows = np.asarray(statistics, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not rows.size or not np.isfinite(rows).all():
        raise DataError(f"statistics must be finite numbers [N] or [N, K] with N > 0, found shape {rows.shape}")
    return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)


def _draws(times: NDArray[np.int64], resamples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each of G distinct examples is drawn in each resample [r, G]; resamples have the original size."""
    generator = np.random.default_rng(seed)
    total = int(times.sum())
    for count in _chunks(resamples, len(times)):
        yield generator.multinomial(total, times / total, size=count)


def _chunks(resamples: int, width: int) -> list[int]:
    if resamples < 1:
        raise ConfigError(f"resamples={resamples} must be at least 1")
    size = max(1, _CHUNK_SIZE // max(1, width))
    return [min(size, resamples - begin) for begin in range(0, resamples, size)]


def _percentiles(value: NDArray[np.float64], scores: list[NDArray[np.float64]], level: float) -> ConfidenceInterval:
    outside = (1 - _checked(level)) / 2
    low, high = np.quantile(np.concatenate(scores), [outside, 1 - outside])
    return ConfidenceInterval(value=float(value[0]), low=float(low), high=float(high), level=level)


def _compared(first: NDArray[np.float64], second: NDArray[np.float64], gaps: list[NDArray[np.float64]]) -> Comparison:
    difference, every = float(first[0] - second[0]), np.concatenate(gaps)
    # Sums in another order differ by rounding: mathematically equal differences must count.
    as_large = int((np.abs(every) >= abs(difference) - 1e-12).sum())
    return Comparison(float(first[0]), float(second[0]), difference, p=(as_large + 1) / (len(every) + 1))


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise ConfigError(f"level={level} must be between 0 and 1, such as 0.95")
    return level
