"""All ways of cutting words into pieces, as arrays: expected counts of the pieces, and the best way of each word.

Words of a lattice are sorted from the longest to the shortest, so that the words with at least j characters are the
first `widths[j]` of them. A row holds every word that has a piece between two places; no row holds a word twice, so
that a whole row is added, or maximised over, by one array operation. Knows numbers of words and pieces, no strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

LONGEST_WORD = 40  # characters of a word in a lattice
# Probabilities are multiplied by this for each character, whereupon float64 holds those of all words as they are: where
# a piece has 1e-12 to 1, a word has (1e-12 * 1e5)**40 = 1e-280 to 1e5**40 times 2**39 ways = 1e212.
SCALE = 1e5
LEAST = 1e-12


class Row(NamedTuple):
    """The edges from one place in the words to another: `first` to `last` of the lattice's edges."""

    begin: int
    end: int
    first: int
    last: int


class Lattice:
    """Edges between places of words: each says that the characters there are a piece."""

    def __init__(self, widths: list[int], rows: Iterable[tuple[int, int, Ints, Ints]]) -> None:
        """`rows`: (begin, end, words, pieces), in any order, without a word twice."""
        self.widths = widths  # words with at least j characters, for j from 0 to the longest + 1
        self.rows: list[Row] = []
        held = sorted(rows, key=lambda row: (row[1], -row[0]))
        at = 0
        for begin, end, words, _ in held:
            self.rows.append(Row(begin, end, at, at + len(words)))
            at += len(words)
        nothing = [np.zeros(0, np.int32)]
        self.words = np.concatenate(nothing + [words for _, _, words, _ in held])
        self.pieces = np.concatenate(nothing + [pieces for _, _, _, pieces in held])

    def expected(self, probabilities: Floats, weights: Floats) -> Floats:
        """Expected count of each piece when words are cut at random by the pieces' probabilities (scaled by SCALE).

        probabilities [V], weights [words] how often each word occurs -> [V]. Forward-backward over all words at once.
        """
        edges = probabilities[self.pieces]
        forward = self._forward(edges)
        backward = [np.zeros(width) for width in self.widths]
        for length, ended in self._ends():
            backward[length][ended] = weights[ended] / forward[length][ended]
        for row in reversed(self.rows):
            words, span = self._words(row), slice(row.first, row.last)
            through = backward[row.end][words] * edges[span]
            backward[row.begin][words] += through
            edges[span] = through * forward[row.begin][words]
        return total_by_number(self.pieces, edges, len(probabilities))

    def _forward(self, edges: Floats) -> list[Floats]:
        """Sum over all ways of reaching each place of each word: [longest + 2][words that long]."""
        forward = [np.zeros(width) for width in self.widths]
        forward[0][:] = 1
        for row in self.rows:
            words = self._words(row)
            forward[row.end][words] += forward[row.begin][words] * edges[row.first : row.last]
        return forward

    def best(self, scores: Floats) -> Floats:
        """The greatest sum of scores (log-probabilities) of any way of cutting each word; [V] -> [words]."""
        edges = scores[self.pieces]
        best = [np.full(width, -np.inf) for width in self.widths]
        best[0][:] = 0
        for row in self.rows:
            words = self._words(row)
            reached = best[row.begin][words] + edges[row.first : row.last]
            best[row.end][words] = np.maximum(best[row.end][words], reached)
        whole = np.empty(self.widths[0])
        for length, ended in self._ends():
            whole[ended] = best[length][ended]
        return whole

    def keep(self, numbers: Ints) -> None:
        """Takes pieces away and numbers the others anew: `numbers` [V] is -1 for those that go."""
        pieces = numbers[self.pieces]
        stays = pieces >= 0
        self._select(stays)
        self.pieces = pieces[stays]

    def keep_words(self, kept: NDArray[np.bool_]) -> None:
        """Takes words away; `kept` [words]."""
        numbers = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        stays = kept[self.words]
        words = numbers[self.words[stays]]
        self.pieces = self.pieces[stays]
        self._select(stays)
        self.words = words
        self.widths = [int(np.count_nonzero(kept[:width])) for width in self.widths]

    def _select(self, stays: NDArray[np.bool_]) -> None:
        self.words = self.words[stays]
        rows, self.rows = self.rows, []
        at = 0
        for row in rows:
            count = int(np.count_nonzero(stays[row.first : row.last]))
            if count:
                self.rows.append(Row(row.begin, row.end, at, at + count))
            at += count

    def _words(self, row: Row) -> slice | Ints:
        # Where every word that is long enough has the edge (single characters always), a slice is much faster.
        count = row.last - row.first
        return slice(0, count) if count == self.widths[row.end] else self.words[row.first : row.last]

    def _ends(self) -> Iterable[tuple[int, slice]]:
        """(length, the words of that length)."""
        for length in range(1, len(self.widths) - 1):
            yield length, slice(self.widths[length + 1], self.widths[length])


