"""A decoder of LSTM layers that attends to the source (Luong et al. 2015): global attention and input feeding.

N source texts of S tokens, K hypotheses of each (one in training), M target tokens, E width of the embeddings, W width
of the encoder's output and of the decoder's layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class SourceMemory:
    """What the attention reads of the source texts."""

    values: Tensor  # [N, S, W] the encoder's output
    keys: Tensor  # [N, S, W]
    mask: Tensor  # [N, S] bool: tokens of the texts

    def select(self, texts: Tensor) -> Self:
        """The memory of some of the texts."""
        return type(self)(self.values[texts], self.keys[texts], self.mask[texts])


class GlobalAttention(nn.Module):
    """Attention with the "general" score hᵀ A m, and the adjusted state tanh(C [c; h]); no biases.

    Luong et al. 2015, eq. 5 and 8; OpenNMT-py: global_attention.py, whose `linear_in` is A and `linear_out` is C.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(2 * width, width, bias=False)

    def read(self, source_NSW: Tensor, mask_NS: Tensor) -> SourceMemory:
        """The memory of a source, which does not change while a target is decoded."""
        # the score is (A h) . m = h . (Aᵀ m), which is computed once for all steps
        return SourceMemory(source_NSW, source_NSW @ self.score.weight, mask_NS)

    def forward(self, hidden_XW: Tensor, memory: SourceMemory) -> tuple[Tensor, Tensor]:
        """Decoder states [N * K, W] -> adjusted states [N * K, W] and attention probabilities [N, K, S]."""
        query_NKW = hidden_XW.view(len(memory.mask), -1, hidden_XW.shape[-1])
        scores_NKS = query_NKW @ memory.keys.to(query_NKW.dtype).transpose(1, 2)
        probabilities_NKS = scores_NKS.masked_fill(~memory.mask[:, None], -torch.inf).softmax(-1)
        context_NKW = probabilities_NKS.to(memory.values.dtype) @ memory.values
        adjusted_NKW = torch.tanh(self.output(torch.cat((context_NKW.to(query_NKW.dtype), query_NKW), -1)))
        return adjusted_NKW.flatten(0, 1), probabilities_NKS


@dataclass(frozen=True)
class DecoderLSTMState:
    """The state before a target token, of N * K hypotheses."""

    hidden: tuple[Tensor, ...]  # [N * K, W] of each layer
    cell: tuple[Tensor, ...]  # [N * K, W] of each layer
    feed: Tensor  # [N * K, W] the adjusted state of the token before

    @classmethod
    def initial(cls, hidden: tuple[Tensor, ...], cell: tuple[Tensor, ...]) -> Self:
        """The encoder's last states; zeros in place of an adjusted state."""
        return cls(hidden, cell, torch.zeros_like(hidden[-1]))

    def select(self, hypotheses: Tensor) -> Self:
        """The state of other hypotheses."""
        hidden, cell = (tuple(one[hypotheses] for one in part) for part in (self.hidden, self.cell))
        return type(self)(hidden, cell, self.feed[hypotheses])


class InputFeedDecoder(nn.Module):
    """LSTM layers; the first reads the embedding of a token and the adjusted state of the token before it.

    Dropout once on the embeddings, between the layers and on the adjusted states. The paper's code applies it a second
    time to the embeddings and a second and third time to the adjusted states that are fed (cove: Models.py).
    """

    def __init__(self, width: int, hidden: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        widths = [width + hidden, *[hidden] * (layers - 1)]
        self.cells = nn.ModuleList(nn.LSTMCell(each, hidden) for each in widths)
        self.attention = GlobalAttention(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x_NME: Tensor, state: DecoderLSTMState, memory: SourceMemory, *, return_probabilities: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Embedded targets [N, M, E] -> adjusted states [N, M, W], and on request probabilities [N, M, S]."""
        outputs: list[Tensor] = []
        probabilities: list[Tensor] = []
        for x_NE in self.dropout(x_NME).unbind(1):
            state, found_N1S = self.step(x_NE, state, memory)
            outputs.append(state.feed)
            if return_probabilities:
                probabilities.append(found_N1S)
        return torch.stack(outputs, 1), torch.cat(probabilities, 1) if probabilities else None

    def step(self, x_XE: Tensor, state: DecoderLSTMState, memory: SourceMemory) -> tuple[DecoderLSTMState, Tensor]:
        """The state after one token [N * K, E] of each hypothesis, and its attention probabilities [N, K, S]."""
        hidden: list[Tensor] = []
        cell: list[Tensor] = []
        x_XD = torch.cat((x_XE, state.feed.to(x_XE.dtype)), -1)
        for layer, before in zip(self.cells, zip(state.hidden, state.cell, strict=True), strict=True):
            if hidden:
                x_XD = self.dropout(hidden[-1])
            after_hidden, after_cell = layer(x_XD, before)
            hidden.append(after_hidden)
            cell.append(after_cell)
        adjusted_XW, probabilities_NKS = self.attention(hidden[-1], memory)
        return DecoderLSTMState(tuple(hidden), tuple(cell), self.dropout(adjusted_XW)), probabilities_NKS
