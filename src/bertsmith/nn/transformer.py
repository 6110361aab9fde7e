"""The Transformer block, with its norms after the sums or before its halves.

T flat places, R places that are read, D width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import activation, gelu, gelu_new
from bertsmith.nn.attention import HAS_TRITON, Attention, AttentionContext
from bertsmith.nn.dropout import Dropout
from bertsmith.nn.layer_config import LayerConfig


class FeedForward(nn.Module):
    """Two matrices with an activation between them, at each place alone (Vaswani et al. 2017, §3.3)."""

    parts: ClassVar[int] = 1  # of the inner width each, that the first matrix gives

    def __init__(self, *, width: int, inner: int, layer_config: LayerConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(width, self.parts * inner, bias=layer_config.biases)
        self.contract = nn.Linear(inner, width, bias=layer_config.biases)
        self.activation = activation(layer_config.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        out_TD: Tensor = self.contract(self._inner(x_TD))
        return out_TD

    def _inner(self, x_TD: Tensor) -> Tensor:
        """What stands between the matrices [T, F]; compiled for CUDA, GELU's gradient brings the bias's along."""
        bias, plain = self.expand.bias, type(self.expand) is nn.Linear and self.activation in (gelu, gelu_new)
        if plain and bias is not None and learns_in_half(x_TD) and torch.compiler.is_compiling():
            from bertsmith.nn.fused_gelu import biased_gelu  # which needs triton

            return biased_gelu(F.linear(x_TD, self.expand.weight, bias.detach()), bias, self.activation is gelu_new)
        return self.activation(self.expand(x_TD))


def learns_in_half(x_TD: Tensor) -> bool:
    """Whether kernels of ours can take it: on CUDA, in bfloat16 or about to be, on the way to a gradient."""
    half = x_TD.dtype.itemsize == 2 or torch.is_autocast_enabled("cuda")
    return HAS_TRITON and x_TD.is_cuda and half and torch.is_grad_enabled()


class GatedFeedForward(FeedForward):
    """One half of what the first matrix gives, activated, opens and shuts the other half (Shazeer 2020, §2)."""

    parts = 2
    stacks: ClassVar[Mapping[str, int]] = {"expand.weight": 2}  # see `optimizer.weights_of`

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        gate_TF, open_TF = self.expand(x_TD).chunk(2, -1)
        out_TD: Tensor = self.contract(self.activation(gate_TF) * open_TF)
        return out_TD


class Block(nn.Module):
    """Attention and feed-forward, each with a way round it and a norm behind the sum.

    x ─┬─ attention ─ dropout ─ + ─ norm ─┬─ feed_forward ─ dropout ─ + ─ norm →
       └────────────────────────┘         └───────────────────────────┘
    Either half may be absent, for models that share the other one among layers.
    """

    def __init__(
        self,
        *,
        attention: Attention | None,
        feed_forward: FeedForward | None,
        width: int,
        layer_config: LayerConfig,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.Identity() if attention is None else layer_config.layer_norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.Identity() if feed_forward is None else layer_config.layer_norm(width)
        self.dropout = Dropout(dropout)

    def forward(
        self, x_TD: Tensor, context: AttentionContext, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D]; with `places` only what comes out there [R, D]: the same numbers for less work."""
        probabilities_BHLL = None
        x_RD = x_TD if places is None else x_TD.index_select(0, places)
        if self.attention is not None:
            seen_RD, probabilities_BHLL = self.attention(x_TD, context, places)
            x_RD = _normed(self.attention_norm, x_RD, self.dropout(seen_RD))
        if self.feed_forward is not None:
            x_RD = _normed(self.feed_forward_norm, x_RD, self.dropout(self.feed_forward(x_RD)))
        return x_RD, probabilities_BHLL


def _normed(norm: nn.Module, x_RD: Tensor, more_RD: Tensor) -> Tensor:
    """The norm of a sum, in the precision of what was added: every pass over it takes half the time in half of it."""
    found_RD: Tensor = norm(x_RD + more_RD)
    return found_RD.to(more_RD.dtype)


class PreNormBlock(nn.Module):
    """Attention and feed-forward, each with a norm before it and a way round both (Xiong et al. 2020).

    x ─┬─ norm ─ attention ─ dropout ─ + ─┬─ norm ─ feed_forward ─ dropout ─ + ─ output_norm →
       └───────────────────────────────┘  └──────────────────────────────────┘
    `first`: what comes in is normed already. `last`: what goes out is normed, as in no other block.
    """

    def __init__(
        self,
        *,
        attention: Attention,
        feed_forward: FeedForward,
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
        self, x_TD: Tensor, context: AttentionContext, places: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See `Block.forward`: everything is computed at the places alone but what attention sees there."""
        seen_RD, probabilities_BHLL = self.attention(self.attention_norm(x_TD), context, places)
        x_RD = (x_TD if places is None else x_TD.index_select(0, places)) + self.dropout(seen_RD)
        x_RD = x_RD + self.dropout(self.feed_forward(self.feed_forward_norm(x_RD)))
        return self.output_norm(x_RD), probabilities_BHLL


def make_block(*, width: int, heads: int, inner: int, layer_config: LayerConfig) -> Block:
    """A block of that shape in that layer_config."""
    return Block(
        attention=Attention(
            width=width, heads=heads, dropout=layer_config.attention_dropout, biases=layer_config.biases
        ),
        feed_forward=FeedForward(width=width, inner=inner, layer_config=layer_config),
        width=width,
        layer_config=layer_config,
        dropout=layer_config.dropout,
    )
