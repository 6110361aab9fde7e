"""All ways of cutting words into pieces, as arrays: expected counts of the pieces, and the best way of each word.

Words of a lattice are sorted from the longest to the shortest, so that the words with at least j characters are the
first `widths[j]` of them. A row holds every word that has a piece between two places; no row holds a word twice, so
that a whole row is added, or maximised over, by one array operation. Knows numbers of words and pieces, no strings.
"""

from __future__ import annotations

from collections.abc import Iterable
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
