"""Bidirectional language model: the forward direction predicts the next token, the backward one the token before.

P-ELMo §3.1; bilm: training.py. Both directions share the softmax, which in training is sampled: a label competes with
the tokens that a batch has drawn (Jean et al. 2015), by logits from which the logarithm of their expected counts is
subtracted. Tokens are drawn without replacement from a log-uniform distribution over ids, which a vocabulary sorted by
frequency makes close to their frequencies (TensorFlow's log_uniform_candidate_sampler and sampled_softmax_loss).

# differs from the paper's code: both directions compete with the same tokens of a batch; and the backward direction
# reads each window from its end, where the code reads another stream, of reversed sentences. Its state has read the
# token before the window, which is therefore not a label. The bias of a sampled softmax starts at the logarithms of the
# probabilities of the sampler, not at 0: rare tokens are seldom drawn, so that it would take long to learn that they
# are rare.

T flat tokens, R = 2 T labels, S sampled tokens, V vocabulary, P width of a direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn import counter_random
from bertsmith.objectives.heads import check_dropout
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

MARGIN = 8  # standard deviations of the number of different tokens among the draws, at most √S
LOWEST = -1e30  # the logit of a sampled token that is the label itself


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of the published models."""

    samples: int = 8192  # sampled tokens of a batch; 0, or half of the vocabulary or more: the full softmax
    dropout: float = 0.1  # on the hidden states of the top layer
    weight: float = 1.0  # of this loss in the total

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        if self.samples < 0:
            raise ConfigError(f"samples={self.samples} must be at least 0")

    def build(self, context: BuildContext) -> BidirectionalLM:
        return BidirectionalLM(self, context)


