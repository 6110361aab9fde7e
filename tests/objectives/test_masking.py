"""The array operations behind masks, each against a plain loop."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from model_fixtures import random_batch
from torch import Tensor

from bertsmith.objectives import masked_lm

# A world: texts of random lengths, padded or packed; some places are no candidates, some tokens continue words.
worlds = some.tuples(
    some.lists(some.integers(2, 24), min_size=1, max_size=8), some.booleans(), some.integers(0, 10_000)
)


def world(lengths: list[int], pack: bool, seed: int) -> tuple[masked_lm.Sequences, Tensor, Tensor, torch.Generator]:
    batch = random_batch(lengths, length=24, pack=pack, shape=(len(lengths) + 1, len(lengths) + 2))
    random = torch.Generator().manual_seed(seed)
    # Texts need no frame: a candidate may be a text's first or last token.
    candidate_T = (batch.document_ids.flatten() != 0) & (torch.rand(batch.input_ids.numel(), generator=random) < 0.9)
    continues_T = torch.rand(batch.input_ids.numel(), generator=random) < 0.4
    return masked_lm.Sequences.of(batch), candidate_T, continues_T, random


def loop_over_words(sequences: masked_lm.Sequences, candidate: Tensor, continues: Tensor) -> list[list[int]]:
    """The places where words begin, block by block."""
    found: list[list[int]] = []
    for begin, end in zip(sequences.begins.tolist(), sequences.ends.tolist(), strict=True):
        fresh = True
        for place in range(begin, end):
            if not candidate[place]:
                fresh = True
            elif fresh:
                found.append([place])
                fresh = False
            elif not continues[place]:
                found[-1].append(place)
    return found


def marked(size: int, places: list[int]) -> Tensor:
    found = torch.zeros(size, dtype=torch.bool)
    found[places] = True
    return found


@settings(max_examples=60, deadline=None)
@given(world_of=worlds)
def test_words(world_of: tuple[list[int], bool, int]) -> None:
    sequences, candidate_T, continues_T, _ = world(*world_of)
    blocks = loop_over_words(sequences, candidate_T, continues_T)
    size = len(candidate_T)
    block_T = masked_lm.candidate_runs(sequences, candidate_T)
    assert torch.equal(block_T, marked(size, [block[0] for block in blocks]))
    word_T = masked_lm.word_starts(candidate_T, block_T, continues_T)
    assert torch.equal(word_T, marked(size, [place for block in blocks for place in block]))


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
    found = masked_lm.ngram_starts(word_T, block_T, length_T, max_ngram=longest, max_seqlen=24)
    assert torch.equal(found, marked(len(candidate_T), expected))


@settings(max_examples=60, deadline=None)
@given(world_of=worlds)
def test_units_with_the_smallest_random_numbers_are_chosen(world_of: tuple[list[int], bool, int]) -> None:
    sequences, unit_T, _, random = world(*world_of)
    drawn_T = torch.randint(0, 1 << 31, (len(unit_T),), generator=random)
    units_S = sequences.count(unit_T)
    wanted_S = (units_S * torch.rand(len(units_S), generator=random)).round().long()
    expected = []
    for begin, end, wanted in zip(sequences.begins.tolist(), sequences.ends.tolist(), wanted_S.tolist(), strict=True):
        units = [place for place in range(begin, end) if unit_T[place]]
        assert len(units) == units_S[sequences.begins.tolist().index(begin)] or begin == end
        expected += sorted(units, key=lambda place: int(drawn_T[place]))[:wanted]
    assert torch.equal(masked_lm.choose_units(sequences, unit_T, drawn_T, wanted_S), marked(len(unit_T), expected))


def test_unit_tokens() -> None:
    candidate = torch.tensor([0, 1, 1, 1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)
    unit = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0, 0, 1], dtype=torch.bool)
    chosen = torch.tensor([0, 1, 0, 0, 0, 1, 0, 0, 0, 0], dtype=torch.bool)
    expected = [0, 1, 1, 0, 0, 1, 1, 0, 0, 0]
    assert masked_lm.unit_tokens(unit, chosen, candidate).tolist() == [bool(number) for number in expected]


def test_slots() -> None:
    hidden = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.bool)
    for count, places, used in (
        (5, [1, 3, 4, 0, 0], [1, 1, 1, 0, 0]),
        (3, [1, 3, 4], [1, 1, 1]),
        (2, [1, 3], [1, 1]),
    ):
        found = masked_lm.masked_slots(hidden, count)
        assert found[0].tolist() == places
        assert found[1].tolist() == [bool(number) for number in used]


def test_sequence_indices() -> None:
    batch = random_batch([5, 9, 6], length=12, pack=True, shape=(3, 4))
    sequences = masked_lm.Sequences.of(batch)
    assert sequences.number[: 2 * 12].tolist() == [0] * 5 + [1] * 6 + [2] + [3] * 9 + [4] * 3
    assert np.flatnonzero(sequences.first()).tolist() == [0, 5, 11, 12, 21, 24]
    assert sequences.count(batch.document_ids.flatten() != 0).tolist() == [5, 6, 0, 9, 0, 0, 0]
    assert sequences.of_each(batch.sample_ids.flatten()).tolist() == [0, 2, -1, 1, -1, -1, -1]
