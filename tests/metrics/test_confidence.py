"""Intervals have their nominal coverage, equal scipy's and those of resampling in a loop, and are reproducible."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bertsmith.errors import BertsmithError
from bertsmith.metrics import classification, confidence, regression
from bertsmith.metrics.classification import f1_from_counts


def by_hand(score: object, examples: int, *, resamples: int = 4000) -> tuple[float, float]:
    """The 95 % percentile interval with one loop, one draw of examples at a time."""
    generator = np.random.default_rng(99)
    scores = [score(generator.integers(examples, size=examples)) for _ in range(resamples)]
    low, high = np.quantile(scores, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize(("correct", "total"), [(0, 10), (10, 10), (1, 3), (812, 1000), (1, 1)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_wilson_equals_scipy(correct: int, total: int, level: float) -> None:
    expected = stats.binomtest(correct, total).proportion_ci(level, method="wilson")
    result = confidence.wilson(correct, total, level=level)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert result.value == correct / total


def test_intervals_of_sums_are_those_of_resampling_by_hand() -> None:
    generator = np.random.default_rng(0)
    counts = np.stack(
        [generator.integers(0, 2, 120), generator.integers(1, 4, 120), generator.integers(1, 4, 120)], axis=1
    )
    result = confidence.bootstrap(counts, f1_from_counts, resamples=4000)
    assert result.value == pytest.approx(float(f1_from_counts(counts.sum(axis=0))), abs=1e-12)
    expected = by_hand(lambda chosen: float(f1_from_counts(counts[chosen].sum(axis=0))), len(counts))
    assert (result.low, result.high) == pytest.approx(expected, abs=0.008)
    marks = generator.random(80)
    result = confidence.bootstrap(marks, confidence.mean_from_sums, resamples=4000, level=0.95)
    expected = by_hand(lambda chosen: float(marks[chosen].mean()), len(marks))
    assert (result.low, result.high) == pytest.approx(expected, abs=0.008)
    assert result.value == pytest.approx(marks.mean(), abs=1e-12)


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "matthews"])
def test_intervals_of_labels_are_those_of_resampling_by_hand(name: str) -> None:
    generator = np.random.default_rng(1)
    gold = generator.integers(0, 3, 150)
    predicted = np.where(generator.random(150) < 0.7, gold, generator.integers(0, 3, 150))
    one = getattr(classification, name)
    result = confidence.bootstrap_classification(gold, predicted, getattr(classification, f"{name}_from_confusion"))
    assert result.value == pytest.approx(one(gold, predicted), abs=1e-12)
    expected = by_hand(lambda chosen: one(gold[chosen], predicted[chosen]), 150, resamples=1500)
    assert (result.low, result.high) == pytest.approx(expected, abs=0.015)


@pytest.mark.parametrize("name", ["pearson", "spearman", "mean_squared_error"])
def test_intervals_of_numbers_are_those_of_resampling_by_hand(name: str) -> None:
    generator = np.random.default_rng(2)
    gold = generator.integers(0, 6, 150).astype(float)
    predicted = gold + generator.normal(size=150)
    one = getattr(regression, name)
    result = confidence.bootstrap_regression(gold, predicted, getattr(regression, f"batched_{name}"))
    assert result.value == pytest.approx(one(gold, predicted), abs=1e-12)
    expected = by_hand(lambda chosen: one(gold[chosen], predicted[chosen]), 150, resamples=1500)
    assert (result.low, result.high) == pytest.approx(expected, abs=0.03)


def test_intervals_have_their_nominal_coverage() -> None:
    """200 sets of 300 examples whose true accuracy is 0.8; of 95 % intervals, 190 should contain it."""
    generator = np.random.default_rng(3)
    covered = {"bootstrap": 0, "wilson": 0}
    for seed in range(200):
        right = generator.random(300) < 0.8
        drawn = confidence.bootstrap(right, confidence.mean_from_sums, resamples=500, seed=seed)
        exact = confidence.wilson(int(right.sum()), 300)
        covered["bootstrap"] += drawn.low <= 0.8 <= drawn.high
        covered["wilson"] += exact.low <= 0.8 <= exact.high
    assert all(178 <= count <= 199 for count in covered.values()), covered


def test_results_depend_on_the_seed_and_not_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = np.random.default_rng(4).random(50)
    first = confidence.bootstrap(marks, confidence.mean_from_sums, seed=5)
    assert first == confidence.bootstrap(marks, confidence.mean_from_sums, seed=5)
    assert first != confidence.bootstrap(marks, confidence.mean_from_sums, seed=6)
    numbered = confidence.bootstrap_regression(marks, marks**2, regression.batched_spearman, resamples=100)
    compared = confidence.compare(marks, marks**2, confidence.mean_from_sums, trials=100)
    monkeypatch.setattr(confidence, "_CHUNK_SIZE", 170)
    assert confidence.bootstrap(marks, confidence.mean_from_sums, seed=5) == first
    assert confidence.bootstrap_regression(marks, marks**2, regression.batched_spearman, resamples=100) == numbered
    assert confidence.compare(marks, marks**2, confidence.mean_from_sums, trials=100) == compared


def test_comparison_of_means_equals_the_permutation_test_of_scipy() -> None:
    generator = np.random.default_rng(6)
    first = generator.random(40)
    second = first + generator.normal(0.03, 0.1, size=40)
    expected = stats.permutation_test(
        (first, second),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=9999,
        rng=1,
    )
    result = confidence.compare(first, second, confidence.mean_from_sums)
    assert result.p == pytest.approx(expected.pvalue, abs=0.02)
    assert result.difference == pytest.approx(float((first - second).mean()), abs=1e-12)


def test_equal_systems_do_not_differ_and_unequal_ones_do() -> None:
    generator = np.random.default_rng(7)
    right = generator.integers(0, 2, 400)
    assert confidence.compare(right, right, confidence.mean_from_sums).p == 1.0
    wrong = np.zeros(400)
    assert confidence.compare(right, wrong, confidence.mean_from_sums, trials=999).p == pytest.approx(0.001)
    counts = np.stack([right, np.ones(400), np.ones(400)], axis=1)
    swapped = confidence.compare(counts, counts[::-1], f1_from_counts, trials=2000)
    assert swapped.first == swapped.second
    assert swapped.p == 1.0
    gold = generator.random(100)
    near, far = gold + 0.1 * generator.normal(size=100), gold + generator.normal(size=100)
    assert confidence.compare_regression(gold, near, far, regression.batched_spearman, trials=999).p == pytest.approx(
        0.001
    )
    assert confidence.compare_regression(gold, near, near, regression.batched_pearson, trials=99).p == 1.0


def test_differences_that_are_equal_up_to_rounding_count() -> None:
    """Where one example differs, every exchange gives the same difference."""
    for seed in range(20):
        marks = np.random.default_rng(seed).random(400)
        other = np.append(marks[:-1], marks[0])
        assert confidence.compare(marks, other, confidence.mean_from_sums, trials=99).p == 1.0


def test_p_values_of_equal_systems_are_uniform() -> None:
    generator = np.random.default_rng(8)
    ps = []
    for seed in range(200):
        first, second = generator.random((2, 60))
        ps.append(confidence.compare(first, second, confidence.mean_from_sums, trials=400, seed=seed).p)
    assert stats.kstest(ps, "uniform").pvalue > 0.001


def test_summaries_over_seeds() -> None:
    result = confidence.summarize_seeds([80.0, 84.0, 82.0, 90.0])
    assert (result.runs, result.mean, result.median, result.best) == (4, 84.0, 83.0, 90.0)
    assert result.deviation == pytest.approx(np.std([80, 84, 82, 90], ddof=1))
    assert confidence.summarize_seeds([0.5]).deviation is None
    assert confidence.summarize_seeds([0.5, 0.3], higher_is_better=False).best == 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confidence.wilson(3, 2), "3 of 2"),
        (lambda: confidence.wilson(0, 0), "0 of 0"),
        (lambda: confidence.wilson(1, 2, level=95), "level=95"),
        (lambda: confidence.bootstrap([], confidence.mean_from_sums), "with N > 0"),
        (lambda: confidence.bootstrap([1.0], confidence.mean_from_sums, resamples=0), "resamples=0"),
        (lambda: confidence.bootstrap([1.0, float("nan")], confidence.mean_from_sums), "finite"),
        (lambda: confidence.compare([1, 0], [1], confidence.mean_from_sums), "the same examples"),
        (lambda: confidence.summarize_seeds([]), "non-empty list"),
    ],
)
def test_invalid_input_is_an_error(call: object, message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        call()
