"""Masked language model: tokens are masked and predicted from both sides (P-BERT §3.1, task 1; A.1).

A unit is what is masked as a whole: a token, a word or an n-gram of words; it is identified by its first token. Which
units are masked is a function of random numbers of (text, position): it does not depend on the rest of the batch, and
no shape depends on a value. T flat tokens, S sequences (texts and runs of padding), R slots for masked tokens,
V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn import counter_random
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import IGNORE_INDEX, Batch, Vocabulary

SAFETY = 6  # standard deviations of the number of masked tokens; one batch in 10**9 needs more slots


@dataclass(frozen=True, kw_only=True)
class Config:
    """Masks 15 % of the tokens; 80 % of them become [MASK], 10 % stay, 10 % become a random token."""

    mask_probability: float = 0.15  # of the candidates, which are all tokens but special tokens and padding
    mask_token_share: float = 0.8  # of the masked tokens that become [MASK]
    keep_share: float = 0.1  # of the masked tokens that stay; the others become random tokens
    units: Literal["tokens", "words", "ngrams"] = "tokens"  # what is masked as a whole
    max_ngram: int = 3  # words; an n-gram of n words has a probability proportional to 1/n (P-ALBERT §4.1)
    reference_counts: bool = False  # as bert's code: max(1, round(probability * length)) per text, with special tokens
    weight: float = 1.0  # of this loss in the total

    def __post_init__(self) -> None:
        if not 0 < self.mask_probability < 1:
            raise ConfigError(f"mask_probability={self.mask_probability} must be more than 0 and less than 1")
        if self.mask_token_share < 0 or self.keep_share < 0 or self.mask_token_share + self.keep_share > 1 + 1e-9:
            shares = f"mask_token_share={self.mask_token_share} and keep_share={self.keep_share}"
            raise ConfigError(f"{shares} must not be negative, and their sum at most 1")
        if self.units not in ("tokens", "words", "ngrams"):
            raise ConfigError(f"units={self.units} must be one of tokens, words, ngrams")
        if self.max_ngram < 1:
            raise ConfigError(f"max_ngram={self.max_ngram} must be at least 1")
        if self.reference_counts and self.units != "tokens":
            raise ConfigError(f"reference_counts=true needs units=tokens, not units={self.units}")

    def build(self, context: BuildContext) -> MaskedLM:
        vocabulary = context.vocabulary or Vocabulary(size=context.vocab_size)
        if self.units != "tokens" and context.vocabulary is not None and vocabulary.is_continuation is None:
            raise ConfigError(f"units={self.units} needs a tokenizer that marks the tokens that continue a word")
        if vocabulary.size > context.vocab_size:
            rows = context.vocab_size
            raise ConfigError(f"the tokenizer has {vocabulary.size} tokens, the model's token table only {rows} rows")
        return MaskedLM(self, replace(context, vocabulary=vocabulary))


class MaskedLM(LanguageModelHead):
    """Masks units by (seed, epoch, sample, position) and predicts the original ids."""

    pipeline = "fill-mask"
    combined_output_name = "prediction_logits"

    ordinary: Tensor  # [at most V] ids that random tokens are drawn from
    continues: Tensor  # [V] bool

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(context, weight=config.weight)
        vocabulary = context.vocabulary
        assert vocabulary is not None, "Config.build sets it"
        self.config = config
        self.mask_id = vocabulary.mask_id
        purposes = ("count", "choice", "run", "fate", "word")
        self.keys = {purpose: counter_random.stream_key(context.seed, f"masked_lm/{purpose}") for purpose in purposes}
        # differs from the paper's code: a random token is never a special token (as in fairseq)
        special = np.unique(np.array(vocabulary.special_ids, np.int64))
        ordinary = np.setdiff1d(np.arange(vocabulary.size), special, assume_unique=True)
        continues = np.zeros(context.vocab_size, np.bool_)
        if vocabulary.is_continuation is not None:
            continues[: vocabulary.size] = vocabulary.is_continuation
        self.register_buffer("ordinary", torch.from_numpy(ordinary), persistent=False)
        self.register_buffer("continues", torch.from_numpy(continues), persistent=False)

    def corrupt(self, batch: Batch) -> Batch:
        """Replaces the masked ids; `indices` and `labels` [R] hold the masked tokens, in a constant number of slots."""
        if self.mask_id is None:
            raise BertsmithError("masked_lm needs the id of the mask token: build it with a vocabulary")
        masked_T = self.choose(batch)
        count = self.slots(batch.input_ids.numel(), len(batch.cu_seqlens) - 1)
        masked_T &= masked_T.cumsum(0) <= count
        index_R, used_R = masked_slots(masked_T, count)
        ids_T = batch.input_ids.flatten()
        return batch.replace(
            input_ids=torch.where(masked_T, self._replacements(batch, self.mask_id), ids_T).view_as(batch.input_ids),
            labels={**batch.labels, self.name: torch.where(used_R, ids_T[index_R], IGNORE_INDEX)},
            indices={**batch.indices, self.name: index_R},
        )

    def slots(self, tokens: int, sequences: int) -> int:
        """The number of slots for masked tokens in a batch of that shape, whatever its values."""
        config = self.config
        if config.reference_counts:
            return min(tokens, math.ceil(config.mask_probability * tokens) + sequences)
        deviation = math.sqrt(sequences) / 2  # of the rounding in each sequence
        if config.units != "tokens":  # and of the sizes of units, whose variance is about their mean
            sizes = 1.0 if config.units == "words" else max(1.0, config.max_ngram / 2)
            deviation += math.sqrt(config.mask_probability * tokens * sizes)
        return min(tokens, math.ceil(config.mask_probability * tokens + SAFETY * deviation))

    def choose(self, batch: Batch) -> Tensor:
        """Which tokens are masked [T] bool."""
        sequences = Sequences.of(batch)
        candidate_T = ~batch.special_mask.flatten()
        unit_T = self._units(batch, sequences, candidate_T)
        units_S = sequences.count(unit_T)
        if self.config.reference_counts:
            length_S = sequences.count(batch.document_ids.flatten() != 0)
            wanted_S = (length_S.double() * self.config.mask_probability).round().long().clamp(min=1).minimum(units_S)
        else:
            # probability * units, rounded up or down at random so that the expected share is exact
            sample_S = sequences.of_each(batch.sample_ids.flatten())
            drawn_S = counter_random.random_bits(self.keys["count"], batch.epoch, sample_S)
            probability = counter_random.threshold(self.config.mask_probability)
            wanted_S = (units_S * probability + drawn_S) >> counter_random.BITS
        chosen_T = choose_units(sequences, unit_T, self._draw("choice", batch), wanted_S)
        return chosen_T if self.config.units == "tokens" else unit_tokens(unit_T, chosen_T, candidate_T)

    def _units(self, batch: Batch, sequences: Sequences, candidate_T: Tensor) -> Tensor:
        """First tokens of units [T] bool."""
        if self.config.units == "tokens":
            return candidate_T
        run_T = candidate_runs(sequences, candidate_T)
        word_T = word_starts(candidate_T, run_T, self.continues[batch.input_ids.flatten()])
        if self.config.units == "words":
            return word_T
        longest, drawn_T = self.config.max_ngram, self._draw("run", batch)
        whole = sum(1 / words for words in range(1, longest + 1))
        reached, length_T = 0.0, torch.ones_like(drawn_T)
        for words in range(1, longest):
            reached += 1 / words / whole
            length_T += drawn_T >= counter_random.threshold(reached)
        return ngram_starts(word_T, run_T, length_T, max_ngram=longest, max_seqlen=batch.max_seqlen)

    def _replacements(self, batch: Batch, mask_id: int) -> Tensor:
        """The id of each token if it is masked [T]."""
        masked = self.config.mask_token_share
        unmasked = masked + self.config.keep_share
        drawn_T = self._draw("fate", batch)
        word_T = self.ordinary[counter_random.to_range(self._draw("word", batch), len(self.ordinary))]
        fate_T = torch.where(drawn_T < counter_random.threshold(unmasked), batch.input_ids.flatten(), word_T)
        return torch.where(drawn_T < counter_random.threshold(masked), mask_id, fate_T)

    def _draw(self, purpose: str, batch: Batch) -> Tensor:
        """A random number for each token [T], by (seed, purpose, epoch, sample, position)."""
        return counter_random.random_bits(
            self.keys[purpose], batch.epoch, batch.sample_ids.flatten(), batch.position_ids.flatten()
        )


@dataclass(frozen=True)
class Sequences:
    """The sequences (texts and runs of padding) among the flat tokens of a batch."""

    begins: Tensor  # [S] int64
    ends: Tensor  # [S] int64
    number: Tensor  # [T] int64 index of the sequence of each token
    index: Tensor  # [T] int64 0, 1, ... T-1

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The texts of a batch and the runs of padding between them."""
        sample_T, size, count = batch.sample_ids.flatten(), batch.input_ids.numel(), batch.cu_seqlens.shape[0] - 1
        index_T = torch.arange(size, device=sample_T.device)
        begins_T = (batch.position_ids.flatten() == 0) & (batch.document_ids.flatten() != 0)
        begins_T |= (index_T % batch.input_ids.shape[1] == 0) | (sample_T != sample_T.roll(1))
        number_T = begins_T.cumsum(0) - 1
        begins = torch.full((count + 1,), size, device=sample_T.device)
        begins = begins.scatter(0, torch.where(begins_T, number_T, count), torch.where(begins_T, index_T, size))
        return cls(begins[:-1], begins[1:], number_T, index_T)

    def first(self) -> Tensor:
        """Whether a token is the first of its sequence [T] bool."""
        return self.begins[self.number] == self.index

    def count(self, marked_T: Tensor) -> Tensor:
        """The number of marked tokens of each sequence [S]."""
        total = torch.nn.functional.pad(marked_T.long().cumsum(0), (1, 0))
        return total[self.ends] - total[self.begins]

    def of_each(self, values_T: Tensor) -> Tensor:
        """The value at the first token of each sequence [S]; at the last token of all for empty sequences."""
        return values_T[self.begins.clamp(max=len(values_T) - 1)]


