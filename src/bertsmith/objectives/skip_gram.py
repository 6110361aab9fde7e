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
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.nn.banded import BLOCK, banded_products, bands, distances
from bertsmith.objectives.masked_lm import masked_slots
from bertsmith.objectives.objective import BuildContext, Objective, at_least_float32
from bertsmith.types import Batch, Encoding, Loss

SAFETY = 6  # standard deviations of the number of kept tokens
POSITIVE, NOISE, NONE = 1.0, 0.0, -1.0  # labels


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

    def corrupt(self, batch: Batch) -> Batch:
        """`indices` [R]: the words that are kept, in order; `labels` [R, P + Q]: 1 pair, 0 noise, -1 neither."""
        kept_T = ~batch.special_mask.flatten()
        kept_T &= self._draw("subsample", batch) < self.keep_below[batch.input_ids.flatten()]
        count = self.slots(len(kept_T))
        kept_T &= kept_T.cumsum(0) <= count
        index_R, used_R = masked_slots(kept_T, count)
        row_T = torch.arange(len(kept_T), device=kept_T.device) // batch.input_ids.shape[1]
        document_T = (row_T << 32) + batch.document_ids.flatten()  # unique in the batch
        document_R = torch.where(used_R, document_T[index_R], -1)
        window_R = 1 + counter_random.to_range(self._draw("window", batch, index_R), self.config.window)
        labels_RC = torch.cat([self._pairs(document_R, window_R), self._noise(document_R)], 1)
        return batch.replace(
            labels={**batch.labels, self.name: labels_RC}, indices={**batch.indices, self.name: index_R}
        )

    def slots(self, tokens: int) -> int:
        """Slots for the kept tokens of a batch: their expected number and a margin, in whole blocks."""
        expected = self.kept_share * tokens
        most = math.ceil(expected + SAFETY * math.sqrt(tokens)) if self.kept_share < 1 else tokens
        return -(-min(most, tokens) // BLOCK) * BLOCK

    def _pairs(self, document_R: Tensor, window_R: Tensor) -> Tensor:
        """Labels [R, P] of the words around each word."""
        near_SP = distances(self.config.window, document_R.device)
        near_SP = torch.where(near_SP == 0, self.config.window + 1, near_SP)  # a word is not in its own window
        within_GSP = near_SP <= window_R.view(-1, BLOCK, 1)
        return self._labels(document_R, within_GSP, self.config.window, POSITIVE)

    def _noise(self, document_R: Tensor) -> Tensor:
        """Labels [R, Q] of the noise words that were drawn near each word."""
        within_SQ = distances(self.config.noise_reach, document_R.device) <= self.config.noise_reach
        return self._labels(document_R, within_SQ, self.config.noise_reach, NOISE)

    def _labels(self, document_R: Tensor, within: Tensor, reach: int, label: float) -> Tensor:
        columns_GC = bands(document_R, reach, filler=-1)
        valid = (document_R.view(-1, BLOCK, 1) == columns_GC[:, None]) & (columns_GC >= 0)[:, None] & within
        return torch.where(valid, label, NONE).flatten(0, 1)

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The scores of each kept word with the words around it and with noise words [R, P + Q]."""
        index_R = self.indices(batch)
        assert index_R is not None
        x_RD = encoding.at(self.name)
        missing = -len(index_R) % BLOCK
        if missing:  # without `corrupt`
            index_R, x_RD = F.pad(index_R, (0, missing)), F.pad(x_RD, (0, 0, 0, missing))
        noise_R = torch.searchsorted(self.noise_bounds, self._draw("noise", batch, index_R), right=True)
        output_D = self.output(torch.cat([batch.input_ids.flatten()[index_R], noise_R]))
        context_RD, noise_RD = output_D.split(len(index_R))
        near_RP = banded_products(x_RD, context_RD, self.config.window)
        noise_RQ = banded_products(x_RD, noise_RD, self.config.noise_reach)
        return torch.cat([near_RP, noise_RQ], 1)[: len(index_R) - missing]

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """The logistic losses of pairs and of noise words, the latter K for each pair."""
        labels_RC = self.labels(batch)
        pairs_R, noise_R = self._counts(labels_RC)
        weight_R = (self.config.negatives * pairs_R / noise_R.clamp(min=1)).to(logits.dtype)
        total = _LogisticLoss.apply(at_least_float32(logits), labels_RC, weight_R)
        return self.make_loss(batch, total, None)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """1 + K for each pair."""
        pairs_R, noise_R = self._counts(self.labels(batch))
        return {self.name: (pairs_R * torch.where(noise_R > 0, 1 + self.config.negatives, 1)).sum()}

    def _counts(self, labels_RC: Tensor) -> tuple[Tensor, Tensor]:
        """Pairs and noise words of each word [R]."""
        columns = BLOCK + 2 * self.config.window
        return (labels_RC[:, :columns] == POSITIVE).sum(1), (labels_RC[:, columns:] == NOISE).sum(1)

    def _draw(self, purpose: str, batch: Batch, index_R: Tensor | None = None) -> Tensor:
        """A random number for each token [T], or for those at indices [R]."""
        sample, position = batch.sample_ids.flatten(), batch.position_ids.flatten()
        if index_R is not None:
            sample, position = sample[index_R], position[index_R]
        return counter_random.random_bits(self.keys[purpose], batch.epoch, sample, position)


class _LogisticLoss(torch.autograd.Function):
    """The weighted sum of logistic losses; the forward computes the gradient too."""

    @staticmethod
    def forward(ctx: Any, logits_RC: Tensor, labels_RC: Tensor, noise_weight_R: Tensor) -> Tensor:
        positive_RC = labels_RC == POSITIVE
        weight_RC = torch.where(labels_RC == NOISE, noise_weight_R[:, None], positive_RC.to(logits_RC.dtype))
        probability_RC = torch.sigmoid(logits_RC)
        ctx.save_for_backward((probability_RC - positive_RC.to(logits_RC.dtype)).mul_(weight_RC))
        signed_RC = torch.where(positive_RC, logits_RC, -logits_RC)
        return -(F.logsigmoid(signed_RC).mul_(weight_RC)).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (gradient_RC,) = ctx.saved_tensors
        return gradient_RC * gradient, None, None


def _frequencies(context: BuildContext) -> np.ndarray:
    """The share of each token in the training text [V]; without counts, all ordinary tokens are equally frequent."""
    vocabulary = context.vocabulary
    size = context.vocab_size if vocabulary is None else min(vocabulary.size, context.vocab_size)
    counts = np.zeros(context.vocab_size)
    if vocabulary is not None and vocabulary.counts is not None:
        counts[:size] = vocabulary.counts[:size]
    else:
        counts[:size] = 1
        counts[list(vocabulary.special_ids if vocabulary else ())] = 0
    return counts / max(counts.sum(), 1)


def _kept_share(frequencies: np.ndarray, subsample: float) -> np.ndarray:
    """The share of the occurrences of each word that is kept.

    # differs from the paper, whose share is √(t/f): √(t/f) + t/f, as in word2vec.c and gensim
    """
    if not subsample:
        return np.ones_like(frequencies)
    ratio = subsample / np.maximum(frequencies, 1e-30)
    return np.minimum(1.0, np.sqrt(ratio) + ratio)
