"""Which texts sit in which row of which epoch: any row at once, every text once an epoch. Knows sizes, no tokens.

Rows are filled by the patterns of the histogram. In each epoch one permutation shuffles the rows, and one for each
size decides which of the texts of that size sits where, so texts meet others every time.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing import keyed
from bertsmith.data.packing.histogram import Patterns, find_patterns
from bertsmith.data.packing.outline import start_type
from bertsmith.data.packing.packing import Numbers


class Seats(NamedTuple):
    """N texts of a batch, row by row."""

    row: Numbers  # [N] within the batch, ascending; every row has a text
    epoch: Numbers  # [N]
    sample: Numbers  # [N] number of the text within the epoch


class Seating:
    """Texts of these `sizes`, each at least 1 and at most `length`."""

    def __init__(self, sizes: NDArray[np.integer], *, length: int, seed: int) -> None:
        counts = np.bincount(sizes, minlength=length + 1)
        patterns = find_patterns(counts.tolist(), length=length)
        self.samples, self.rows_per_epoch = len(sizes), int(patterns.rows.sum())
        self.texts_per_row, self.padding = patterns.sizes.shape[1], patterns.padding
        self._sizes, self._counts = patterns.sizes, counts
        self._row_ends = np.cumsum(patterns.rows)
        self._row_begins = self._row_ends - patterns.rows
        self._ranks = _first_ranks(patterns)
        self._by_size = np.argsort(sizes.astype(np.uint16), kind="stable").astype(start_type(len(sizes)))
        self._size_begins = np.cumsum(counts) - counts
        self._row_key, self._text_key = keyed.stream(seed, "packing/rows"), keyed.stream(seed, "packing/texts")

    def seats(self, epoch: Numbers, row: Numbers) -> Seats:
        """The texts of these rows (epoch and number within it)."""
        place = keyed.permute(row, self.rows_per_epoch, keyed.mix(self._row_key, epoch))
        pattern = np.searchsorted(self._row_ends, place, "right")
        sizes = self._sizes[pattern]
        batch_row, slot = np.nonzero(sizes)
        size, pattern, place, epoch = sizes[batch_row, slot], pattern[batch_row], place[batch_row], epoch[batch_row]
        rank = self._ranks[pattern, slot] + place - self._row_begins[pattern]
        rank = keyed.permute(rank, self._counts[size], keyed.mix(self._text_key, epoch, size))
        return Seats(batch_row, epoch, self._by_size[self._size_begins[size] + rank].astype(np.int64))


def _first_ranks(patterns: Patterns) -> Numbers:
    """[P, M] how many texts of a slot's size are seated by the patterns and slots before it."""
    ranks = np.zeros_like(patterns.sizes)
    seated: Counter[int] = Counter()
    for number, (sizes, rows) in enumerate(zip(patterns.sizes.tolist(), patterns.rows.tolist(), strict=True)):
        for slot, size in enumerate(sizes):
            ranks[number, slot] = seated[size]
            seated[size] += rows
    return ranks
