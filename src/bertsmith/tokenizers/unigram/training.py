"""Training of a unigram vocabulary: pieces and their log-probabilities (Kudo 2018, as in SentencePiece).

Training starts with many frequent substrings. EM over all segmentations of the words alternates with pruning of the
pieces whose removal costs the least likelihood, until `vocab_size` pieces are left. The result is bit-identical for the
same counts, independent of their order and of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.unigram.lattice import (
    MIN_PROBABILITY,
    SCALE,
    Cells,
    Floats,
    Ints,
    Lattice,
    build_cells,
    sum_by_index,
)

MAX_PIECE_LENGTH = 16  # characters
SEED_FACTOR = 12  # initial pieces per piece of the vocabulary: more costs time and gains nothing
MIN_EXPECTED = 0.5  # pieces with a lower expected count are dropped
DECIMALS = 6  # of a score: further digits depend on the processor


def train_unigram(
    counts: dict[str, int],
    *,
    vocab_size: int,
    required: Collection[str] = (),
    longest: int = MAX_PIECE_LENGTH,
    seed_size: int | None = None,
    shrink: float = 0.75,
    sub_iterations: int = 2,
) -> list[tuple[str, float]]:
    """Pieces with log-probabilities, the most probable first; all characters of the words and of `required` are pieces.

    At most `vocab_size` pieces, fewer if the words do not have as many. Empties `counts` to save memory.
    """
    if not 0 < shrink < 1 or sub_iterations < 1 or longest < 1:
        raise ConfigError(f"{shrink=} must lie between 0 and 1, {sub_iterations=} and {longest=} must be at least 1")
    if not any(counts):
        raise DataError("the corpus is empty: there are no words to train a vocabulary on")
    cells = build_cells(counts)
    absent = sorted(set().union(*required).difference(cells.alphabet))
    characters = len(cells.alphabet) + len(absent)
    if characters > vocab_size:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small: the text has {characters} characters, and each is a piece"
        )
    training = _Training(cells, longest=longest, seed_size=seed_size or SEED_FACTOR * vocab_size)
    size = vocab_size - len(absent)
    while True:
        for _ in range(sub_iterations):
            training.step(size)
        if len(training.scores) <= size:
            break
        training.prune(max(size, int(len(training.scores) * shrink)))
    scores = training.scores.round(DECIMALS)
    trained = zip(training.firsts.tolist(), training.lengths.tolist(), scores.tolist(), strict=True)
    pieces = [(cells.text(first, length), score) for first, length, score in trained]
    pieces += [(character, float(scores.min())) for character in absent]
    return sorted(pieces, key=lambda piece: (-piece[1], piece[0]))


class _Training:
    """The current pieces, always in their initial order: from shortest to longest, alphabetical."""

    def __init__(self, cells: Cells, *, longest: int, seed_size: int) -> None:
        seeds = find_seeds(cells, longest=longest, most=seed_size)
        self.lengths = seeds.lengths  # [V]
        self.scores = np.log(seeds.counts / seeds.counts.sum())  # [V] log-probabilities
        self.expected = seeds.counts  # [V] expected counts
        self.firsts = np.empty(len(seeds.lengths), np.int32)  # [V] a cell at which each piece begins
        for begins, pieces in seeds.occurrences:
            self.firsts[pieces[::-1]] = begins[::-1]
        self.pieces = piece_lattice(cells, seeds, self.firsts)
        self.words = word_lattices(cells, seeds)
        self.weights = [block.weights for block in cells.blocks]

    def step(self, size: int) -> None:
        """One EM iteration; drops pieces with a low expected count while more than `size` pieces are left."""
        probabilities = np.exp(np.maximum(self.scores, np.log(MIN_PROBABILITY)) + self.lengths * np.log(SCALE))
        self.expected = np.zeros(len(probabilities))
        for lattice, weights in zip(self.words, self.weights, strict=True):
            self.expected += lattice.expected(probabilities, weights)
        # Characters are kept: every word must have a segmentation.
        kept = (self.expected >= MIN_EXPECTED) | (self.lengths == 1)
        kept[np.argsort(-self.expected, kind="stable")[:size]] = True
        self._keep(kept)
        self.expected = self.expected.clip(min=MIN_EXPECTED)
        self.scores = _digamma(self.expected) - _digamma(self.expected.sum(keepdims=True))

    def prune(self, size: int) -> None:
        """Keeps the `size` pieces whose removal would reduce the likelihood of the words the most.

        A removed piece is replaced by its best segmentation into other pieces; characters have none.
        """
        loss = self.expected * (self.scores - self.pieces.best(self.scores)[::-1])
        kept = np.zeros(len(loss), np.bool_)
        kept[np.argsort(-loss, kind="stable")[:size]] = True
        self._keep(kept)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if kept.all():
            return
        numbers = np.where(kept, np.cumsum(kept) - 1, -1).astype(np.int32)
        for lattice in (*self.words, self.pieces):
            lattice.keep(numbers)
        self.pieces.keep_words(kept[::-1])
        self.lengths, self.firsts = self.lengths[kept], self.firsts[kept]
        self.scores, self.expected = self.scores[kept], self.expected[kept]


def _digamma(values: Floats) -> Floats:
    """The derivative of log gamma for positive values; above 7 its series is exact to 1e-13."""
    raised = values.astype(np.float64)
    result = np.zeros_like(raised)
    for _ in range(7):
        small = raised < 7
        result[small] -= 1 / raised[small]
        raised[small] += 1
    raised -= 0.5
    inverse = 1 / (raised * raised)
    series = inverse * (1 / 24 - inverse * (7 / 960 - inverse * (31 / 8064 - inverse * 127 / 30720)))
    return result + np.log(raised) + series


@dataclass(frozen=True)
class Substrings:
    """Substrings of one length. N = occurrences, S = distinct substrings.

    They are numbered in alphabetical order, from the numbers of their prefixes: exact integers, no hashing.
    """

    length: int
    begins: Ints  # [N] cells, ascending
    numbers: Ints  # [N] which substring
    counts: Floats  # [S] occurrences of each
    scores: Floats  # [S] count x length; 0 for excluded ones

    def select(self, kept: NDArray[np.bool_]) -> Substrings:
        """A subset, renumbered; `kept` [S]."""
        remaining = kept[self.numbers]
        numbers = (np.cumsum(kept, dtype=np.int32) - np.int32(1))[self.numbers[remaining]]
        return Substrings(self.length, self.begins[remaining], numbers, self.counts[kept], self.scores[kept])


@dataclass(frozen=True)
class Seeds:
    """The initial pieces, from shortest to longest, alphabetical within a length. V = their number."""

    lengths: Ints  # [V]
    counts: Floats  # [V] occurrences of each
    occurrences: list[tuple[Ints, Ints]]  # by length 1, 2, ...: first cells (ascending) and pieces


def find_seeds(cells: Cells, *, longest: int, most: int) -> Seeds:
    """Every character, and the `most` best substrings of 2 to `longest` characters by count x length (Kudo 2018, 3.2).

    Substrings that are always followed by the same character are excluded, as in SentencePiece.
    """
    kept = len(cells.alphabet) + most
    return _best(_frequent(cells, longest, kept), kept)


def _frequent(cells: Cells, longest: int, most: int) -> list[Substrings]:
    """By length: characters, and the substrings that can be among the best."""
    weights = np.concatenate([block.weights for block in cells.blocks])
    words = cells.words()
    counts = sum_by_index(cells.codes, weights[words], len(cells.alphabet))
    ends = np.arange(len(cells.codes), dtype=np.int32)  # cell of the last character of each occurrence
    current = Substrings(1, ends, cells.codes, counts, np.full(len(counts), np.inf))
    candidates: list[Substrings] = []
    while current.length < longest and len(ends):
        longer, ends, prefixes = _extend(cells, current, ends, lambda begins: weights[words[begins]])
        if current.length > 1:
            _exclude_always_followed(current, longer, prefixes)
        least = _smallest_of_best([*(substrings.scores for substrings in candidates), current.scores], most)
        candidates.append(current.select(current.scores >= max(least, 1)))
        # A substring is not more frequent than its prefix: drop those that cannot be among the best at full length.
        live = (longer.counts > 1) & (longer.counts * longest >= least)
        ends = ends[live[longer.numbers]]
        current = longer.select(live)
    return [*candidates, current]


def _extend(
    cells: Cells, shorter: Substrings, ends: Ints, weigh: Callable[[Ints], Floats]
) -> tuple[Substrings, Ints, Ints]:
    """Substrings with one more character, their last cells [N], and the number of each one's prefix [S].

    `weigh`: cells -> counts of their words.
    """
    ends = cells.following[ends]
    inside = ends >= 0
    begins, ends = shorter.begins[inside], ends[inside]
    # Half the memory if the keys fit into 32 bits.
    code = np.dtype(np.uint32 if len(shorter.counts) * len(cells.alphabet) < 2**32 else np.uint64)
    characters = np.array(len(cells.alphabet), code)
    keys = shorter.numbers[inside].astype(code) * characters + cells.codes[ends].astype(code)
    order = np.argsort(keys)
    keys = keys[order]
    differs = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=differs[1:])
    prefixes = (keys[differs] // characters).astype(np.int32)
    del keys
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.cumsum(differs, dtype=np.int32) - np.int32(1)
    del order, differs
    # Sums of integers below 2**53 are exact, independent of their order.
    counts = sum_by_index(numbers, weigh(begins), len(prefixes))
    length = shorter.length + 1
    return Substrings(length, begins, numbers, counts, counts * length), ends, prefixes


def _exclude_always_followed(shorter: Substrings, longer: Substrings, prefixes: Ints) -> None:
    heads = np.flatnonzero(np.diff(prefixes, prepend=np.int32(-1)))
    always = np.maximum.reduceat(longer.counts, heads) == shorter.counts[prefixes[heads]]
    shorter.scores[prefixes[heads[always]]] = 0


def _smallest_of_best(scores: list[Floats], most: int) -> float:
    """The smallest score among the `most` greatest."""
    every = np.concatenate(scores)
    return float(np.partition(every, -most)[-most]) if len(every) > most else 0.0


def _best(candidates: list[Substrings], most: int) -> Seeds:
    """The substrings with the greatest scores; ties: shorter first, then alphabetical. Empties `candidates`."""
    scores = np.concatenate([substrings.scores for substrings in candidates])
    counts = np.concatenate([substrings.counts for substrings in candidates])
    sizes = [len(substrings.counts) for substrings in candidates]
    lengths = np.repeat(np.arange(1, len(candidates) + 1, dtype=np.int32), sizes)
    chosen = np.zeros(len(scores), np.bool_)
    chosen[np.argsort(-scores, kind="stable")[:most]] = True
    pieces = np.where(chosen, np.cumsum(chosen) - 1, -1).astype(np.int32)
    occurrences = []
    first = 0
    while candidates:
        substrings = candidates.pop(0)
        numbers = pieces[first : first + len(substrings.counts)][substrings.numbers]
        occurrences.append((substrings.begins[numbers >= 0], numbers[numbers >= 0]))
        first += len(substrings.counts)
    return Seeds(lengths[chosen], counts[chosen], occurrences)


def word_lattices(cells: Cells, seeds: Seeds) -> list[Lattice]:
    """The lattice of the words of each block. Empties `seeds.occurrences` to save memory."""
    rows: list[list[tuple[int, int, Ints, Ints]]] = [[] for _ in cells.blocks]
    for length in range(1, len(seeds.occurrences) + 1):
        begins, pieces = seeds.occurrences.pop(0)
        for block, held in zip(cells.blocks, rows, strict=True):
            bounds = np.searchsorted(begins, block.starts)
            for begin in range(len(block.starts) - length):
                here = slice(bounds[begin], bounds[begin + 1])
                held.append((begin, begin + length, begins[here] - block.starts[begin], pieces[here].copy()))
    return [Lattice(block.widths, rows.pop(0)) for block in cells.blocks]


def piece_lattice(cells: Cells, seeds: Seeds, firsts: Ints) -> Lattice:
    """The lattice whose words are the pieces, in reverse order, without the edges that span a complete word.

    `firsts` [V] is a cell at which each piece begins.
    """
    lengths = seeds.lengths[::-1]
    longest = int(lengths[0])
    widths = [int(np.count_nonzero(lengths >= length)) for length in range(longest + 2)]
    positions = [firsts[::-1]]  # by position: the cells of the pieces of that length
    for width in widths[2:-1]:
        positions.append(cells.following[positions[-1][:width]])
    rows = []
    at = np.empty(len(cells.codes), np.int32)  # the piece of the current length that begins at each cell
    for length, (begins, pieces) in enumerate(seeds.occurrences, 1):
        at.fill(-1)
        at[begins] = pieces
        for begin in range(longest - length + 1):
            width = widths[begin + length] if begin else widths[length + 1]  # from 0, only longer words
            pieces_at = at[positions[begin][:width]]
            words = np.flatnonzero(pieces_at >= 0).astype(np.int32)
            rows.append((begin, begin + length, words, pieces_at[words]))
    return Lattice(widths, rows)
