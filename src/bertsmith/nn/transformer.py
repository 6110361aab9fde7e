"""The layers of a Transformer encoder: embeddings, feed-forward, post-norm and pre-norm blocks, pooler.

T flat tokens, R selected tokens, N texts, E width of the embeddings, D width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import gelu, gelu_new, get_activation
from bertsmith.nn.attention import HAS_TRITON, Attention, AttentionContext
from bertsmith.nn.dropout import Dropout
from bertsmith.nn.layer_config import LayerConfig


class Embeddings(nn.Module):
    """The sum of token, position and segment embeddings, normalised (P-BERT §3, figure 2); all but tokens are optional.

    `project`: from the embeddings' width to the model's where they differ (P-ALBERT §3.1); the encoder calls it.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding | None,
        segments: nn.Embedding | None,
        *,
        norm: nn.LayerNorm | None,
        dropout: float,
        first_position: int = 0,
        project: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm: nn.Module = norm or nn.Identity()
        self.dropout = Dropout(dropout)
        self.first_position = first_position
        self.project: nn.Module = project or nn.Identity()

    def forward(self, input_ids_T: Tensor, position_ids_T: Tensor, segment_ids_T: Tensor) -> Tensor:
        """The embeddings [T, E], before `project`."""
        sum_TE = self.tokens(input_ids_T)
        if self.positions is not None:
            sum_TE = sum_TE + self.positions(
                position_ids_T + self.first_position if self.first_position else position_ids_T
            )
        if self.segments is not None:
            if segment_ids_T.is_cuda and self.segments.num_embeddings == 2:
                sum_TE = sum_TE + two_row_embedding(self.segments.weight, segment_ids_T)
            else:
                sum_TE = sum_TE + self.segments(segment_ids_T)
        embedded_TE: Tensor = self.dropout(self.norm(sum_TE))
        return embedded_TE


def two_row_embedding(table_2E: Tensor, rows_T: Tensor) -> Tensor:
    """Rows [T, E] of a table of two: on a GPU the gradients of all tokens would be added to one row one by one."""
    first_E, second_E = table_2E
    return torch.where((rows_T == 1).unsqueeze(1), second_E, first_E)


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each token (Vaswani et al. 2017, §3.3)."""

    expansions: ClassVar[int] = 1  # outputs of the first layer, in multiples of the inner width

    def __init__(self, *, width: int, inner: int, layer_config: LayerConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(width, self.expansions * inner, bias=layer_config.biases)
        self.contract = nn.Linear(inner, width, bias=layer_config.biases)
        self.activation = get_activation(layer_config.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        out_TD: Tensor = self.contract(self._activated(x_TD))
        return out_TD

    def _activated(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, F]; compiled for CUDA, the backward of GELU and ReLU also computes the bias's gradient."""
        weight, bias = self.expand.weight, self.expand.bias
        fuses = type(self.expand) is nn.Linear and bias is not None and torch.compiler.is_compiling()
        if fuses and self.activation in (gelu, gelu_new) and trains_in_half_precision(x_TD):
            from bertsmith.nn.kernels.elementwise import biased_gelu  # imports triton

            return biased_gelu(F.linear(x_TD, weight, bias.detach()), bias, self.activation is gelu_new)
        if fuses and self.activation is F.relu and trains_in_half_precision(x_TD):
            from bertsmith.nn.kernels.linear_relu import linear_relu  # imports triton

            return linear_relu(x_TD, weight, bias)
        return self.activation(self.expand(x_TD))


def trains_in_half_precision(x_TD: Tensor) -> bool:
    """Whether our Triton kernels apply: on CUDA, in bfloat16 or under autocast, with gradients."""
    half = x_TD.dtype.itemsize == 2 or torch.is_autocast_enabled("cuda")
    return HAS_TRITON and x_TD.is_cuda and half and torch.is_grad_enabled()


