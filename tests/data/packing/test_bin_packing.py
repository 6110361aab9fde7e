"""Packing by histogram: every text once, no row overfull, tight where it can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing.bin_packing import MOST, find_patterns


@settings(max_examples=150, deadline=None)
@given(length=some.integers(1, 40), data=some.data())
def test_every_text_once_and_no_row_overfull(length: int, data: some.DataObject) -> None:
    counts = [0, *data.draw(some.lists(some.integers(0, 50), min_size=length, max_size=length))]
    counts[data.draw(some.integers(1, length))] += 1
    found = find_patterns(counts, length=length)
    placed: Counter[int] = Counter()
    for sizes, rows in zip(found.sizes.tolist(), found.rows.tolist(), strict=True):
        assert rows > 0
        assert 0 < sum(sizes) <= length
        assert sum(size > 0 for size in sizes) <= MOST
        for size in sizes:
            placed[size] += rows * (size > 0)
    assert {size: count for size, count in placed.items() if count} == {
        size: count for size, count in enumerate(counts) if count
    }
    places = found.rows.sum() * length
    assert found.padding == 1 - sum(size * count for size, count in enumerate(counts)) / places


def test_complements_find_each_other() -> None:
    found = find_patterns([0, 0, 0, 700, 0, 0, 0, 700, 0, 0, 50], length=10)
    assert found.padding == 0
    assert found.sizes.tolist() == [[10, 0], [7, 3]]
    assert found.rows.tolist() == [50, 700]


def test_as_few_texts_in_a_row_as_will_do() -> None:
    chance = np.random.default_rng(0)
    full = np.zeros(129, np.int64)
    full[128] = 10**6
    assert find_patterns(full.tolist(), length=128).sizes.shape[1] == 1
    few = full + np.bincount(chance.integers(1, 129, 1000), minlength=129)
    assert find_patterns(few.tolist(), length=128).sizes.shape[1] == 1, "their padding is not worth more places"
    many = np.bincount(chance.integers(1, 129, 10**6), minlength=129)
    found = find_patterns(many.tolist(), length=128)
    assert 1 < found.sizes.shape[1] <= MOST
    assert found.padding < 0.003


def test_long_rows_may_hold_more_texts() -> None:
    found = find_patterns([0] * 40 + [10_000] + [0] * 984, length=1024)
    assert found.sizes.shape[1] == 25
    assert found.rows.tolist() == [400]


def test_texts_too_small_for_their_rows_are_honestly_padding() -> None:
    found = find_patterns([0, 100, *([0] * 99)], length=100)
    assert found.rows.sum() == -(-100 // MOST)
    assert found.padding == 1 - 100 / 700
