"""Curves as text: positions, axes, gaps, spikes, a million points."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.reports.text_charts import NO_SERIES, chart, draw, number, smooth, spark, thin

BRAILLE = range(0x2801, 0x2900)


def dots(lines: list[str]) -> set[tuple[int, int]]:
    """Lit dots: row from the top, column."""
    bits = [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (3, 1)]
    return {
        (row * 4 + down, column * 2 + across)
        for row, line in enumerate(lines)
        for column, letter in enumerate(line)
        if ord(letter) in BRAILLE and letter != "⣿"
        for position, (down, across) in enumerate(bits)
        if (ord(letter) - 0x2800) >> position & 1
    }


def test_a_rising_line_rises() -> None:
    lines = chart({"up": ([0, 10], [0, 1])}, width=40, height=12)
    lit = sorted((column, row) for row, column in dots(lines))
    rows = [row for _, row in lit]
    assert rows[0] > rows[-1]
    assert all(later <= earlier for earlier, later in pairwise(rows))
    assert len({column for column, _ in lit}) > 60  # no holes between two points far apart


def test_size_title_label_and_legend() -> None:
    series = {"one": (range(100), range(100)), "two": (range(100), range(100, 0, -1))}
    lines = chart(series, width=60, height=15, title="a title", x_label="steps")
    assert len(lines) == 15
    assert max(map(len, lines)) <= 60
    assert lines[0] == "a title"
    assert lines[-1] == "⣿ one  ⣿ two"
    assert lines[-2].endswith("steps")
    assert "20" in lines[-2].split()


def test_ticks_are_round_and_at_their_value() -> None:
    lines = chart({"loss": ([0, 100], [0, 10])}, width=50, height=23)
    labels = {line.split()[0]: row for row, line in enumerate(lines) if "┤" in line}
    assert labels.keys() == {"0", "2", "4", "6", "8", "10"}
    assert labels["10"] == 0
    assert labels["4"] == pytest.approx(labels["0"] * 0.6, abs=1)


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([3], [7]), ([1, 2, 3], [5, 5, 5]), ([1, 2], [np.nan, np.inf]), ([4, 4, 4], [1, 2, 3])]
)
def test_empty_and_single_point_series(x: list[float], y: list[float]) -> None:
    lines = chart({"series": (x, y)}, width=40, height=8)
    assert len(lines) == 8
    assert bool(dots(lines)) == bool(np.isfinite(y).any())


def test_gaps_stay_open() -> None:
    y = np.ones(100)
    y[0] = 2
    y[40:60] = [np.nan, np.inf] * 10
    columns = {column for _, column in dots(chart({"series": (range(100), y)}, width=64, height=8))}
    first = min(columns)
    width = max(columns) - first
    assert not {column for column in columns if 0.41 < (column - first) / width < 0.59}
    assert {column for column in columns if (column - first) / width > 0.65}


def test_a_spike_among_a_million_points_is_drawn() -> None:
    y = np.random.default_rng(0).normal(size=1_000_000)
    y[654_321] = 50
    began = time.monotonic()
    lines = chart({"series": (np.arange(len(y)), y)}, width=80, height=20)
    assert time.monotonic() - began < 3
    top = min(row for row, _ in dots(lines))
    column = next(column for row, column in dots(lines) if row == top)
    columns = [column for _, column in dots(lines)]
    assert (column - min(columns)) / (max(columns) - min(columns)) == pytest.approx(0.654, abs=0.01)
    assert 50 in y[thin(y, 2000)]
    assert len(smooth(y, 0.999)) == len(y)


def test_owners_name_the_series_of_each_character() -> None:
    picture = draw({"low": ([0, 1], [0, 0]), "high": ([0, 1], [1, 1])}, width=40, height=10)
    owners = {
        (owner, row)
        for row, (line, whose) in enumerate(zip(picture.lines[:-1], picture.owners[:-1], strict=True))
        for letter, owner in zip(line, whose, strict=False)
        if owner != NO_SERIES and ord(letter) in BRAILLE
    }
    assert {owner for owner, _ in owners} == {0, 1}
    assert max(row for owner, row in owners if owner == 1) < min(row for owner, row in owners if owner == 0)
    assert all(len(line) <= len(whose) for line, whose in zip(picture.lines, picture.owners, strict=True))


def test_series_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 values of x and 2 of y"):
        chart({"series": ([1, 2, 3], [1, 2])})


def test_spark() -> None:
    assert spark([1, 2, 3, 4, 5, 6, 7, 8]) == "▁▂▃▄▅▆▇█"
    assert spark(range(1000), width=8) == "▁▂▃▄▅▆▇█"
    assert spark([1, np.nan, 2]) == "▁ █"
    assert spark([3, 3]) == "▄▄"
    assert spark([np.nan]) == " "
    assert spark([]) == ""


@given(
    st.lists(st.floats(-100, 100) | st.sampled_from([float("nan"), float("inf")]), max_size=300), st.floats(0, 0.999)
)
def test_smoothing_is_the_weighted_mean_of_finite_values(values: list[float], weight: float) -> None:
    total = weighs = 0.0
    for value, result in zip(values, smooth(values, weight), strict=True):
        there = np.isfinite(value)
        total = weight * total + (1 - weight) * (value if there else 0.0)
        weighs = weight * weighs + (1 - weight) * there
        if weighs < 1e-250:
            assert np.isnan(result) or weighs > 0
        else:
            assert result == pytest.approx(total / weighs, abs=1e-6)


def test_smoothing_has_no_bias_at_the_beginning() -> None:
    assert smooth(np.full(1000, 7.0), 0.99) == pytest.approx(np.full(1000, 7.0))
    with pytest.raises(ValueError, match="weight=1"):
        smooth([1.0], 1)


@given(st.integers(1, 5000), st.integers(4, 300))
def test_thinning_keeps_ends_and_extremes(length: int, points: int) -> None:
    y = np.random.default_rng(length).normal(size=length)
    positions = thin(y, points)
    assert len(positions) <= max(points, 4)
    assert {0, length - 1, int(y.argmax()), int(y.argmin())} <= set(positions.tolist())
    assert (np.diff(positions) > 0).all()


def test_thinning_keeps_gaps() -> None:
    y = np.ones(10_000)
    y[4000:6000] = np.nan
    kept = y[thin(y, 100)]
    assert 8 <= np.isnan(kept).sum() <= 11  # a fifth of 49 stretches


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1e-5, "1e-5"), (0.00025, "0.00025"), (2.5, "2.5"), (9500, "9500"), (20_000, "20k"), (1.5e6, "1.5M")],
)
def test_numbers_on_axes(value: float, text: str) -> None:
    assert number(value) == text
