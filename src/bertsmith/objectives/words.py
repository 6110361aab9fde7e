"""Objectives that guess words, with one head over the encoder's own token table.

R places, D width, E width of the table, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import activation
from bertsmith.nn.transformer import learns_in_half
from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.types import Batch, Encoding, Loss


class Words(Objective):
    """transform, activation, norm, then the token table transposed and a bias (bert: run_pretraining.py)."""

    mixes = False  # something else into what its head answers

    def __init__(self, context: BuildContext, *, weight: float) -> None:
        super().__init__(weight=weight)
        layer_config, output_width = context.layer_config, context.embedding_width or context.width
        self.transform = nn.Linear(context.width, output_width, bias=layer_config.biases)
        self.activation = activation(layer_config.lm_head_activation or layer_config.activation)
        self.norm = layer_config.layer_norm(output_width)
        self.bias = nn.Parameter(torch.zeros(context.vocab_size))
        layer_config.init_weights(self)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor) -> Loss:
        """See `Objective.score`; compiled for CUDA, logits become their gradient in the pass that reads them."""
        if self.mixes or not (learns_in_half(encoding.last_hidden) and torch.compiler.is_compiling()):
            return super().loss(encoding, batch, table)
        from bertsmith.nn.fused_words import guessed  # which needs triton

        return self.make_loss(batch, *guessed(self._vectors(encoding), table, self.bias, self.labels(batch)))

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor) -> Tensor:
        """The logits of every token at each place that is read [R, V]."""
        return F.linear(self._vectors(encoding), table, self.bias)

    def _vectors(self, encoding: Encoding) -> Tensor:
        """What is compared with the table [R, E]."""
        found_RE: Tensor = self.norm(self.activation(self.transform(encoding.at(self.name))))
        return found_RE
