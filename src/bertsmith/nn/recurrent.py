"""Recurrent layers over sequences of different lengths. N sequences, M places of the longest, D width, W hidden width.

torch cannot compile an LSTM: what is compiled breaks off here and goes on behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BiLSTM(nn.Module):
    """Layers that each read every sequence in both directions; padding behind a sequence changes nothing in it."""

    def __init__(self, width: int, hidden: int, *, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        widths = [width, *([self.width] * (layers - 1))]
        self.ahead = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in widths)
        self.back = nn.ModuleList(nn.LSTM(each, hidden, batch_first=True) for each in widths)
        self.dropout = nn.Dropout(dropout)  # of what each layer reads

    def forward(self, x_NMD: Tensor, lengths: Tensor) -> Tensor:
        """[N, M, D] with `lengths` [N] -> [N, M, 2W]; what stands beyond the lengths means nothing."""
        place_M = torch.arange(x_NMD.shape[1], device=x_NMD.device)
        # each sequence turned round within its own length: no packing, so no waiting for the lengths
        turned_NM1 = torch.where(place_M < lengths[:, None], lengths[:, None] - 1 - place_M, place_M)[:, :, None]
        for ahead, back in zip(self.ahead, self.back, strict=True):
            x_NMD = self.dropout(x_NMD)
            forth_NMW, _ = ahead(x_NMD)
            back_NMW, _ = back(x_NMD.gather(1, turned_NM1.expand_as(x_NMD)))
            x_NMD = torch.cat((forth_NMW, back_NMW.gather(1, turned_NM1.expand_as(back_NMW))), -1)
        return x_NMD
