"""Samples of different lengths share rows. Every sample occurs once per epoch, and any row can be made on its own.

Which lengths share a row is decided on the histogram of lengths, so that the cost does not depend on the corpus:
longest first, each into the row with the least free space that fits (Krell et al. 2021, "Efficient sequence packing
without cross-contamination", algorithm LPFHP). In each epoch one permutation shuffles the rows, and one per length
decides which sample of that length is in which row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing.counter_random import mix_counters, permute, stream_key
from bertsmith.data.packing.document_stream import start_type
from bertsmith.data.packing.packing import Numbers, Packing

MAX_TEXTS = 16  # of a row of up to MAX_TEXTS * TOKENS_PER_TEXT tokens
TOKENS_PER_TEXT = 16  # the limit of long rows: max_length divided by this
NEGLIGIBLE_PADDING = 0.003  # fraction of padding below which more texts per row are not tried

Pattern = tuple[tuple[int, ...], int]  # lengths that share a row, and the number of rows


@dataclass(frozen=True)
class RowPatterns:
    """P combinations of lengths, each with its number of rows; M texts per row at most."""

    lengths: Numbers  # [P, M] 0 for no text
    rows: Numbers  # [P]
    padding_fraction: float


def find_patterns(counts: Sequence[int], *, max_length: int) -> RowPatterns:
    """Patterns that place `counts[length]` texts of each length in rows of `max_length` tokens.

    The number of texts per row is as small as negligible padding allows, because each text slot costs the model one
    more position that it reads.
    """
    texts = sum(counts)
    tokens = sum(length * number for length, number in enumerate(counts))
    assert texts, "the split is not empty"
    for limit in _limits(max(MAX_TEXTS, max_length // TOKENS_PER_TEXT)):
        patterns = _pack(counts, max_length=max_length, max_texts=limit)
        rows = sum(number for _, number in patterns)
        padding = 1 - tokens / (rows * max_length)
        if padding <= NEGLIGIBLE_PADDING:
            break
    widest = max(len(lengths) for lengths, _ in patterns)
    return RowPatterns(
        lengths=np.array([lengths + (0,) * (widest - len(lengths)) for lengths, _ in patterns], np.int64),
        rows=np.array([number for _, number in patterns], np.int64),
        padding_fraction=padding,
    )


def _limits(highest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... highest."""
    limits = [1, 2, 3]
    while limits[-1] < highest:
        limits.append(min(2 * limits[-2], highest))
    return limits


def _pack(counts: Sequence[int], *, max_length: int, max_texts: int) -> list[Pattern]:
    full: list[Pattern] = []
    open_rows: list[tuple[int, int, tuple[int, ...], int]] = []  # ascending: free space, -serial number, pattern
    serial = count()

    def push(space: int, lengths: tuple[int, ...], rows: int) -> None:
        if rows:
            insort(open_rows, (space, -next(serial), lengths, rows))

    for length in range(max_length, 0, -1):
        left = counts[length]
        while left:
            new_rows = -(-left // min(max_length // length, max_texts))  # texts of one length share rows too
            best = bisect_left(open_rows, (length,))  # the least space that is enough, and the newest of these patterns
            space, _, lengths, rows = open_rows.pop(best) if best < len(open_rows) else (max_length, 0, (), new_rows)
            filled = min(rows, left)
            left -= filled
            push(space, lengths, rows - filled)
            if space == length or len(lengths) + 1 == max_texts:
                full.append(((*lengths, length), filled))
            else:
                push(space - length, (*lengths, length), filled)
    oldest_first = sorted(open_rows, key=lambda row: (row[0], -row[1]))
    return full + [(lengths, rows) for _, _, lengths, rows in oldest_first]


class RowSamples(NamedTuple):
    """The N samples of some rows, row by row."""

    row: Numbers  # [N] index in the batch, ascending; every row has a sample
    sample: Numbers  # [N] number within the epoch
    sample_id: Numbers  # [N] unique in the run


class BinPacking(Packing):
    """Assigns samples of these `lengths`, each from 1 to `max_length`, to rows; a subclass reads their texts."""

    def __init__(self, lengths: NDArray[np.integer], *, max_length: int, seed: int) -> None:
        counts = np.bincount(lengths, minlength=max_length + 1)
        patterns = find_patterns(counts.tolist(), max_length=max_length)
        self.max_length, self.rows_per_epoch = max_length, int(patterns.rows.sum())
        self.texts_per_row, self.padding_fraction = patterns.lengths.shape[1], patterns.padding_fraction
        self._samples, self._patterns, self._counts = len(lengths), patterns.lengths, counts
        self._row_ends = np.cumsum(patterns.rows)
        self._row_starts = self._row_ends - patterns.rows
        self._ranks = _first_ranks(patterns)
        self._by_length = np.argsort(lengths.astype(np.uint16), kind="stable").astype(start_type(len(lengths)))
        self._length_starts = np.cumsum(counts) - counts
        self._row_key, self._text_key = (stream_key(seed, f"packing/{purpose}") for purpose in ("rows", "texts"))

    def samples_of(self, first: int, count: int) -> RowSamples:
        """The samples of `count` rows of the endless sequence from number `first` on."""
        epoch, row = self.epochs_and_rows(first, count)
        slot_row = permute(row, self.rows_per_epoch, mix_counters(self._row_key, epoch))
        pattern = np.searchsorted(self._row_ends, slot_row, "right")
        lengths = self._patterns[pattern]
        batch_row, slot = np.nonzero(lengths)
        length, pattern = lengths[batch_row, slot], pattern[batch_row]
        slot_row, epoch = slot_row[batch_row], epoch[batch_row]
        rank = self._ranks[pattern, slot] + slot_row - self._row_starts[pattern]
        rank = permute(rank, self._counts[length], mix_counters(self._text_key, epoch, length))
        sample = self._by_length[self._length_starts[length] + rank].astype(np.int64)
        return RowSamples(batch_row, sample, epoch * self._samples + sample)


def _first_ranks(patterns: RowPatterns) -> Numbers:
    """[P, M] the number of texts of a slot's length in the patterns and slots before it."""
    ranks = np.zeros_like(patterns.lengths)
    placed: Counter[int] = Counter()
    for number, (lengths, rows) in enumerate(zip(patterns.lengths.tolist(), patterns.rows.tolist(), strict=True)):
        for slot, length in enumerate(lengths):
            ranks[number, slot] = placed[length]
            placed[length] += rows
    return ranks
