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
from bertsmith.nn.attention import HAS_TRITON, Attention, Sight
from bertsmith.nn.dropout import Dropout
from bertsmith.nn.style import Style


class FeedForward(nn.Module):
    """Two matrices with an activation between them, at each place alone (Vaswani et al. 2017, §3.3)."""

    parts: ClassVar[int] = 1  # of the inner width each, that the first matrix gives

    def __init__(self, *, width: int, inner: int, style: Style) -> None:
        super().__init__()
        self.expand = nn.Linear(width, self.parts * inner, bias=style.biases)
        self.contract = nn.Linear(inner, width, bias=style.biases)
        self.activation = activation(style.activation)

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
        self, *, attention: Attention | None, feed_forward: FeedForward | None, width: int, style: Style, dropout: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.Identity() if attention is None else style.norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = nn.Identity() if feed_forward is None else style.norm(width)
        self.dropout = Dropout(dropout)

    def forward(self, x_TD: Tensor, sight: Sight, places: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D]; with `places` only what comes out there [R, D]: the same numbers for less work."""
        probabilities_BHLL = None
        x_RD = x_TD if places is None else x_TD.index_select(0, places)
        if self.attention is not None:
            seen_RD, probabilities_BHLL = self.attention(x_TD, sight, places)
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
        self, *, attention: Attention, feed_forward: FeedForward, width: int, style: Style, first: bool, last: bool
    ) -> None:
        super().__init__()
        self.attention_norm = nn.Identity() if first else style.norm(width)
        self.attention = attention
        self.feed_forward_norm = style.norm(width)
        self.feed_forward = feed_forward
        self.output_norm = style.norm(width) if last else nn.Identity()
        self.dropout = Dropout(style.dropout)

    def forward(self, x_TD: Tensor, sight: Sight, places: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """See `Block.forward`: everything is computed at the places alone but what attention sees there."""
        seen_RD, probabilities_BHLL = self.attention(self.attention_norm(x_TD), sight, places)
        x_RD = (x_TD if places is None else x_TD.index_select(0, places)) + self.dropout(seen_RD)
        x_RD = x_RD + self.dropout(self.feed_forward(self.feed_forward_norm(x_RD)))
        return self.output_norm(x_RD), probabilities_BHLL


def make_block(*, width: int, heads: int, inner: int, style: Style) -> Block:
    """A block of that shape in that style."""
    return Block(
        attention=Attention(width=width, heads=heads, dropout=style.attention_dropout, biases=style.biases),
        feed_forward=FeedForward(width=width, inner=inner, style=style),
        width=width,
        style=style,
        dropout=style.dropout,
    )
