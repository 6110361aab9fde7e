"""Recurrent layers over sequences of different lengths. N sequences, M tokens of the longest, D width, W hidden width.

torch cannot compile an LSTM: a compiled model has a graph break here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BiLSTM(nn.Module):
    """Bidirectional LSTM layers; padding after a sequence does not change its outputs."""

    def __init__(self, width: int, hidden: int, *, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        widths = [width, *([self.width] * (layers - 1))]
        self.forward_lstms = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in widths)
        self.backward_lstms = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in widths)
        self.dropout = nn.Dropout(dropout)  # on the input of each layer

    def forward(self, x_NMD: Tensor, lengths: Tensor) -> Tensor:
        """[N, M, D] with `lengths` [N] -> [N, M, 2W]; outputs beyond the lengths are undefined."""
        index_M = torch.arange(x_NMD.shape[1], device=x_NMD.device)
        # reverse each sequence within its own length: packed sequences would wait for the lengths on the host
        reverse_NM1 = torch.where(index_M < lengths[:, None], lengths[:, None] - 1 - index_M, index_M)[:, :, None]
        for forward, backward in zip(self.forward_lstms, self.backward_lstms, strict=True):
            x_NMD = self.dropout(x_NMD)
            forward_NMW, _ = forward(x_NMD)
            backward_NMW, _ = backward(x_NMD.gather(1, reverse_NM1.expand_as(x_NMD)))
            x_NMD = torch.cat((forward_NMW, backward_NMW.gather(1, reverse_NM1.expand_as(backward_NMW))), -1)
        return x_NMD
