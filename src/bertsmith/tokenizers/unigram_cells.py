"""Counted words as arrays for the training of a unigram vocabulary: every character of every word is a cell.

Words are sorted, then laid out by length: the result does not depend on the order of the counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertsmith.tokenizers.unigram_lattice import LONGEST_WORD, Floats, Ints

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
