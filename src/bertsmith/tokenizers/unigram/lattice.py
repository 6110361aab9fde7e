"""Segmentation lattices of many words as arrays: expected piece counts and best segmentations, without Python loops.

Words of a lattice are sorted from longest to shortest, so that the words with at least j characters are the first
`widths[j]`. An edge group holds the edges of all words between two character positions. A group has each word at most
once, so that one array operation sums or maximises over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

MAX_WORD_LENGTH = 40  # characters of a word in a lattice
# Probabilities are multiplied by SCALE for each character, so that float64 holds those of all words without logarithms:
# for pieces of 1e-12 to 1, words have (1e-12 * 1e5)**40 = 1e-280 to 1e5**40 * 2**39 segmentations = 1e212.
SCALE = 1e5
MIN_PROBABILITY = 1e-12


class EdgeGroup(NamedTuple):
    """The edges from one character position to another: `first` to `last` of the lattice's edges."""

    begin: int
    end: int
    first: int
    last: int


class Lattice:
    """Edges between character positions of words: the characters in between are a piece."""

    def __init__(self, widths: list[int], groups: Iterable[tuple[int, int, Ints, Ints]]) -> None:
        """`groups`: (begin, end, words, pieces), in any order; each word at most once in a group."""
        self.widths = widths  # words with at least j characters, for j from 0 to the longest + 1
        self.groups: list[EdgeGroup] = []
        ordered = sorted(groups, key=lambda group: (group[1], -group[0]))
        at = 0
        for begin, end, words, _ in ordered:
            self.groups.append(EdgeGroup(begin, end, at, at + len(words)))
            at += len(words)
        nothing = [np.zeros(0, np.int32)]
        self.words = np.concatenate(nothing + [words for _, _, words, _ in ordered])
        self.pieces = np.concatenate(nothing + [pieces for _, _, _, pieces in ordered])

    def expected(self, probabilities: Floats, weights: Floats) -> Floats:
        """Expected count of each piece under the pieces' probabilities (scaled by SCALE).

        probabilities [V], weights [words] count of each word -> [V]. Forward-backward over all words at once.
        """
        edges = probabilities[self.pieces]
        forward = self._forward(edges)
        backward = [np.zeros(width) for width in self.widths]
        for length, ended in self._ends():
            backward[length][ended] = weights[ended] / forward[length][ended]
        for group in reversed(self.groups):
            words, span = self._words(group), slice(group.first, group.last)
            through = backward[group.end][words] * edges[span]
            backward[group.begin][words] += through
            edges[span] = through * forward[group.begin][words]
        return sum_by_index(self.pieces, edges, len(probabilities))

    def _forward(self, edges: Floats) -> list[Floats]:
        """Sum over all segmentations up to each position of each word: [longest + 2][words that long]."""
        forward = [np.zeros(width) for width in self.widths]
        forward[0][:] = 1
        for group in self.groups:
            words = self._words(group)
            forward[group.end][words] += forward[group.begin][words] * edges[group.first : group.last]
        return forward

    def best(self, scores: Floats) -> Floats:
        """The greatest sum of scores (log-probabilities) of any segmentation of each word; [V] -> [words]."""
        edges = scores[self.pieces]
        best = [np.full(width, -np.inf) for width in self.widths]
        best[0][:] = 0
        for group in self.groups:
            words = self._words(group)
            reached = best[group.begin][words] + edges[group.first : group.last]
            best[group.end][words] = np.maximum(best[group.end][words], reached)
        result = np.empty(self.widths[0])
        for length, ended in self._ends():
            result[ended] = best[length][ended]
        return result

    def keep(self, numbers: Ints) -> None:
        """Removes pieces and renumbers the others: `numbers` [V] is -1 for removed pieces."""
        self._select(numbers[self.pieces] >= 0)
        self.pieces = numbers[self.pieces]

    def keep_words(self, kept: NDArray[np.bool_]) -> None:
        """Removes words; `kept` [words]."""
        self._select(kept[self.words])
        self.words = (np.cumsum(kept, dtype=np.int32) - np.int32(1))[self.words]
        self.widths = [int(np.count_nonzero(kept[:width])) for width in self.widths]

    def _select(self, remaining: NDArray[np.bool_]) -> None:
        self.words, self.pieces = self.words[remaining], self.pieces[remaining]
        groups, self.groups = self.groups, []
        at = 0
        for group in groups:
            count = int(np.count_nonzero(remaining[group.first : group.last]))
            if count:
                self.groups.append(EdgeGroup(group.begin, group.end, at, at + count))
            at += count

    def _words(self, group: EdgeGroup) -> slice | Ints:
        # If every word that is long enough has the edge (always for single characters), a slice is much faster.
        count = group.last - group.first
        return slice(0, count) if count == self.widths[group.end] else self.words[group.first : group.last]

    def _ends(self) -> Iterable[tuple[int, slice]]:
        """(length, the words of that length)."""
        for length in range(1, len(self.widths) - 1):
            yield length, slice(self.widths[length + 1], self.widths[length])


