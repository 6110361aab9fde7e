"""Causal language model: each token is predicted from the tokens read before it (GPT, ULMFiT; P-BERT §5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.nn.dropout import drop_variational
from bertsmith.objectives.heads import check_dropout
from bertsmith.objectives.lm_head import LanguageModelHead
from bertsmith.objectives.objective import BuildContext
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

ACTIVATION, TEMPORAL = "activation_penalty", "temporal_penalty"  # loss terms


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every token but the first of each text is predicted; the regularisation is that of recurrent models."""

    weight: float = 1.0  # of this loss in the total
    dropout: float = 0.0  # on the hidden states, the same elements at all tokens of a row
    activation_penalty: float = 0.0  # weight of the mean square of the dropped hidden states (Merity et al. 2018, §4.3)
    temporal_penalty: float = 0.0  # weight of the mean square of their change from token to token, before dropout

    def __post_init__(self) -> None:
        check_dropout(self.dropout)
        for name in (ACTIVATION, TEMPORAL):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name):g} must be at least 0")

    def build(self, context: BuildContext) -> CausalLM:
        return CausalLM(self, context)


class CausalLM(LanguageModelHead):
    """Each token predicts the one that is read next in the same text, special tokens included.

    That is the token after it, or the one before it if the encoder reads backward.
    """

    causal = True
    pipeline = "text-generation"
    reads_all_tokens = True

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__(context, weight=config.weight)
        self.config, self.backward = config, context.direction == "backward"
        self.penalties = {name: getattr(config, name) for name in (ACTIVATION, TEMPORAL) if getattr(config, name)}

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return (self.name, *self.penalties)

    def corrupt(self, batch: Batch) -> Batch:
        """Labels are the ids shifted by one; the ids stay, since the encoder reads in one direction only."""
        ids_T, document_T = batch.input_ids.flatten(), batch.document_ids.flatten()
        shift, length = (1 if self.backward else -1), batch.input_ids.shape[1]
        next_T = document_T.roll(shift)  # the text of the token that is read next
        row_end_T = torch.arange(len(ids_T), device=ids_T.device) % length == (0 if self.backward else length - 1)
        known_T = (document_T == next_T) & (document_T != 0) & ~row_end_T
        labels_T: Tensor = torch.where(known_T, ids_T.roll(shift), IGNORE_INDEX)
        if batch.next_ids is not None:
            last_T = (document_T != 0) & (row_end_T | (next_T == 0))
            labels_T = torch.where(last_T, batch.next_ids.repeat_interleave(length), labels_T)
        return batch.replace(labels={**batch.labels, self.name: labels_T})

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Labels; in training also the tokens, and the pairs of adjacent tokens, whose hidden states are penalised."""
        counts = super().counts(batch)
        if self.training and ACTIVATION in self.penalties:
            counts[ACTIVATION] = (batch.document_ids != 0).sum()
        if self.training and TEMPORAL in self.penalties:
            counts[TEMPORAL] = _adjacent(batch).sum()
        return counts

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """The cross entropy, and in training the penalties."""
        if not self.training or not (self.config.dropout or self.penalties):
            return super().loss(encoding, batch, table)
        x_BLD = self.hidden(encoding).view(*batch.input_ids.shape, -1)
        dropped_BLD = drop_variational(x_BLD, self.config.dropout, training=True)
        loss = self.hidden_loss(dropped_BLD.flatten(0, 1), batch, table)
        squares = dict[str, Tensor]()
        if ACTIVATION in self.penalties:
            squares[ACTIVATION] = (dropped_BLD.float().square().mean(-1) * (batch.document_ids != 0)).sum()
        if TEMPORAL in self.penalties:
            x_BLD = x_BLD.float()
            squares[TEMPORAL] = ((x_BLD[:, 1:] - x_BLD[:, :-1]).square().mean(-1) * _adjacent(batch)).sum()
        counts = self.counts(batch)
        return loss + Loss(squares, {name: counts[name] for name in squares}, {}, self.penalties)


def _adjacent(batch: Batch) -> Tensor:
    """Whether a token and the one before it belong to the same text [B, L-1] bool."""
    document_BL = batch.document_ids
    return (document_BL[:, 1:] == document_BL[:, :-1]) & (document_BL[:, 1:] != 0)
