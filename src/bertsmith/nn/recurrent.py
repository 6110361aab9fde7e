"""Recurrent layers over sequences of different lengths. N sequences, M tokens of the longest, D width, W hidden width.

torch cannot compile an LSTM: a compiled model has a graph break here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# weight dropout makes a new matrix in every forward, so cuDNN copies the weights into one chunk each time
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


class BiLSTM(nn.Module):
    """Bidirectional LSTM layers; padding after a sequence does not change its outputs."""

    cell: ClassVar[type[nn.LSTM | nn.GRU]] = nn.LSTM

    def __init__(self, width: int, hidden: int, *, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.width = 2 * hidden
        widths = [width, *([self.width] * (layers - 1))]
        self.forward_lstms = nn.ModuleList(self.cell(each, hidden, batch_first=True) for each in widths)
        self.backward_lstms = nn.ModuleList(self.cell(each, hidden, batch_first=True) for each in widths)
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


class BiGRU(BiLSTM):
    """Bidirectional GRU layers (Cho et al. 2014)."""

    cell = nn.GRU


class WeightDropLSTM(nn.Module):
    """An LSTM layer with dropout on its hidden-to-hidden matrix (DropConnect; Merity et al. 2018, §2).

    The same elements of the matrix are dropped at all tokens, so that cuDNN's kernels can be used.
    """

    stacks: ClassVar[Mapping[str, int]] = {"weight_ih": 4, "weight_hh": 4}  # see `optimizers.weights_of`

    def __init__(self, width: int, hidden: int, *, weight_dropout: float = 0.0) -> None:
        super().__init__()
        self.width, self.weight_dropout = hidden, weight_dropout
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, width))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))
        self.init_weights()

    def init_weights(self) -> None:
        """As `nn.LSTM`: uniform within 1/√W."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(self.width), 1 / math.sqrt(self.width))

    def forward(self, x_NMD: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[N, M, D] and the hidden and cell state [N, W] before -> [N, M, W] and the state after the last token."""
        weight_hh = F.dropout(self.weight_hh, self.weight_dropout, self.training)
        weights = [self.weight_ih, weight_hh, self.bias_ih, self.bias_hh]
        before = [each[None].to(x_NMD.dtype) for each in state]
        trains = self.training or x_NMD.requires_grad  # cuDNN has no gradients otherwise, also below a frozen layer
        out_NMW, hidden_1NW, cell_1NW = torch._VF.lstm(x_NMD, before, weights, True, 1, 0.0, trains, False, True)
        return out_NMW, (hidden_1NW[0], cell_1NW[0])
