"""Tokens, positions and segments as vectors. T flat places, E width of the tables, D width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bertsmith.nn.dropout import Dropout


class Embeddings(nn.Module):
    """The sum of three learned tables, normalised (P-BERT §3, figure 2); positions and segments may be absent.

    `project`: from the tables' width to the model's where they are narrower (P-ALBERT §3.1), for the encoder to call.
    """

    def __init__(
        self,
        tokens: nn.Embedding,
        positions: nn.Embedding | None,
        segments: nn.Embedding | None,
        *,
        norm: nn.LayerNorm,
        dropout: float,
        first_position: int = 0,
        project: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.first_position = first_position
        self.project: nn.Module = project or nn.Identity()

    def forward(self, ids_T: Tensor, positions_T: Tensor, segments_T: Tensor) -> Tensor:
        """The vectors [T, E] of flat places, below `project`."""
        sum_TE = self.tokens(ids_T)
        if self.positions is not None:
            sum_TE = sum_TE + self.positions(positions_T + self.first_position if self.first_position else positions_T)
        if self.segments is not None:
            two = segments_T.is_cuda and self.segments.num_embeddings == 2
            sum_TE = sum_TE + (of_two(self.segments.weight, segments_T) if two else self.segments(segments_T))
        embedded_TE: Tensor = self.dropout(self.norm(sum_TE))
        return embedded_TE


def of_two(table_2E: Tensor, rows_T: Tensor) -> Tensor:
    """Rows of a table of two [T, E]: on a GPU all places would wait for each other to add gradients to one row."""
    first_E, second_E = table_2E
    return torch.where((rows_T == 1).unsqueeze(1), second_E, first_E)
