"""Tokens, positions and segments as vectors. T flat places, D width."""

from __future__ import annotations

from torch import Tensor, nn


class Embeddings(nn.Module):
    """The sum of three learned tables, normalised (P-BERT §3, figure 2)."""

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding,
        segments: nn.Embedding,
        *,
        norm: nn.LayerNorm,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """The vectors [T, D] of flat places."""
        sum_TD = self.tokens(ids_T) + self.positions(positions_T) + self.segments(segments_T)
        embedded_TD: Tensor = self.dropout(self.norm(sum_TD))
        return embedded_TD
