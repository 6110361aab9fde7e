"""Skip-gram with negative sampling: the vector of a word predicts the words around it (Mikolov et al. 2013).

Each word i and each word o within its window are a pair, with K noise words n drawn from the unigram distribution to
the power 0.75: the loss of a pair is -log s(v_i · u_o) - sum over n of log s(-v_i · u_n).

# differs from the paper: each word of the text draws one noise word, and a word is scored against those of the words up
# to `noise_reach` positions away, with weights that sum to K for each of its pairs. The expected loss is the same, and
# scores are matrix products. Random numbers are functions of (seed, purpose, epoch, sample, position).

T flat tokens, R kept tokens, V vocabulary, D width, P columns of the pairs, Q of the noise (see `nn.banded`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.nn.banded import BLOCK, banded_products, offsets
from bertsmith.nn.negative_sampling import Targets, logistic_loss, sparse_loss
from bertsmith.objectives.masked_lm import masked_slots
from bertsmith.objectives.objective import BuildContext, Objective, at_least_float32
from bertsmith.types import Batch, Encoding, Loss

SAFETY = 6  # standard deviations of the number of kept tokens
Shares = NDArray[np.float64]  # of each token [V]


@dataclass(frozen=True, kw_only=True)
class Config:
    """word2vec's settings by default."""

    window: int = 5  # the window of each word is drawn from 1 to this many words on either side
    negatives: int = 5  # noise words of a pair
    subsample: float = 1e-3  # frequency above which occurrences of a word are dropped at random; 0: none are
    noise_power: float = 0.75  # of the unigram frequencies, for the distribution of noise words
    noise_reach: int = 8  # words on either side whose noise words a word is scored against
    weight: float = 1.0  # of this loss in the total

    reads_token_counts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if min(self.window, self.negatives, self.noise_reach) < 1:
            sizes = f"window={self.window}, negatives={self.negatives} and noise_reach={self.noise_reach}"
            raise ConfigError(f"{sizes} must be at least 1")
        if not 0 <= self.subsample < 1 or self.noise_power < 0:
            limits = "must be at least 0 and below 1, and noise_power at least 0"
            raise ConfigError(f"subsample={self.subsample:g} {limits}")

    def build(self, context: BuildContext) -> SkipGram:
        return SkipGram(self, context)


