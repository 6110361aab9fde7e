"""The array operations of masking, each against a plain loop."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from model_fixtures import random_batch
from torch import Tensor

from bertsmith.objectives import masked_lm

# Texts of random lengths, padded or packed; some positions are not candidates, some tokens continue words.
worlds = some.tuples(
    some.lists(some.integers(2, 24), min_size=1, max_size=8), some.booleans(), some.integers(0, 10_000)
)


def world(lengths: list[int], pack: bool, seed: int) -> tuple[masked_lm.Sequences, Tensor, Tensor, torch.Generator]:
    batch = random_batch(lengths, length=24, pack=pack, shape=(len(lengths) + 1, len(lengths) + 2))
    random = torch.Generator().manual_seed(seed)
    # Without special tokens: a candidate may be the first or last token of a text.
    candidate_T = (batch.document_ids.flatten() != 0) & (torch.rand(batch.input_ids.numel(), generator=random) < 0.9)
    continues_T = torch.rand(batch.input_ids.numel(), generator=random) < 0.4
    return masked_lm.Sequences.of(batch), candidate_T, continues_T, random


def loop_over_words(sequences: masked_lm.Sequences, candidate: Tensor, continues: Tensor) -> list[list[int]]:
    """The positions where words begin, block by block."""
    result: list[list[int]] = []
    for begin, end in zip(sequences.begins.tolist(), sequences.ends.tolist(), strict=True):
        fresh = True
        for position in range(begin, end):
            if not candidate[position]:
                fresh = True
            elif fresh:
                result.append([position])
                fresh = False
            elif not continues[position]:
                result[-1].append(position)
    return result


def marked(size: int, positions: list[int]) -> Tensor:
    result = torch.zeros(size, dtype=torch.bool)
    result[positions] = True
    return result


@settings(max_examples=60, deadline=None)
@given(world_of=worlds)
def test_words(world_of: tuple[list[int], bool, int]) -> None:
    sequences, candidate_T, continues_T, _ = world(*world_of)
    blocks = loop_over_words(sequences, candidate_T, continues_T)
    size = len(candidate_T)
    block_T = masked_lm.candidate_runs(sequences, candidate_T)
    assert torch.equal(block_T, marked(size, [block[0] for block in blocks]))
    word_T = masked_lm.word_starts(candidate_T, block_T, continues_T)
    assert torch.equal(word_T, marked(size, [position for block in blocks for position in block]))


@settings(max_examples=100, deadline=None)
@given(world_of=worlds, longest=some.integers(1, 5))
def test_ngrams_are_consecutive(world_of: tuple[list[int], bool, int], longest: int) -> None:
    sequences, candidate_T, continues_T, random = world(*world_of)
    length_T = torch.randint(1, longest + 1, (len(candidate_T),), generator=random)
    expected = []
    for block in loop_over_words(sequences, candidate_T, continues_T):
        word = 0
        while word < len(block):
            expected.append(block[word])
            word += int(length_T[block[word]])
    block_T = masked_lm.candidate_runs(sequences, candidate_T)
    word_T = masked_lm.word_starts(candidate_T, block_T, continues_T)
    result = masked_lm.ngram_starts(word_T, block_T, length_T, max_ngram=longest, max_seqlen=24)
    assert torch.equal(result, marked(len(candidate_T), expected))


@settings(max_examples=60, deadline=None)
@given(world_of=worlds)
def test_units_with_the_smallest_random_numbers_are_chosen(world_of: tuple[list[int], bool, int]) -> None:
    sequences, unit_T, _, random = world(*world_of)
    drawn_T = torch.randint(0, 1 << 31, (len(unit_T),), generator=random)
    units_S = sequences.count(unit_T)
    target_S = (units_S * torch.rand(len(units_S), generator=random)).round().long()
    expected = []
    for begin, end, target in zip(sequences.begins.tolist(), sequences.ends.tolist(), target_S.tolist(), strict=True):
        units = [position for position in range(begin, end) if unit_T[position]]
        assert len(units) == units_S[sequences.begins.tolist().index(begin)] or begin == end
        expected += sorted(units, key=lambda position: int(drawn_T[position]))[:target]
    assert torch.equal(masked_lm.choose_units(sequences, unit_T, drawn_T, target_S), marked(len(unit_T), expected))


def test_unit_tokens() -> None:
    candidate = torch.tensor([0, 1, 1, 1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)
    unit = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0, 0, 1], dtype=torch.bool)
    chosen = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.bool)
    expected = [0, 1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert masked_lm.unit_tokens(unit, chosen, candidate).tolist() == [bool(number) for number in expected]


def test_slots() -> None:
    masked = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.bool)
    for count, positions, used in (
        (5, [1, 3, 4, 0, 0], [1, 1, 1, 0, 0]),
        (3, [1, 3, 4], [1, 1, 1]),
        (2, [1, 3], [1, 1]),
    ):
        result = masked_lm.masked_slots(masked, count)
        assert result[0].tolist() == positions
        assert result[1].tolist() == [bool(number) for number in used]


def test_sequence_indices() -> None:
    batch = random_batch([5, 9, 6], length=12, pack=True, shape=(3, 4))
    sequences = masked_lm.Sequences.of(batch)
    assert sequences.number[: 2 * 12].tolist() == [0] * 5 + [1] * 6 + [2] + [3] * 9 + [4] * 3
    assert np.flatnonzero(sequences.first()).tolist() == [0, 5, 11, 12, 21, 24]
    assert sequences.count(batch.document_ids.flatten() != 0).tolist() == [5, 6, 0, 9, 0, 0, 0]
    assert sequences.of_each(batch.sample_ids.flatten()).tolist() == [0, 2, -1, 1, -1, -1, -1]