def sum_by_index(numbers: Ints, values: Floats, size: int) -> Floats:
    """The sum of the values of each index below `size`, added in their order."""
    return np.asarray(np.bincount(numbers, values, minlength=size), np.float64)


BLOCK_SIZE = 1 << 19  # characters that are processed at once


@dataclass(frozen=True)
class Block:
    """Words of similar length, from longest to shortest; their characters are stored position by position."""

    starts: Ints  # [longest + 1] first cell of each position, and the end of the block
    widths: list[int]  # words with at least j characters, for j from 0 to longest + 1
    weights: Floats  # [words] count of each word


@dataclass(frozen=True)
class Cells:
    """The characters of all words; a cell is one character of one word. C = number of cells.

    Words are sorted, then stored by length: the result does not depend on the order of the counts.
    """

    alphabet: str  # by code, in code point order
    codes: Ints  # [C] the character
    following: Ints  # [C] cell of the word's next character, -1 at its end
    blocks: list[Block]

    def words(self) -> Ints:
        """[C] the word of each cell, numbered over all blocks."""
        parts = []
        first = 0
        for block in self.blocks:
            parts += [np.arange(first, first + width, dtype=np.int32) for width in block.widths[1:-1]]
            first += len(block.weights)
        return np.concatenate(parts)

    def text(self, begin: int, length: int) -> str:
        """The characters from a cell onward."""
        characters = []
        for _ in range(length):
            characters.append(self.alphabet[self.codes[begin]])
            begin = self.following[begin]
        return "".join(characters)


def build_cells(counts: dict[str, int]) -> Cells:
    """The cells of word counts. Empties `counts` to save memory."""
    counts.pop("", None)
    # differs from the paper: a word is split after every 40 characters. Pieces are shorter, and few words are so long.
    for word in [word for word in counts if len(word) > MAX_WORD_LENGTH]:
        count = counts.pop(word)
        for begin in range(0, len(word), MAX_WORD_LENGTH):
            part = word[begin : begin + MAX_WORD_LENGTH]
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
    first_codes = (np.cumsum(lengths, dtype=np.int32) - lengths)[order]  # of each word, in `codes`
    lengths, weights = lengths[order], weights[order]
    arrays: list[tuple[Ints, Ints]] = []
    blocks: list[Block] = []
    for first, last in _bounds(lengths):
        start = int(blocks[-1].starts[-1]) if blocks else 0
        block = _block(lengths[first:last], weights[first:last], start)
        blocks.append(block)
        begins = [first_codes[first : first + width] for width in block.widths[1:-1]]
        arrays.append(
            (np.concatenate([codes[begin + position] for position, begin in enumerate(begins)]), _following(block))
        )
    alphabet = "".join(map(chr, np.flatnonzero(used)))
    codes, following = (np.concatenate(parts) for parts in zip(*arrays, strict=True))
    return Cells(alphabet, codes, following, blocks)


def _bounds(lengths: Ints) -> Iterator[tuple[int, int]]:
    """First word and end of each block."""
    ends = np.cumsum(lengths, dtype=np.int64)
    first = 0
    while first < len(lengths):
        begun = int(ends[first]) - int(lengths[first])
        last = max(first + 1, int(np.searchsorted(ends, begun + BLOCK_SIZE, side="right")))
        yield first, last
        first = last


def _block(lengths: Ints, weights: Floats, start: int) -> Block:
    longest = int(lengths[0])
    widths = [int(np.count_nonzero(lengths >= length)) for length in range(longest + 2)]
    starts = np.cumsum([start, *widths[1:-1]], dtype=np.int32)
    return Block(starts, widths, weights)


def _following(block: Block) -> Ints:
    following = np.full(block.starts[-1] - block.starts[0], -1, np.int32)
    for begin, next_begin, longer in zip(block.starts[:-1], block.starts[1:], block.widths[2:], strict=True):
        first = begin - block.starts[0]
        following[first : first + longer] = np.arange(next_begin, next_begin + longer, dtype=np.int32)
    return following
