"""Learns the pieces of a unigram vocabulary and their log-probabilities (Kudo 2018, as SentencePiece does it).

Many frequent substrings are thinned out: expectation-maximisation over all ways of cutting each word, then the pieces
whose loss costs the least likelihood go, and so on until as many are left as were asked for. The result depends on the
counts alone, to the last bit: not on their order, nor on threads.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import ConfigError, DataError
from bertsmith.tokenizers.unigram_cells import Cells, lay_out
from bertsmith.tokenizers.unigram_lattice import LEAST, SCALE, Floats
from bertsmith.tokenizers.unigram_seeds import find_seeds, piece_lattice, word_lattices

LONGEST = 16  # characters of a piece
SEEDS = 12  # as many times the vocabulary's size to begin with: more costs time and gains nothing
FEWEST = 0.5  # a piece that is expected less often than this is dropped
DECIMALS = 6  # of a score: what lies below depends on the processor


def train_unigram(
    counts: dict[str, int],
    *,
    vocab_size: int,
    required: Collection[str] = (),
    longest: int = LONGEST,
    seed_size: int | None = None,
    shrink: float = 0.75,
    sub_iterations: int = 2,
) -> list[tuple[str, float]]:
    """Pieces with log-probabilities, the most probable first; every character of the words and of `required` is one.

    At most `vocab_size` pieces, fewer where the words have not as many. Empties `counts`, to save memory.
    """
    if not 0 < shrink < 1 or sub_iterations < 1 or longest < 1:
        raise ConfigError(f"{shrink=} must lie between 0 and 1, {sub_iterations=} and {longest=} must be at least 1")
    if not any(counts):
        raise DataError("there are no words to learn a vocabulary from: the corpus is empty")
    cells = lay_out(counts)
    absent = sorted(set().union(*required).difference(cells.alphabet))
    characters = len(cells.alphabet) + len(absent)
    if characters > vocab_size:
        raise ConfigError(
            f"vocab_size={vocab_size} is too small: the text has {characters} characters, and each is a piece"
        )
    training = _Training(cells, longest=longest, seed_size=seed_size or SEEDS * vocab_size)
    size = vocab_size - len(absent)
    while True:
        for _ in range(sub_iterations):
            training.step(size)
        if len(training.scores) <= size:
            break
        training.prune(max(size, int(len(training.scores) * shrink)))
    scores = training.scores.round(DECIMALS)
    found = zip(training.firsts.tolist(), training.lengths.tolist(), scores.tolist(), strict=True)
    pieces = [(cells.spell(first, length), score) for first, length, score in found]
    pieces += [(character, float(scores.min())) for character in absent]
    return sorted(pieces, key=lambda piece: (-piece[1], piece[0]))


class _Training:
    """The pieces at one stage. They stay in their first order: from the shortest to the longest, by alphabet."""

    def __init__(self, cells: Cells, *, longest: int, seed_size: int) -> None:
        seeds = find_seeds(cells, longest=longest, most=seed_size)
        self.lengths = seeds.lengths  # [V]
        self.scores = np.log(seeds.counts / seeds.counts.sum())  # [V] log-probabilities
        self.expected = seeds.counts  # [V] expected counts
        self.firsts = np.empty(len(seeds.lengths), np.int32)  # [V] a cell where each piece begins
        for begins, pieces in seeds.occurrences:
            self.firsts[pieces[::-1]] = begins[::-1]
        self.pieces = piece_lattice(cells, seeds, self.firsts)
        self.words = word_lattices(cells, seeds)
        self.weights = [block.weights for block in cells.blocks]

    def step(self, size: int) -> None:
        """One iteration of EM; drops what is hardly ever expected while more than `size` pieces are left."""
        probabilities = np.exp(np.maximum(self.scores, np.log(LEAST)) + self.lengths * np.log(SCALE))
        self.expected = np.zeros(len(probabilities))
        for lattice, weights in zip(self.words, self.weights, strict=True):
            self.expected += lattice.expected(probabilities, weights)
        kept = (self.expected >= FEWEST) | (self.lengths == 1)  # characters stay: every word must have a spelling
        kept[np.argsort(-self.expected, kind="stable")[:size]] = True
        self._keep(kept)
        self.expected = self.expected.clip(min=FEWEST)
        self.scores = _digamma(self.expected) - _digamma(self.expected.sum(keepdims=True))

    def prune(self, size: int) -> None:
        """Leaves `size` pieces: those without which the likelihood of the words would fall the most.

        A piece that goes is replaced by the best other way of spelling it; characters have none.
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
    """The derivative of log gamma, for positive values: raised to 7 and above, where its series is exact to 1e-13."""
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
