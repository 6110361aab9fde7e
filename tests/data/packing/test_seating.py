"""Seats: every text once an epoch, another company every epoch."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.data.packing.bin_packing import Seating, Seats


def epoch_of(seating: Seating, epoch: int) -> Seats:
    rows = np.arange(seating.rows_per_epoch)
    return seating.seats(np.full_like(rows, epoch), rows)


@settings(max_examples=60, deadline=None)
@given(sizes=some.lists(some.integers(1, 30), min_size=1, max_size=300), epoch=some.integers(0, 10**6))
def test_every_text_once_an_epoch(sizes: list[int], epoch: int) -> None:
    seating = Seating(np.array(sizes), length=30, seed=4)
    found = epoch_of(seating, epoch)
    assert sorted(found.sample.tolist()) == list(range(len(sizes)))
    assert np.unique(found.row).tolist() == list(range(seating.rows_per_epoch))
    assert (np.diff(found.row) >= 0).all()
    filled = np.bincount(found.row, weights=np.array(sizes)[found.sample])
    assert filled.max() <= 30
    assert np.bincount(found.row).max() <= seating.texts_per_row
    assert seating.padding == 1 - sum(sizes) / (30 * seating.rows_per_epoch)


def test_company_and_order_change_with_epoch_and_seed() -> None:
    sizes = np.random.default_rng(0).integers(1, 60, 3000)
    seating = Seating(sizes, length=60, seed=4)
    first, second = epoch_of(seating, 0), epoch_of(seating, 1)
    other = epoch_of(Seating(sizes, length=60, seed=5), 0)

    def together(seats: Seats) -> set[tuple[int, ...]]:
        rows = np.split(seats.sample, np.flatnonzero(np.diff(seats.row)) + 1)
        return {tuple(sorted(row.tolist())) for row in rows if len(row) > 1}

    for seats in (second, other):
        assert len(together(first)) > 500
        assert len(together(first) & together(seats)) < 50
        assert (first.sample == seats.sample).mean() < 0.05