class BidirectionalLM(LanguageModelHead):
    """Labels and hidden states are those of the forward direction, then those of the backward one."""

    reads_all_tokens = True
    separate_directions = True

    def __init__(self, config: Config, context: BuildContext) -> None:
        if context.direction != "forward_and_backward":
            raise ConfigError("bidirectional_lm needs an encoder of two separate directions: set encoder.kind=elmo")
        super().__init__(replace(context, width=context.width // 2, embedding_width=None), weight=config.weight)
        self.config = config
        size = context.vocab_size if context.vocabulary is None else context.vocabulary.size
        sampled = 0 < config.samples * 2 < size
        self.sampler = LogUniformSampler(size, config.samples, seed=context.seed) if sampled else None
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """The softmax as in the paper's code, but for the bias of a sampled softmax."""
        assert isinstance(self.output, nn.Embedding)
        assert self.bias is not None
        nn.init.normal_(self.output.weight, std=1 / math.sqrt(self.output.embedding_dim))
        if self.sampler is not None:
            ids = torch.arange(self.sampler.size, device=self.bias.device)
            self.bias[: self.sampler.size] = self.sampler.log_probability(ids).to(self.bias.dtype)

    def corrupt(self, batch: Batch) -> Batch:
        """Labels [R]; the ids stay, since neither direction sees its labels."""
        ids_BL, document_BL = batch.input_ids, batch.document_ids
        same = (document_BL[:, 1:] == document_BL[:, :-1]) & (document_BL[:, 1:] != 0)
        next_BL, previous_BL = (torch.full_like(ids_BL, IGNORE_INDEX) for _ in range(2))
        next_BL[:, :-1] = torch.where(same, ids_BL[:, 1:], IGNORE_INDEX)
        previous_BL[:, 1:] = torch.where(same, ids_BL[:, :-1], IGNORE_INDEX)
        if batch.next_ids is not None:
            following = F.pad(document_BL[:, 1:], (0, 1))
            next_BL = torch.where((document_BL != 0) & (following == 0), batch.next_ids[:, None], next_BL)
        labels_R = torch.cat((next_BL.flatten(), previous_BL.flatten()))
        return batch.replace(labels={**batch.labels, self.name: labels_R})

    def hidden(self, encoding: Encoding) -> Tensor:
        """The hidden states of both directions [R, P]."""
        return torch.cat(super().hidden(encoding).chunk(2, -1))

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The cross entropy per label; in training, of the sampled softmax."""
        if not self.training or (self.sampler is None and not self.config.dropout):
            return super().loss(encoding, batch, table)
        x_RP = F.dropout(self.hidden(encoding), self.config.dropout)
        if self.sampler is None:
            return self.hidden_loss(x_RP, batch, table)
        sampled_S, tries = self.sampler.draw(batch.sample_ids[0, 0])
        return self.make_loss(batch, *self._sampled_loss(x_RP, self.labels(batch), sampled_S, tries))

    def _sampled_loss(self, x_RP: Tensor, labels_R: Tensor, sampled_S: Tensor, tries: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the losses [], and which labels have the largest logit [R] bool."""
        assert self.sampler is not None
        assert self.output is not None
        assert self.bias is not None
        known_R = labels_R != IGNORE_INDEX
        target_R = torch.where(known_R, labels_R, 0)
        rows = torch.cat((target_R, sampled_S))
        output_XP, bias_X = self.output(rows), self.bias[rows] - self.sampler.log_expected_count(rows, tries)
        count = len(target_R)
        label_logit_R = (x_RP * output_XP[:count].to(x_RP.dtype)).sum(
            -1, dtype=torch.promote_types(x_RP.dtype, torch.float32)
        )
        label_logit_R = label_logit_R + bias_X[:count]
        if x_RP.is_cuda:
            from bertsmith.nn.kernels.sampled_softmax import sampled_softmax  # imports triton

            return sampled_softmax(x_RP, label_logit_R, output_XP[count:], bias_X[count:], sampled_S, target_R, known_R)
        logits_RS = at_least_float32(F.linear(x_RP, output_XP[count:])) + bias_X[count:]
        logits_RS = logits_RS.masked_fill(target_R[:, None] == sampled_S, LOWEST)
        losses_R = torch.logaddexp(logits_RS.logsumexp(-1), label_logit_R) - label_logit_R
        return losses_R.where(known_R, 0).sum(), known_R & (label_logit_R > logits_RS.amax(-1))


class LogUniformSampler(nn.Module):
    """Different ids k of a vocabulary, drawn with P(k) = log((k + 2) / (k + 1)) / log(V + 1)."""

    def __init__(self, size: int, samples: int, *, seed: int) -> None:
        super().__init__()
        self.size, self.samples = size, samples
        self.key = counter_random.stream_key(seed, "bidirectional_lm/samples")
        self.draws = _draws_needed(size, samples)

    def log_probability(self, ids: Tensor) -> Tensor:
        """In float64, since those of rare tokens are differences of almost equal numbers."""
        return torch.log(torch.log1p(1 / (ids.double() + 1)) / math.log(self.size + 1))

    def log_expected_count(self, ids: Tensor, tries: Tensor) -> Tensor:
        """The logarithm of the probability that a token is among those that `tries` [] draws have found."""
        share = self.log_probability(ids).exp()
        return torch.log(-torch.expm1(tries * torch.log1p(-share))).float()

    def draw(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """The first S different ids among the draws of a step, and how many draws it took []."""
        index = torch.arange(self.draws, device=step.device)
        uniform = (counter_random.random_bits(self.key, step, index).double() + 0.5) / counter_random.RANGE
        ids = (torch.exp(uniform * math.log(self.size + 1)) - 1).long().clamp_(max=self.size - 1)
        ascending, order = torch.sort(ids, stable=True)
        first = torch.ones_like(ascending, dtype=torch.bool)
        first[1:] = ascending[1:] != ascending[:-1]
        new = torch.zeros_like(first).scatter_(0, order, first)  # in the order of the draws
        chosen = torch.argsort((~new).to(torch.uint8), stable=True)[: self.samples]
        return ids[chosen], chosen[-1] + 1


def _draws_needed(size: int, samples: int) -> int:
    """Draws among which there are `samples` different ids, except with negligible probability."""
    share = np.log1p(1 / np.arange(1, size + 1)) / math.log(size + 1)
    wanted, draws = samples + MARGIN * math.sqrt(samples), samples
    while (-np.expm1(draws * np.log1p(-share))).sum() < min(wanted, size - 0.5):
        draws = draws * 5 // 4 + 1
    return draws