def candidate_runs(sequences: Sequences, candidate_T: Tensor) -> Tensor:
    """First tokens of runs of candidates [T] bool: words and n-grams do not extend over special tokens."""
    return candidate_T & (sequences.first() | ~candidate_T.roll(1))


def word_starts(candidate_T: Tensor, run_T: Tensor, continues_T: Tensor) -> Tensor:
    """First tokens of words [T] bool; `continues_T` marks tokens that continue the word before them."""
    return candidate_T & (run_T | ~continues_T)


def ngram_starts(word_T: Tensor, run_T: Tensor, length_T: Tensor, *, max_ngram: int, max_seqlen: int) -> Tensor:
    """First tokens of n-grams of words [T] bool, where the n-gram that starts at a word has `length_T` words.

    N-grams are consecutive from the start of each run of candidates. Their starts are found by pointer doubling: after
    k rounds the first 2**k n-grams of each run are known, and the target of 2**k jumps from any word.
    """
    size = len(word_T)
    end = torch.full((1,), size, device=word_T.device)
    index_T = torch.arange(size, device=word_T.device)
    number_T = run_T.long().cumsum(0)
    before_T = word_T.long().cumsum(0) - word_T.long()
    # `cummin` from the end gives the same, but takes 0.2 ms for 65,536 tokens on an H200
    word_at_T = torch.full((size + 1,), size, device=word_T.device)
    word_at_T = word_at_T.scatter(0, torch.where(word_T, before_T, size), torch.where(word_T, index_T, size))
    at_or_after_T = word_at_T[before_T]
    next_T = torch.cat((at_or_after_T[1:], end))
    inside_T = number_T[next_T.clamp(max=size - 1)] == number_T
    next_T = torch.cat((torch.where(inside_T, next_T, size), end))
    jump_T, step_T, length_T = next_T, next_T, torch.cat((length_T, end))
    for words in range(2, max_ngram + 1):
        step_T = next_T[step_T]
        jump_T = torch.where(length_T >= words, step_T, jump_T)
    begins_T = torch.cat((run_T, end == 0))
    for _ in range(max_seqlen.bit_length()):
        begins_T = begins_T.index_fill(0, torch.where(begins_T, jump_T, size), True)
        jump_T = jump_T[jump_T]
    return begins_T[:size]


