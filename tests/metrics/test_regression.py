"""Correlations equal scipy's, with ties, large and small numbers; that with a constant is 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import mean_squared_error

from bertsmith.errors import DataError
from bertsmith.metrics import regression

VALUES = st.integers(0, 5).map(float) | st.integers(-1000, 1000).map(lambda whole: whole / 7)
PAIRS = st.lists(st.tuples(VALUES, VALUES), min_size=2, max_size=60)


def expected(function: object, gold: object, predicted: object) -> float:
    """scipy's value, and 0 where it has none."""
    with np.errstate(all="ignore"), pytest.warns() if constant(gold) or constant(predicted) else np.errstate():
        value = float(function(gold, predicted).statistic)
    return 0.0 if math.isnan(value) else value


def constant(values: object) -> bool:
    return len(set(np.asarray(values).tolist())) == 1


@settings(max_examples=120, deadline=None)
@given(PAIRS)
def test_correlations_equal_scipy(drawn: list[tuple[float, float]]) -> None:
    gold, predicted = [a for a, _ in drawn], [b for _, b in drawn]
    assert regression.pearson(gold, predicted) == pytest.approx(expected(stats.pearsonr, gold, predicted), abs=1e-9)
    assert regression.spearman(gold, predicted) == pytest.approx(expected(stats.spearmanr, gold, predicted), abs=1e-9)
    error = mean_squared_error(gold, predicted)
    assert regression.mean_squared_error(gold, predicted) == pytest.approx(error, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=40), st.integers(1, 4))
def test_ranks_equal_scipy(values: list[float], rows: int) -> None:
    table = np.stack([np.roll(values, row) for row in range(rows)])
    assert (regression.ranks(table) == stats.rankdata(table, axis=-1)).all()


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e9, 1e300])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_thousands_of_numbers_of_any_size(scale: float, shift: float) -> None:
    generator = np.random.default_rng(0)
    gold = generator.normal(size=5000) + shift
    predicted = np.round(gold + generator.normal(size=5000), 1)
    for actual, reference in ((regression.pearson, stats.pearsonr), (regression.spearman, stats.spearmanr)):
        # scipy's own sums overflow or vanish at the ends of the range; a correlation does not depend on the scale
        value = float(reference(gold, predicted).statistic)
        assert actual(gold * scale, predicted * scale) == pytest.approx(value, abs=1e-9)


def test_many_vectors_are_scored_at_once() -> None:
    gold, predicted = np.random.default_rng(1).integers(0, 6, size=(2, 50, 30)).astype(float)
    gold[3] = 2.0
    for rows, one in (
        (regression.batched_pearson, regression.pearson),
        (regression.batched_spearman, regression.spearman),
    ):
        assert rows(gold, predicted) == pytest.approx(
            [one(a, b) for a, b in zip(gold, predicted, strict=True)], abs=1e-12
        )


def test_the_correlation_with_a_constant_is_0() -> None:
    assert regression.pearson([1, 2, 3], [0.1, 0.1, 0.1]) == 0.0
    assert regression.spearman([5, 5, 5], [1, 2, 3]) == 0.0
    assert regression.pearson([1], [1]) == 0.0
    assert regression.pearson([0.1] * 7, [0.1] * 7) == 0.0
    assert regression.pearson([1, 2], [3, 9]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "empty"),
        ([1.0, 2.0], [1.0], "2 gold numbers but 1"),
        ([1.0, math.nan], [1.0, 2.0], "gold number 2 is nan"),
        ([1.0], [math.inf], "predicted number 1 is inf"),
        ([1.0], ["2"], "vector of numbers"),
        ([[1.0, 2.0]], [[1.0, 2.0]], "vector of numbers"),
    ],
)
def test_invalid_input_is_an_error(gold: list[object], predicted: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        regression.pearson(gold, predicted)