class GatedFeedForward(FeedForward):
    """A gated linear unit: half of the first layer's outputs, activated, scales the other half (Shazeer 2020, §2)."""

    expansions = 2
    stacks: ClassVar[Mapping[str, int]] = {"expand.weight": 2}  # see `optimizers.weights_of`

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        gate_TF, value_TF = self.expand(x_TD).chunk(2, -1)
        out_TD: Tensor = self.contract(self.activation(gate_TF) * value_TF)
        return out_TD


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection and a layer norm after the sum (post-norm).

    x ─┬─ attention ─ dropout ─ + ─ norm ─┬─ feed_forward ─ dropout ─ + ─ norm →
       └────────────────────────┘         └───────────────────────────┘
    Either sub-layer may be absent, for models that share the other one among layers.
    """

    def __init__(
        self, attention: Attention | None, feed_forward: FeedForward | None, *, width: int, layer_config: LayerConfig
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.Identity() if attention is None else layer_config.layer_norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.Identity() if feed_forward is None else layer_config.layer_norm(width)
        self.dropout = Dropout(layer_config.dropout)

    def forward(
        self, x_TD: Tensor, context: AttentionContext, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D], or [R, D] at `indices`; and probabilities, see `Attention.forward`."""
        probabilities_BHLL = None
        x_RD = x_TD if indices is None else x_TD.index_select(0, indices)
        if self.attention is not None:
            attended_RD, probabilities_BHLL = self.attention(x_TD, context, indices)
            x_RD = _add_and_norm(self.attention_norm, x_RD, self.dropout(attended_RD))
        if self.feed_forward is not None:
            x_RD = _add_and_norm(self.feed_forward_norm, x_RD, self.dropout(self.feed_forward(x_RD)))
        return x_RD, probabilities_BHLL


def _add_and_norm(norm: nn.Module, x_RD: Tensor, y_RD: Tensor) -> Tensor:
    """norm(x + y) in the precision of y: under autocast, half precision halves the time of every pass over it."""
    normed_RD: Tensor = norm(x_RD + y_RD)
    return normed_RD.to(y_RD.dtype)


class PreNormBlock(nn.Module):
    """Attention and feed-forward, each with a layer norm before it and a residual connection (Xiong et al. 2020).

    x ─┬─ norm ─ attention ─ dropout ─ + ─┬─ norm ─ feed_forward ─ dropout ─ + ─ output_norm →
       └───────────────────────────────┘  └──────────────────────────────────┘
    `first`: no attention norm, because the embeddings are normalised. `last`: with an output norm.
    """

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward,
        *,
        width: int,
        layer_config: LayerConfig,
        first: bool,
        last: bool,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.Identity() if first else layer_config.layer_norm(width)
        self.attention = attention
        self.feed_forward_norm = layer_config.layer_norm(width)
        self.feed_forward = feed_forward
        self.output_norm = layer_config.layer_norm(width) if last else nn.Identity()
        self.dropout = Dropout(layer_config.dropout)

    def forward(
        self, x_TD: Tensor, context: AttentionContext, indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `Block.forward`."""
        attended_RD, probabilities_BHLL = self.attention(self.attention_norm(x_TD), context, indices)
        x_RD = (x_TD if indices is None else x_TD.index_select(0, indices)) + self.dropout(attended_RD)
        x_RD = x_RD + self.dropout(self.feed_forward(self.feed_forward_norm(x_RD)))
        return self.output_norm(x_RD), probabilities_BHLL


def make_block(*, width: int, heads: int, inner: int, layer_config: LayerConfig) -> Block:
    """A post-norm block of that shape."""
    attention = Attention(width=width, heads=heads, dropout=layer_config.attention_dropout, biases=layer_config.biases)
    feed_forward = FeedForward(width=width, inner=inner, layer_config=layer_config)
    return Block(attention, feed_forward, width=width, layer_config=layer_config)


class Pooler(nn.Linear):
    """A linear layer and an activation over the first token of a text (P-BERT §3.1, task 2), after optional dropout."""

    def __init__(self, width: int, *, activation: str = "tanh", dropout: float = 0.0) -> None:
        super().__init__(width, width)
        self.activation = get_activation(activation)
        self.dropout = dropout

    def forward(self, x_ND: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        if self.dropout:
            x_ND = F.dropout(x_ND, self.dropout, self.training)
        return self.activation(super().forward(x_ND))
