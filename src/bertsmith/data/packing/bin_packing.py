"""Which sizes share a row: decided on the histogram of sizes, so that it costs the same whatever the corpus.

Longest first, each into the tightest room that it fits (Krell et al. 2021, "Efficient sequence packing without
cross-contamination", algorithm LPFHP). Knows sizes and counts, no texts.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.packing import counter_random
from bertsmith.data.packing.document_stream import start_type
from bertsmith.data.packing.packing import Numbers

MOST, PLACES = 16, 16  # texts that a row may hold: so many, or in long rows one for so many places
ENOUGH = 0.003  # share of padding below which more texts in a row are not worth it


@dataclass(frozen=True)
class Patterns:
    """P ways to fill a row, each with the number of rows that are filled so; M texts in a row at most."""

    sizes: Numbers  # [P, M] 0 where there is no text
    rows: Numbers  # [P]
    padding: float  # share of all places


def find_patterns(counts: Sequence[int], *, length: int) -> Patterns:
    """Patterns that use up `counts[size]` texts of each size in rows of `length` places.

    With as few texts in a row as leave hardly any padding: each costs a model a place that it must read.
    """
    texts = sum(counts)
    used = sum(size * count for size, count in enumerate(counts))
    assert texts, "there is something to pack"
    for most in _limits(max(MOST, length // PLACES)):
        found = _pack(counts, length=length, most=most)
        rows = sum(count for _, count in found)
        padding = 1 - used / (rows * length)
        if padding <= ENOUGH:
            break
    widest = max(len(sizes) for sizes, _ in found)
    return Patterns(
        sizes=np.array([sizes + (0,) * (widest - len(sizes)) for sizes, _ in found], np.int64),
        rows=np.array([count for _, count in found], np.int64),
        padding=padding,
    )


def _limits(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, ... most."""
    found = [1, 2, 3]
    while found[-1] < most:
        found.append(min(2 * found[-2], most))
    return found


def _pack(counts: Sequence[int], *, length: int, most: int) -> list[tuple[tuple[int, ...], int]]:
    """Tuples of sizes, each with the number of rows that hold them."""
    full: list[tuple[tuple[int, ...], int]] = []
    rooms = _Rooms()
    for size in range(length, 0, -1):
        left = counts[size]
        while left:
            new_rows = -(-left // min(length // size, most))  # texts of one size share them too
            room, sizes, rows = rooms.take(size) or (length, (), new_rows)
            filled = min(rows, left)
            left -= filled
            rooms.put(room, sizes, rows - filled)
            if room == size or len(sizes) + 1 == most:
                full.append(((*sizes, size), filled))
            else:
                rooms.put(room - size, (*sizes, size), filled)
    return full + rooms.everything()


class _Rooms:
    """Patterns that are not full yet, by the room that they have left."""

    def __init__(self) -> None:
        self._rooms: list[int] = []  # ascending
        self._patterns: dict[int, list[tuple[tuple[int, ...], int]]] = {}

    def put(self, room: int, sizes: tuple[int, ...], rows: int) -> None:
        if rows:
            if room not in self._patterns:
                insort(self._rooms, room)
            self._patterns.setdefault(room, []).append((sizes, rows))

    def take(self, size: int) -> tuple[int, tuple[int, ...], int] | None:
        """A pattern with the least room that is enough, or None."""
        place = bisect_left(self._rooms, size)
        if place == len(self._rooms):
            return None
        room = self._rooms[place]
        sizes, rows = self._patterns[room].pop()
        if not self._patterns[room]:
            del self._patterns[room], self._rooms[place]
        return room, sizes, rows

    def everything(self) -> list[tuple[tuple[int, ...], int]]:
        return [pattern for room in self._rooms for pattern in self._patterns[room]]


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
        self._row_key, self._text_key = (
            counter_random.stream(seed, "packing/rows"),
            counter_random.stream(seed, "packing/texts"),
        )

    def seats(self, epoch: Numbers, row: Numbers) -> Seats:
        """The texts of these rows (epoch and number within it)."""
        place = counter_random.permute(row, self.rows_per_epoch, counter_random.mix(self._row_key, epoch))
        pattern = np.searchsorted(self._row_ends, place, "right")
        sizes = self._sizes[pattern]
        batch_row, slot = np.nonzero(sizes)
        size, pattern, place, epoch = sizes[batch_row, slot], pattern[batch_row], place[batch_row], epoch[batch_row]
        rank = self._ranks[pattern, slot] + place - self._row_begins[pattern]
        rank = counter_random.permute(rank, self._counts[size], counter_random.mix(self._text_key, epoch, size))
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
