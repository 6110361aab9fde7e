"""The Transformer block with its norms after the sums. T flat places, R places that are read, D width."""

from __future__ import annotations

from torch import Tensor, nn

from bertsmith.nn.activations import activation
from bertsmith.nn.attention import Attention, Sight
from bertsmith.nn.style import Style


class FeedForward(nn.Module):
    """Two matrices with an activation between them, at each place alone (Vaswani et al. 2017, §3.3)."""

    def __init__(self, *, width: int, inner: int, style: Style) -> None:
        super().__init__()
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)
        self.activation = activation(style.activation)

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        out_TD: Tensor = self.contract(self.activation(self.expand(x_TD)))
        return out_TD


class Block(nn.Module):
    """Attention and feed-forward, each with a way round it and a norm behind the sum.

    x ─┬─ attention ─ dropout ─ + ─ norm ─┬─ feed_forward ─ dropout ─ + ─ norm →
       └────────────────────────┘         └───────────────────────────┘
    """

    def __init__(
        self, *, attention: Attention, feed_forward: FeedForward, width: int, style: Style, dropout: float
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = style.norm(width)
        self.feed_forward = feed_forward
        self.feed_forward_norm = style.norm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_TD: Tensor, sight: Sight, places: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """[T, D] -> [T, D]; with `places` only what comes out there [R, D]: the same numbers for less work."""
        seen_RD, probabilities_BHLL = self.attention(x_TD, sight, places)
        x_RD = x_TD if places is None else x_TD.index_select(0, places)
        x_RD = self.attention_norm(x_RD + self.dropout(seen_RD))
        return self.feed_forward_norm(x_RD + self.dropout(self.feed_forward(x_RD))), probabilities_BHLL