def total_by_number(numbers: Ints, values: Floats, size: int) -> Floats:
    """The sum of the values that go with each number below `size`, added up in their order."""
    return np.asarray(np.bincount(numbers, values, minlength=size), np.float64)


BLOCK = 1 << 19  # cells that are worked on at once


@dataclass(frozen=True)
class Block:
    """Words of about the same length, from the longest to the shortest; their cells lie place by place."""

    starts: Ints  # [longest + 1] first cell of each place, and the first one after the block
    widths: list[int]  # words with at least j characters, for j from 0 to longest + 1
    weights: Floats  # [words] how often each word occurs


@dataclass(frozen=True)
class Cells:
    """The characters of all words. C = number of characters."""

    alphabet: str  # by code, in the order of code points
    codes: Ints  # [C] the character
    following: Ints  # [C] cell of the word's next character, -1 at its end
    blocks: list[Block]

    def words(self) -> Ints:
        """[C] the word that each cell belongs to, counted over all blocks."""
        parts = []
        first = 0
        for block in self.blocks:
            parts += [np.arange(first, first + width, dtype=np.int32) for width in block.widths[1:-1]]
            first += len(block.weights)
        return np.concatenate(parts)

    def spell(self, begin: int, length: int) -> str:
        """The characters from a cell on."""
        characters = []
        for _ in range(length):
            characters.append(self.alphabet[self.codes[begin]])
            begin = self.following[begin]
        return "".join(characters)


def lay_out(counts: dict[str, int]) -> Cells:
    """The cells of counted words. Empties `counts`, to save memory."""
    counts.pop("", None)
    # differs from the paper: a word is cut after every 40 characters. Pieces are shorter, and few words are so long.
    for word in [word for word in counts if len(word) > LONGEST_WORD]:
        count = counts.pop(word)
        for begin in range(0, len(word), LONGEST_WORD):
            part = word[begin : begin + LONGEST_WORD]
            counts[part] = counts.get(part, 0) + count
    words = sorted(counts)
    lengths = np.fromiter(map(len, words), np.int32, len(words))
    weights = np.fromiter(map(counts.__getitem__, words), np.float64, len(words))
    counts.clear()
    points = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
    del words
    used = np.bincount(points) > 0
    codes = (np.cumsum(used, dtype=np.int32) - np.int32(1))[points]
    order = np.argsort(-lengths, kind="stable")
    places = (np.cumsum(lengths, dtype=np.int32) - lengths)[order]  # where each word begins in `codes`
    lengths, weights = lengths[order], weights[order]
    held: list[tuple[Ints, Ints]] = []
    blocks: list[Block] = []
    for first, last in _bounds(lengths):
        start = int(blocks[-1].starts[-1]) if blocks else 0
        block = _block(lengths[first:last], weights[first:last], start)
        blocks.append(block)
        begins = [places[first : first + width] for width in block.widths[1:-1]]
        held.append((np.concatenate([codes[begin + place] for place, begin in enumerate(begins)]), _following(block)))
    alphabet = "".join(map(chr, np.flatnonzero(used)))
    codes, following = (np.concatenate(parts) for parts in zip(*held, strict=True))
    return Cells(alphabet, codes, following, blocks)


def _bounds(lengths: Ints) -> Iterator[tuple[int, int]]:
    """First and last word of each block."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = 0
    while first < len(lengths):
        begun = int(ends[first]) - int(lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, begun + BLOCK, side="right")))
        yield first, last
        first = last


def _block(lengths: Ints, weights: Floats, start: int) -> Block:
    longest = int(lengths[0])
    widths = [int(np.count_nonzero(lengths >= length)) for length in range(longest + 2)]
    starts = np.cumsum([start, *widths[1:-1]], dtype=np.int32)
    return Block(starts, widths, weights)


def _following(block: Block) -> Ints:
    following = np.full(block.starts[-1] - block.starts[0], -1, np.int32)
    for place, (width, longer) in enumerate(zip(block.widths[1:], block.widths[2:], strict=False)):
        begin = block.starts[place]
        first = begin - block.starts[0]
        following[first : first + longer] = np.arange(begin, begin + longer, dtype=np.int32) + np.int32(width)
    return following