def choose_units(sequences: Sequences, unit_T: Tensor, drawn_T: Tensor, wanted_S: Tensor) -> Tensor:
    """The chosen units [T] bool: in each sequence the `wanted_S` units with the smallest random numbers."""
    # Sorted by sequence first, so that ranks stay within a sequence; tokens that do not start a unit come last.
    key_T = (sequences.number << (counter_random.BITS + 1)) | ((~unit_T).long() << counter_random.BITS) | drawn_T
    order_T = torch.sort(key_T, stable=True).indices
    rank_T = sequences.index - sequences.begins[sequences.number]
    return torch.zeros_like(unit_T).scatter(0, order_T, rank_T < wanted_S[sequences.number])


def unit_tokens(unit_T: Tensor, chosen_T: Tensor, candidate_T: Tensor) -> Tensor:
    """All tokens of the chosen units [T] bool."""
    number_T = unit_T.long().cumsum(0)  # from 1 on
    of_unit_T = torch.zeros(len(unit_T) + 2, dtype=torch.bool, device=unit_T.device)
    of_unit_T = of_unit_T.scatter(0, torch.where(unit_T, number_T, len(unit_T) + 1), unit_T & chosen_T)
    return candidate_T & of_unit_T[number_T]


def masked_slots(masked_T: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The indices of masked tokens in `count` slots [count], 0 in unused slots; and which slots are used [count]."""
    index_T = torch.arange(len(masked_T), device=masked_T.device)
    slot_T = torch.where(masked_T, masked_T.long().cumsum(0) - 1, count).clamp(max=count)
    indices = torch.zeros(count + 1, dtype=torch.int64, device=masked_T.device).scatter(0, slot_T, index_T)[:count]
    return indices, torch.arange(count, device=masked_T.device) < masked_T.sum()