class SkipGram(Objective):
    """Pairs of words near each other against noise words, by an output table of its own."""

    classes = 2
    keep_below: Tensor  # [V] the random number below which an occurrence of a word is kept
    noise_bounds: Tensor  # [V] cumulative noise distribution, as random numbers
    in_window: Tensor  # [windows * S, P] which words are pairs, see `_windows`
    in_reach: Tensor  # [windows * S, Q] whose noise words are read

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(weight=config.weight)
        self.config = config
        self.output = nn.Embedding(context.vocab_size, context.width)
        nn.init.zeros_(self.output.weight)  # word2vec.c
        purposes = ("subsample", "window", "noise")
        self.keys = {purpose: counter_random.stream_key(context.seed, f"skip_gram/{purpose}") for purpose in purposes}
        frequencies = _frequencies(context)
        keep = _kept_share(frequencies, config.subsample)
        self.kept_share = float((frequencies * keep).sum())
        noise = np.cumsum(frequencies**config.noise_power * (frequencies > 0))
        scale = counter_random.RANGE
        # not saved: functions of the settings and of the training data
        self.register_buffer("keep_below", torch.from_numpy(np.round(keep * scale).astype(np.int64)), persistent=False)
        bounds = torch.from_numpy(np.round(noise / noise[-1] * scale).astype(np.int64))
        self.register_buffer("noise_bounds", bounds, persistent=False)
        self.register_buffer("in_window", _windows(config.window, own=False), persistent=False)
        self.register_buffer("in_reach", _windows(config.noise_reach, own=True), persistent=False)

    def corrupt(self, batch: Batch) -> Batch:
        """`indices` [R]: the words that are kept, in order.

        `labels` [4, R]: how many words before and after each are pairs with it, and of how many it gets noise words.
        """
        kept_T = ~batch.special_mask.flatten()
        kept_T &= self._draw("subsample", batch) < self.keep_below.index_select(0, batch.input_ids.flatten())
        count = self.slots(len(kept_T))
        kept_T &= kept_T.cumsum(0) <= count
        index_R, used_R = masked_slots(kept_T, count)
        row_B = torch.arange(len(batch.document_ids), device=kept_T.device)
        document_T = ((row_B[:, None] << 32) + batch.document_ids).flatten()  # unique in the batch
        before_R, after_R = _room(torch.where(used_R, document_T.index_select(0, index_R), -1))
        window_R = 1 + counter_random.to_range(self._draw("window", batch, index_R), self.config.window)
        window_R = torch.where(used_R, window_R, 0)
        limits = window_R, torch.full_like(window_R, self.config.noise_reach)
        labels = torch.stack([words_R.minimum(limit_R) for limit_R in limits for words_R in (before_R, after_R)])
        return batch.replace(
            labels={**batch.labels, self.name: labels},
            indices={**batch.indices, self.name: index_R},
        )

    def slots(self, tokens: int) -> int:
        """Slots for the kept tokens of a batch: their expected number and a margin, in whole blocks."""
        expected = self.kept_share * tokens
        most = math.ceil(expected + SAFETY * math.sqrt(tokens)) if self.kept_share < 1 else tokens
        return -(-min(most, tokens) // BLOCK) * BLOCK

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The scores of each kept word with the words around it and with noise words [R, P + Q]."""
        index_R = self.indices(batch)
        assert index_R is not None
        x_RD = encoding.at(self.name)
        missing = -len(index_R) % BLOCK
        if missing:  # without `corrupt`
            index_R, x_RD = pad(index_R, (0, missing)), pad(x_RD, (0, 0, 0, missing))
        context_E, drawn_E = self._output_words(batch, index_R)
        ids = context_E, self._noise_words(drawn_E)
        context_ED, noise_ED = self.output(torch.cat(ids)).split([len(one) for one in ids])
        return banded_products(x_RD, context_ED, noise_ED)[: len(index_R) - missing]

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The loss of the scores of `predict`, which are not kept on a CPU."""
        index_R = self.indices(batch)
        if not (self.threads_over_rows and torch.is_grad_enabled()) or index_R is None:
            return super().loss(encoding, batch, table)
        x_RD = encoding.at(self.name)
        if x_RD.device.type != "cpu":
            return super().loss(encoding, batch, table)
        context_E, drawn_E = self._output_words(batch, index_R)
        cases = self._cases(self.labels(batch))
        window, reach = self.config.window, self.config.noise_reach

        def targets(first: int, last: int) -> Targets:
            noise_E = self._noise_words(drawn_E[first : last + 2 * reach])
            weights = self._weights(*(each[first:last] for each in cases))
            return Targets(context_E[first : last + 2 * window], noise_E, *weights)

        return self.make_loss(batch, sparse_loss(x_RD, self.output.weight, targets), None)

    @property
    def threads_over_rows(self) -> bool:
        """With sparse gradients."""
        return self.output.sparse

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The logistic losses of pairs and of noise words, the latter K for each pair."""
        logits_RC = at_least_float32(logits)
        weight_RC = torch.cat(self._weights(*self._cases(self.labels(batch))), 1)
        return self.make_loss(batch, logistic_loss(logits_RC, weight_RC, columns=self.columns), None)

    def _output_words(self, batch: Batch, index_R: Tensor) -> tuple[Tensor, Tensor]:
        """The kept words, and the random numbers of their noise words; any others as far as bands reach beyond them."""
        window, reach = self.config.window, self.config.noise_reach
        context_E = pad(batch.input_ids.flatten().index_select(0, index_R), (window, window))
        return context_E, pad(self._draw("noise", batch, index_R), (reach, reach))

    def _noise_words(self, drawn_E: Tensor) -> Tensor:
        return torch.searchsorted(self.noise_bounds, drawn_E, right=True)

    def _cases(self, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each word's row of `in_window` [R], its row of `in_reach` [R], and the weight of its noise words [R]."""
        before_R, after_R, noise_before_R, noise_after_R = labels.clamp(min=0)
        row_R = torch.arange(BLOCK, device=labels.device).repeat(len(before_R) // BLOCK)
        pairs_R = (before_R * (self.config.window + 1) + after_R) * BLOCK + row_R
        noise_R = (noise_before_R * (self.config.noise_reach + 1) + noise_after_R) * BLOCK + row_R
        count_R = (before_R + after_R).to(self.in_window.dtype)
        return pairs_R, noise_R, self.config.negatives * count_R / (1 + noise_before_R + noise_after_R)

    def _weights(self, pairs_R: Tensor, noise_R: Tensor, weight_R: Tensor) -> tuple[Tensor, Tensor]:
        """1 for each pair [R, P], and K for the noise words of each pair together [R, Q]; 0 for the rest."""
        noise_RQ = self.in_reach.index_select(0, noise_R).mul_(weight_R[:, None])
        return self.in_window.index_select(0, pairs_R), noise_RQ

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """1 + K for each pair."""
        return {self.name: (1 + self.config.negatives) * self.labels(batch)[:2].clamp(min=0).sum()}

    @property
    def columns(self) -> int:
        """Columns P of the words around a word; those of noise words follow."""
        return BLOCK + 2 * self.config.window

    def _draw(self, purpose: str, batch: Batch, index_R: Tensor | None = None) -> Tensor:
        """A random number for each token [T], or for those at indices [R]."""
        sample, position = batch.sample_ids.flatten(), batch.position_ids.flatten()
        if index_R is not None:
            sample, position = sample.index_select(0, index_R), position.index_select(0, index_R)
        return counter_random.random_bits(self.keys[purpose], batch.epoch, sample, position)


def _room(document_R: Tensor) -> tuple[Tensor, Tensor]:
    """How many words of the same document are before and after each word [R]."""
    index_R = torch.arange(len(document_R), device=document_R.device)
    starts_R = document_R != document_R.roll(1)
    starts_R[:1] = True
    first_R = torch.where(starts_R, index_R, 0).cummax(0).values
    last_R = torch.where(starts_R.roll(-1), -index_R, -len(index_R)).flip(0).cummax(0).values.flip(0).neg()
    return index_R - first_R, last_R - index_R


def _windows(reach: int, *, own: bool) -> Tensor:
    """1 for each word within a window [(1 + reach) * (1 + reach) * S, S + 2 reach], and 0 for other columns.

    Row (before * (1 + reach) + after) * S + s is that of row s of a block with so many words before and after it;
    `own`: a word is in its own window.
    """
    sizes = torch.arange(reach + 1)
    offset_SC = offsets(reach, sizes.device)
    within = (offset_SC >= -sizes[:, None, None, None]) & (offset_SC <= sizes[:, None, None])
    return (within if own else within & (offset_SC != 0)).flatten(0, 2).float()


def _frequencies(context: BuildContext) -> Shares:
    """The share of each token in the training text [V]; without counts, all ordinary tokens are equally frequent."""
    vocabulary = context.vocabulary
    size = context.vocab_size if vocabulary is None else min(vocabulary.size, context.vocab_size)
    counts = np.zeros(context.vocab_size)
    if vocabulary is not None and vocabulary.counts is not None:
        counts[:size] = vocabulary.counts[:size]
    else:
        counts[:size] = 1
        counts[list(vocabulary.special_ids if vocabulary else ())] = 0
    shares: Shares = counts / max(counts.sum(), 1)
    return shares


def _kept_share(frequencies: Shares, subsample: float) -> Shares:
    """The share of the occurrences of each word that is kept.

    # differs from the paper, whose share is √(t/f): √(t/f) + t/f, as in word2vec.c and gensim
    """
    if not subsample:
        return np.ones_like(frequencies)
    ratio = subsample / np.maximum(frequencies, 1e-30)
    shares: Shares = np.minimum(1.0, np.sqrt(ratio) + ratio)
    return shares
