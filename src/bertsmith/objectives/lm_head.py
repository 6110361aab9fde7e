"""Language-model heads: logits over the vocabulary, tied to the encoder's token table where it has one.

R selected tokens, D width, E width of the table, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import get_activation
from bertsmith.nn.transformer import trains_in_half_precision
from bertsmith.objectives.objective import BuildContext, Objective
from bertsmith.types import Batch, Encoding, Loss


class LanguageModelHead(Objective):
    """Linear layer, activation, layer norm, then the transposed token table and a bias (bert: run_pretraining.py)."""

    def __init__(self, context: BuildContext, *, weight: float) -> None:
        super().__init__(weight=weight)
        layers, output_width = context.layer_config, context.embedding_width or context.width
        self.transform = nn.Linear(context.width, output_width, bias=layers.biases)
        self.activation = get_activation(layers.lm_head_activation or layers.activation)
        self.norm = layers.layer_norm(output_width)
        self.bias = nn.Parameter(torch.zeros(context.vocab_size))
        self.tied, self.classes = context.embedding_width is not None, context.vocab_size
        self.output = None if self.tied else nn.Embedding(context.vocab_size, output_width)
        layers.init_weights(self)
        self.fusable = True  # the loss is the plain cross entropy of the logits

    @property
    def perplexity_terms(self) -> tuple[str, ...]:
        """Its loss is the cross entropy per predicted token."""
        return (self.name,)

    def loss(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Loss:
        """See `Objective.loss`; compiled for CUDA, one kernel turns the logits into their gradient."""
        if not (self.fusable and trains_in_half_precision(encoding.last_hidden) and torch.compiler.is_compiling()):
            return super().loss(encoding, batch, table)
        from bertsmith.nn.kernels.cross_entropy import linear_cross_entropy  # imports triton

        table_VE = self._output_table(table)
        return self.make_loss(
            batch, *linear_cross_entropy(self._transformed(encoding), table_VE, self.bias, self.labels(batch))
        )

    def predict(self, encoding: Encoding, batch: Batch, table: Tensor | None) -> Tensor:
        """The logits over the vocabulary at each selected token [R, V]."""
        return F.linear(self._transformed(encoding), self._output_table(table), self.bias)

    def _output_table(self, table: Tensor | None) -> Tensor:
        if self.output is not None:
            return self.output.weight
        assert table is not None, "a tied head is built for an encoder with a token table"
        return table

    def _transformed(self, encoding: Encoding) -> Tensor:
        x_RE: Tensor = self.norm(self.activation(self.transform(encoding.at(self.name))))
        return x_RE
