"""Language-model heads: logits over the vocabulary, tied to the encoder's token table where it has one.

R selected tokens, D width, E width of the table, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertsmith.errors import ConfigError
from bertsmith.nn.activations import get_activation
from bertsmith.nn.transformer import trains_in_half_precision
from bertsmith.objectives.objective import BuildContext, Objective, at_least_float32
from bertsmith.types import IGNORE_INDEX, Batch, Encoding, Loss

MAX_LOGITS = 1 << 28  # in float32 at once: 1 GiB


class LanguageModelHead(Objective):
    """Linear layer, activation, layer norm, then the transposed token table and a bias (bert: run_pretraining.py).

    The encoder's `LayerConfig` leaves out parts: GPT-1 has the transposed token table alone (P-GPT1 eq. 2).
    """

    bias: nn.Parameter | None

    def __init__(self, context: BuildContext, *, weight: float) -> None:
        super().__init__(weight=weight)
        layers, output_width = context.layer_config, context.embedding_width or context.width
        self.transform = (
            nn.Linear(context.width, output_width, bias=layers.biases) if layers.lm_head_transform else None
        )
        self.activation = get_activation(layers.lm_head_activation or layers.activation)
        self.norm = layers.layer_norm(output_width) if layers.lm_head_transform else None
        self.register_parameter("bias", nn.Parameter(torch.zeros(context.vocab_size)) if layers.lm_head_bias else None)
        if self.transform is None and output_width != context.width:
            widths = f"the token table has vectors of {output_width} numbers, the last layer of {context.width}"
            raise ConfigError(f"{self.name}: {widths}: set objectives.{self.name}.tie_output=false")
        self.tied, self.classes = context.embedding_width is not None, context.vocab_size
        self.output = None if self.tied else nn.Embedding(context.vocab_size, output_width)
        layers.init_weights(self)
        self.fusable = True  # the loss is the cross entropy of the logits, with label smoothing if set
        self.label_smoothing = 0.0  # in training: probability that the target gives to the other V-1 tokens together
        self.compiles = context.compiles

    @property
    def perplexity_terms(self) -> tuple[str, ...]:
        """Its loss is the cross entropy per predicted token."""
        return (self.name,)

    @property
    def smoothing(self) -> float:
        """The weight of the uniform distribution over all V tokens in the target, as torch counts it."""
        return self.label_smoothing * self.classes / (self.classes - 1) if self.training else 0.0

    def loss_from_logits(self, logits: Tensor, batch: Batch) -> Loss:
        """See `Objective.loss_from_logits`; in training with label smoothing."""
        if not self.smoothing:
            return super().loss_from_logits(logits, batch)
        return self.make_loss(batch, *_loss_and_correct(logits, self.labels(batch), self.smoothing))

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """See `Objective.loss`; on CUDA, compiled or not to be compiled, one kernel turns logits into their gradient.

        Elsewhere, rows with more than `MAX_LOGITS` logits are computed part by part, and again in the backward.
        """
        x_RD = self.hidden(encoding)
        if self.fusable and (self._fuses(x_RD) or len(self.labels(batch)) > self._rows(table)):
            return self.hidden_loss(x_RD, batch, table)
        return super().loss(encoding, batch, table)

    def _fuses(self, x_RD: Tensor) -> bool:
        return trains_in_half_precision(x_RD) and (torch.compiler.is_compiling() or not self.compiles)

    def _rows(self, table: Tensor | None) -> int:
        """Rows whose logits are computed at once."""
        return max(1, MAX_LOGITS // len(self._output_table(table)))

    def hidden_loss(self, x_RD: Tensor, batch: Batch, table: Tensor | None) -> Loss:
        """The cross entropy of hidden states of the encoder [R, D]."""
        table_VE, labels_R, rows = self._output_table(table), self.labels(batch), self._rows(table)
        x_RE = self._transformed(x_RD)
        if self._fuses(x_RD):
            from bertsmith.nn.kernels.cross_entropy import linear_cross_entropy  # imports triton

            return self.make_loss(batch, *linear_cross_entropy(x_RE, table_VE, self.bias, labels_R, self.smoothing))
        parts = [
            checkpoint(_cross_entropy, part_RE, table_VE, self.bias, part_R, self.smoothing, use_reentrant=False)
            for part_RE, part_R in zip(torch.split(x_RE, rows), torch.split(labels_R, rows), strict=True)
        ]
        losses, correct = zip(*parts, strict=True)
        return self.make_loss(batch, torch.stack(losses).sum(), torch.cat(correct))

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits over the vocabulary at each selected token [R, V]."""
        return self.logits(self.hidden(encoding), table)

    def logits(self, x_RD: Tensor, table: Tensor | None) -> Tensor:
        """The logits over the vocabulary [R, V] of hidden states of the encoder."""
        return F.linear(self._transformed(x_RD), self._output_table(table), self.bias)

    def hidden(self, encoding: Encoding) -> Tensor:
        """The hidden states that it reads [R, D]."""
        return encoding.at(self.name) if self.name in encoding.selections else encoding.last_hidden

    def _output_table(self, table: Tensor | None) -> Tensor:
        if self.output is not None:
            return self.output.weight
        assert table is not None, "a tied head is built for an encoder with a token table"
        return table

    def _transformed(self, x_RD: Tensor) -> Tensor:
        if self.transform is None or self.norm is None:
            return x_RD
        x_RE: Tensor = self.norm(self.activation(self.transform(x_RD)))
        return x_RE


def _cross_entropy(
    x_RE: Tensor, table_VE: Tensor, bias_V: Tensor | None, labels_R: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """The sum of the losses [] of rows with a label, and which predictions are correct [R] bool."""
    return _loss_and_correct(F.linear(x_RE, table_VE, bias_V), labels_R, smoothing)


def _loss_and_correct(logits_RV: Tensor, labels_R: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    logits_RV = at_least_float32(logits_RV)
    how: dict[str, Any] = {"ignore_index": IGNORE_INDEX, "reduction": "sum", "label_smoothing": smoothing}
    return F.cross_entropy(logits_RV, labels_R, **how), logits_RV.argmax(-1) == labels_R
