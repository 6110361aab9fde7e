"""Masked words: some tokens are hidden and must be guessed from both sides (P-BERT §3.1, task 1; A.1).

T flat places, S sequences, R slots for hidden places, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.nn import counter_random
from bertsmith.objectives import masking
from bertsmith.objectives.objective import BuildContext
from bertsmith.objectives.words import Words
from bertsmith.types import IGNORE_INDEX, Batch, Vocabulary

SAFETY = 6  # deviations of the number of hidden places for which there are slots: more come once in 10**9 batches


@dataclass(frozen=True, kw_only=True)
class Config:
    """15 % of what may be hidden; of that 80 % [MASK], 10 % left as it is, 10 % another word."""

    rate: float = 0.15  # of the candidates: special tokens and padding do not count
    masked: float = 0.8  # share of the hidden that becomes [MASK]
    kept: float = 0.1  # share that stays as it is; the rest becomes random words
    units: Literal["tokens", "words", "ngrams"] = "tokens"  # what is hidden as a whole
    longest_ngram: int = 3  # words; n of them with a probability in proportion to 1/n (P-ALBERT §4.1)
    reference_counts: bool = False  # max(1, round(rate * length)) in each text, specials counted, as Google's code
    weight: float = 1.0  # of this loss in the total

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ConfigError(f"rate={self.rate} must be more than 0 and less than 1")
        if self.masked < 0 or self.kept < 0 or self.masked + self.kept > 1 + 1e-9:
            raise ConfigError(f"masked={self.masked} and kept={self.kept} must be shares that make at most 1 together")
        if self.units not in ("tokens", "words", "ngrams"):
            raise ConfigError(f"units={self.units} must be one of tokens, words, ngrams")
        if self.longest_ngram < 1:
            raise ConfigError(f"longest_ngram={self.longest_ngram} must be at least 1")
        if self.reference_counts and self.units != "tokens":
            raise ConfigError(f"reference_counts=true counts tokens: it cannot go with units={self.units}")

    def build(self, context: BuildContext) -> MaskedLM:
        """The objective with new weights."""
        vocabulary = context.vocabulary or Vocabulary(size=context.vocab_size)
        if self.units != "tokens" and context.vocabulary is not None and vocabulary.is_continuation is None:
            raise ConfigError(f"units={self.units} needs a tokenizer that says which tokens go on with a word")
        if vocabulary.size > context.vocab_size:
            rows = context.vocab_size
            raise ConfigError(f"the tokenizer has {vocabulary.size} tokens, the model's table {rows} rows")
        return MaskedLM(self, replace(context, vocabulary=vocabulary))


class MaskedLM(Words):
    """Hides units by (seed, epoch, sample, place); asks for the ids that stood there."""

    ordinary: Tensor  # [at most V] ids that a random word is drawn from
    continues: Tensor  # [V] bool

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(context, weight=config.weight)
        vocabulary = context.vocabulary
        assert vocabulary is not None, "Config.build sets it"
        self.config = config
        self.mask_id = vocabulary.mask_id
        purposes = ("count", "choice", "run", "fate", "word")
        self.keys = {purpose: counter_random.stream_key(context.seed, f"masked_lm/{purpose}") for purpose in purposes}
        # differs from the paper's code: a random word is never a special token (as in fairseq)
        special = np.unique(np.array(vocabulary.special_ids, np.int64))
        ordinary = np.setdiff1d(np.arange(vocabulary.size), special, assume_unique=True)
        continues = np.zeros(context.vocab_size, np.bool_)
        if vocabulary.is_continuation is not None:
            continues[: vocabulary.size] = vocabulary.is_continuation
        self.register_buffer("ordinary", torch.from_numpy(ordinary), persistent=False)
        self.register_buffer("continues", torch.from_numpy(continues), persistent=False)

    def corrupt(self, batch: Batch) -> Batch:
        """Exchanges the hidden ids; `places` and `labels` [R] hold where and what they were, in constant number."""
        if self.mask_id is None:
            raise BertsmithError("masked_lm hides words only where it knows the mask token: build it with a vocabulary")
        hidden_T = self.choose(batch)
        count = self.slots(batch.input_ids.numel(), len(batch.cu_seqlens) - 1)
        hidden_T &= hidden_T.cumsum(0) <= count
        places_R, used_R = masking.slots(hidden_T, count)
        ids_T = batch.input_ids.flatten()
        return batch.replace(
            input_ids=torch.where(hidden_T, self._fates(batch, self.mask_id), ids_T).view_as(batch.input_ids),
            labels={**batch.labels, self.name: torch.where(used_R, ids_T[places_R], IGNORE_INDEX)},
            indices={**batch.indices, self.name: places_R},
        )

    def slots(self, places: int, sequences: int) -> int:
        """How many hidden places a batch of that shape has room for: a number that does not depend on its values."""
        config = self.config
        if config.reference_counts:
            return min(places, math.ceil(config.rate * places) + sequences)
        deviation = math.sqrt(sequences) / 2  # of the rounding in each sequence
        if config.units != "tokens":  # and of the units' sizes, whose variance is about their mean
            sizes = 1.0 if config.units == "words" else max(1.0, config.longest_ngram / 2)
            deviation += math.sqrt(config.rate * places * sizes)
        return min(places, math.ceil(config.rate * places + SAFETY * deviation))

    def choose(self, batch: Batch) -> Tensor:
        """Which places are hidden [T] bool."""
        sequences = masking.Sequences.of(batch)
        candidate_T = ~batch.special_mask.flatten()
        unit_T = self._units(batch, sequences, candidate_T)
        units_S = sequences.count(unit_T)
        if self.config.reference_counts:
            length_S = sequences.count(batch.document_ids.flatten() != 0)
            wanted_S = (length_S.double() * self.config.rate).round().long().clamp(min=1).minimum(units_S)
        else:
            # rate * units, rounded up or down at random so that the share is exact in the mean
            drawn_S = counter_random.random_bits(
                self.keys["count"], batch.epoch, sequences.of_each(batch.sample_ids.flatten())
            )
            wanted_S = (units_S * counter_random.threshold(self.config.rate) + drawn_S) >> counter_random.BITS
        chosen_T = masking.choose(sequences, unit_T, self._draw("choice", batch), wanted_S)
        return chosen_T if self.config.units == "tokens" else masking.spread(unit_T, chosen_T, candidate_T)

    def _units(self, batch: Batch, sequences: masking.Sequences, candidate_T: Tensor) -> Tensor:
        """Where units begin [T] bool."""
        if self.config.units == "tokens":
            return candidate_T
        block_T = masking.blocks(sequences, candidate_T)
        word_T = masking.words(candidate_T, block_T, self.continues[batch.input_ids.flatten()])
        if self.config.units == "words":
            return word_T
        longest, drawn_T = self.config.longest_ngram, self._draw("run", batch)
        whole = sum(1 / words for words in range(1, longest + 1))
        reached, length_T = 0.0, torch.ones_like(drawn_T)
        for words in range(1, longest):
            reached += 1 / words / whole
            length_T += drawn_T >= counter_random.threshold(reached)
        return masking.ngrams(word_T, block_T, length_T, longest_ngram=longest, longest_text=batch.max_seqlen)

    def _fates(self, batch: Batch, mask_id: int) -> Tensor:
        """What would stand at each place if it were hidden [T]."""
        masked, unmasked = self.config.masked, self.config.masked + self.config.kept
        drawn_T = self._draw("fate", batch)
        word_T = self.ordinary[counter_random.to_range(self._draw("word", batch), len(self.ordinary))]
        fate_T = torch.where(drawn_T < counter_random.threshold(unmasked), batch.input_ids.flatten(), word_T)
        return torch.where(drawn_T < counter_random.threshold(masked), mask_id, fate_T)

    def _draw(self, what: str, batch: Batch) -> Tensor:
        """A number for each place [T], by (seed, what, epoch, sample, place in the text)."""
        return counter_random.random_bits(
            self.keys[what], batch.epoch, batch.sample_ids.flatten(), batch.position_ids.flatten()
        )
