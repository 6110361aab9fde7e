"""Which places of a batch are hidden: tokens, whole words or runs of words, chosen by array operations alone.

A unit is what is hidden as a whole; it is named by its first place. Everything is a function of drawn numbers that
belong to (text, place), so a text's mask does not depend on what stands beside it, nor on who sees whom in it. No shape
depends on a value. T flat places, S sequences (texts and runs of padding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from bertsmith.nn import counter_random
from bertsmith.types import Batch


@dataclass(frozen=True)
class Sequences:
    """Where sequences lie in the flat order."""

    begins: Tensor  # [S] int64
    ends: Tensor  # [S] int64
    number: Tensor  # [T] int64 number of the sequence of each place
    place: Tensor  # [T] int64 0, 1, ... T-1

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The texts of a batch, each with a number in `samples` and places from 0 on; runs of padding between them."""
        sample_T, size, count = batch.sample_ids.flatten(), batch.input_ids.numel(), batch.cu_seqlens.shape[0] - 1
        place_T = torch.arange(size, device=sample_T.device)
        begins_T = (batch.position_ids.flatten() == 0) & (batch.document_ids.flatten() != 0)
        begins_T |= (place_T % batch.input_ids.shape[1] == 0) | (sample_T != sample_T.roll(1))
        number_T = begins_T.cumsum(0) - 1
        begins = torch.full((count + 1,), size, device=sample_T.device)
        begins = begins.scatter(0, torch.where(begins_T, number_T, count), torch.where(begins_T, place_T, size))
        return cls(begins[:-1], begins[1:], number_T, place_T)

    def first(self) -> Tensor:
        """Whether a place is the first of its sequence [T] bool."""
        return self.begins[self.number] == self.place

    def count(self, marked_T: Tensor) -> Tensor:
        """How many places of each sequence are marked [S]."""
        total = torch.nn.functional.pad(marked_T.long().cumsum(0), (1, 0))
        return total[self.ends] - total[self.begins]

    def of_each(self, values_T: Tensor) -> Tensor:
        """The value at the first place of each sequence [S]; empty sequences get that of the last place."""
        return values_T[self.begins.clamp(max=len(values_T) - 1)]


def blocks(sequences: Sequences, candidate_T: Tensor) -> Tensor:
    """Where runs of candidates begin [T] bool: words and runs of words do not reach over special tokens."""
    return candidate_T & (sequences.first() | ~candidate_T.roll(1))


def words(candidate_T: Tensor, block_T: Tensor, continues_T: Tensor) -> Tensor:
    """Where words begin [T] bool; `continues_T` marks tokens that go on with the word before them."""
    return candidate_T & (block_T | ~continues_T)


def ngrams(word_T: Tensor, block_T: Tensor, length_T: Tensor, *, longest_ngram: int, longest_text: int) -> Tensor:
    """Where runs of words begin [T] bool, when the run that begins at a word has that word's `length_T` words.

    Runs stand one behind the other from the begin of each block. Which words begin one is found by doubling: after k
    rounds the first 2**k runs of each block are known, and where 2**k runs on from any word leads.
    """
    size = len(word_T)
    nowhere = torch.full((1,), size, device=word_T.device)
    place_T = torch.arange(size, device=word_T.device)
    number_T = block_T.long().cumsum(0)
    before_T = word_T.long().cumsum(0) - word_T.long()
    # `cummin` from the end says it too, but takes 0.2 ms for 65,536 places on an H200
    word_at_T = torch.full((size + 1,), size, device=word_T.device)
    word_at_T = word_at_T.scatter(0, torch.where(word_T, before_T, size), torch.where(word_T, place_T, size))
    at_or_after_T = word_at_T[before_T]
    next_T = torch.cat((at_or_after_T[1:], nowhere))
    inside_T = number_T[next_T.clamp(max=size - 1)] == number_T
    next_T = torch.cat((torch.where(inside_T, next_T, size), nowhere))  # and of nowhere: nowhere
    jump_T, step_T, length_T = next_T, next_T, torch.cat((length_T, nowhere))
    for words_on in range(2, longest_ngram + 1):
        step_T = next_T[step_T]
        jump_T = torch.where(length_T >= words_on, step_T, jump_T)
    begins_T = torch.cat((block_T, nowhere == 0))
    for _ in range(longest_text.bit_length()):
        begins_T = begins_T.index_fill(0, torch.where(begins_T, jump_T, size), True)
        jump_T = jump_T[jump_T]
    return begins_T[:size]


def choose(sequences: Sequences, unit_T: Tensor, drawn_T: Tensor, wanted_S: Tensor) -> Tensor:
    """Which units are chosen [T] bool: in each sequence the `wanted_S` units that drew the smallest numbers."""
    # Sorted by sequence first, so that a sequence's places stay within its bounds; what begins no unit goes last.
    key_T = (sequences.number << (counter_random.BITS + 1)) | ((~unit_T).long() << counter_random.BITS) | drawn_T
    order_T = torch.sort(key_T, stable=True).indices
    rank_T = sequences.place - sequences.begins[sequences.number]
    return torch.zeros_like(unit_T).scatter(0, order_T, rank_T < wanted_S[sequences.number])


def spread(unit_T: Tensor, chosen_T: Tensor, candidate_T: Tensor) -> Tensor:
    """The places of chosen units [T] bool."""
    number_T = unit_T.long().cumsum(0)  # from 1 on
    of_unit_T = torch.zeros(len(unit_T) + 2, dtype=torch.bool, device=unit_T.device)
    of_unit_T = of_unit_T.scatter(0, torch.where(unit_T, number_T, len(unit_T) + 1), unit_T & chosen_T)
    return candidate_T & of_unit_T[number_T]


def slots(hidden_T: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The hidden places in order, in `count` slots [count], 0 in those left over; and which slots are used [count]."""
    place_T = torch.arange(len(hidden_T), device=hidden_T.device)
    slot_T = torch.where(hidden_T, hidden_T.long().cumsum(0) - 1, count).clamp(max=count)
    places = torch.zeros(count + 1, dtype=torch.int64, device=hidden_T.device).scatter(0, slot_T, place_T)[:count]
    return places, place_T.new_ones(count).cumsum(0) <= hidden_T.sum()
