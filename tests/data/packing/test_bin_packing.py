"""Bin packing: every text once per epoch, no row over its length, little padding, other neighbours every epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing.bin_packing import MAX_TEXTS, BinPacking, RowSamples, find_patterns


@settings(max_examples=150, deadline=None)
@given(max_length=some.integers(1, 40), data=some.data())
def test_patterns_place_every_text_once_and_overfill_no_row(max_length: int, data: some.DataObject) -> None:
    counts = [0, *data.draw(some.lists(some.integers(0, 50), min_size=max_length, max_size=max_length))]
    counts[data.draw(some.integers(1, max_length))] += 1
    patterns = find_patterns(counts, max_length=max_length)
    placed: Counter[int] = Counter()
    for lengths, rows in zip(patterns.lengths.tolist(), patterns.rows.tolist(), strict=True):
        assert rows > 0
        assert 0 < sum(lengths) <= max_length
        assert sum(length > 0 for length in lengths) <= MAX_TEXTS
        for length in lengths:
            placed[length] += rows * (length > 0)
    assert {length: count for length, count in placed.items() if count} == {
        length: count for length, count in enumerate(counts) if count
    }
    tokens = sum(length * count for length, count in enumerate(counts))
    assert patterns.padding_fraction == 1 - tokens / (patterns.rows.sum() * max_length)


def test_complementary_lengths_share_rows() -> None:
    patterns = find_patterns([0, 0, 0, 700, 0, 0, 0, 700, 0, 0, 50], max_length=10)
    assert patterns.padding_fraction == 0
    assert patterns.lengths.tolist() == [[10, 0], [7, 3]]
    assert patterns.rows.tolist() == [50, 700]


def test_texts_per_row_is_as_small_as_negligible_padding_allows() -> None:
    generator = np.random.default_rng(0)
    full = np.zeros(129, np.int64)
    full[128] = 10**6
    assert find_patterns(full.tolist(), max_length=128).lengths.shape[1] == 1
    few = full + np.bincount(generator.integers(1, 129, 1000), minlength=129)
    assert find_patterns(few.tolist(), max_length=128).lengths.shape[1] == 1, "their padding is negligible"
    many = np.bincount(generator.integers(1, 129, 10**6), minlength=129)
    patterns = find_patterns(many.tolist(), max_length=128)
    assert 1 < patterns.lengths.shape[1] <= MAX_TEXTS
    assert patterns.padding_fraction < 0.003


def test_long_rows_hold_more_texts() -> None:
    patterns = find_patterns([0] * 40 + [10_000] + [0] * 984, max_length=1024)
    assert patterns.lengths.shape[1] == 25
    assert patterns.rows.tolist() == [400]


def test_padding_beyond_the_maximum_number_of_texts_is_reported() -> None:
    patterns = find_patterns([0, 100, *([0] * 99)], max_length=100)
    assert patterns.rows.sum() == -(-100 // MAX_TEXTS)
    assert patterns.padding_fraction == 1 - 100 / 700


def whole_epoch(bins: BinPacking, epoch: int) -> RowSamples:
    return bins.samples_of(epoch * bins.rows_per_epoch, bins.rows_per_epoch)


@settings(max_examples=60, deadline=None)
@given(lengths=some.lists(some.integers(1, 30), min_size=1, max_size=300), epoch=some.integers(0, 10**6))
def test_every_sample_once_per_epoch(lengths: list[int], epoch: int) -> None:
    bins = BinPacking(np.array(lengths), max_length=30, seed=4)
    samples = whole_epoch(bins, epoch)
    assert sorted(samples.sample.tolist()) == list(range(len(lengths)))
    assert (samples.sample_id == epoch * len(lengths) + samples.sample).all()
    assert np.unique(samples.row).tolist() == list(range(bins.rows_per_epoch))
    assert (np.diff(samples.row) >= 0).all()
    tokens = np.bincount(samples.row, weights=np.array(lengths)[samples.sample])
    assert tokens.max() <= 30
    assert np.bincount(samples.row).max() <= bins.texts_per_row
    assert bins.padding_fraction == 1 - sum(lengths) / (30 * bins.rows_per_epoch)


def test_neighbours_and_order_change_with_epoch_and_seed() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 3000)
    bins = BinPacking(lengths, max_length=60, seed=4)
    first, second = whole_epoch(bins, 0), whole_epoch(bins, 1)
    other_seed = whole_epoch(BinPacking(lengths, max_length=60, seed=5), 0)

    def neighbours(samples: RowSamples) -> set[tuple[int, ...]]:
        rows = np.split(samples.sample, np.flatnonzero(np.diff(samples.row)) + 1)
        return {tuple(sorted(row.tolist())) for row in rows if len(row) > 1}

    for samples in (second, other_seed):
        assert len(neighbours(first)) > 500
        assert len(neighbours(first) & neighbours(samples)) < 50
        assert (first.sample == samples.sample).mean() < 0.05
