"""The biattentive classification network (McCann et al. 2017, §5): one vector of two texts, and a maxout classifier.

N texts or pairs of texts, M tokens of the longest, W input width, H hidden width, K outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertsmith.nn.batch_norm_head import MaskedBatchNorm
from bertsmith.nn.pooling import LayerReader, TextTokens
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.types import Batch, Encoding

PIECES = 4  # linear functions of which a maxout unit is the largest
POOLED = 4  # maximum, mean, minimum and self-attentive pooling


@dataclass(frozen=True)
class TwoTexts:
    """The tokens of the two texts of each pair, without special tokens; a single text is both."""

    indices: Tensor  # [2, N, M] int64 flat token indices; arbitrary beyond a text
    mask: Tensor  # [2, N, M] bool: the token belongs to the text

    @classmethod
    def of(cls, batch: Batch) -> TwoTexts:
        """A pair is split at its special tokens: its texts are the first and the last run of other tokens."""
        whole = TextTokens.of(batch)
        ordinary_NM = whole.mask & ~batch.special_mask.flatten()[whole.indices]
        before_NM = torch.nn.functional.pad(ordinary_NM[:, :-1], (1, 0))
        run_NM = (ordinary_NM & ~before_NM).cumsum(1)
        last_N1 = run_NM[:, -1:]
        sides = [ordinary_NM & (run_NM == number) for number in (torch.ones_like(last_N1), last_N1)]
        # an empty text has special tokens only
        mask_2NM = torch.stack(sides) | (whole.mask & (last_N1 == 0))
        begin_2N = mask_2NM.int().argmax(-1)
        length_2N = mask_2NM.sum(-1)
        offset_M = torch.arange(mask_2NM.shape[-1], device=mask_2NM.device)
        at_2NM = (begin_2N[:, :, None] + offset_M).clamp(max=mask_2NM.shape[-1] - 1)
        indices = whole.indices.expand_as(at_2NM).gather(2, at_2NM)
        return cls(indices, offset_M < length_2N[:, :, None])


class BiattentionPooler(nn.Module):
    """The joint vector [N, 16 H] of two texts: each is encoded, attends to the other, and is pooled in four ways.

    The layers that encode the texts are shared; each text has its own layers that integrate the attention.
    """

    reads_pooled = False
    reads_all_tokens = True

    def __init__(self, layers: LayerReader, hidden: int, *, dropout: float) -> None:
        super().__init__()
        self.layers, self.reads_all_layers = layers, layers.reads_all_layers
        self.width = 2 * POOLED * 2 * hidden
        self.project = nn.Linear(layers.width, hidden)
        self.encode = BiLSTM(hidden, hidden, layers=1, dropout=dropout)
        self.integrate = nn.ModuleList(BiLSTM(6 * hidden, hidden, layers=1, dropout=dropout) for _ in range(2))
        self.score = nn.ModuleList(nn.Linear(2 * hidden, 1) for _ in range(2))
        self.dropout = nn.Dropout(dropout)

    def indices(self, batch: Batch) -> Tensor:
        """The first token of each text [N]; all tokens are read."""
        return batch.cls_positions.clamp(min=0)

    def forward(self, encoding: Encoding, batch: Batch, name: str) -> Tensor:
        """[N, 16 H]."""
        texts, x_TW = TwoTexts.of(batch), self.layers(encoding)
        inputs_TH = torch.relu(self.project(self.dropout(x_TW)))
        encoded = [
            self.encode(inputs_TH[indices_NM], mask_NM.sum(1))
            for indices_NM, mask_NM in zip(texts.indices, texts.mask, strict=True)
        ]
        pooled: list[Tensor] = []
        for side, (integrate, score) in enumerate(zip(self.integrate, self.score, strict=True)):
            own_NMD, other_NMD = encoded[side], encoded[1 - side]
            own_NM, other_NM = texts.mask[side], texts.mask[1 - side]
            context_NMD = _attend(own_NMD, other_NMD, other_NM)
            joined = torch.cat((own_NMD, own_NMD - context_NMD, own_NMD * context_NMD), -1)
            integrated_NMD = integrate(joined, own_NM.sum(1))
            pooled.append(_pool(integrated_NMD, own_NM, score(self.dropout(integrated_NMD))[:, :, 0]))
        return torch.cat(pooled, -1)


def _attend(own_NMD: Tensor, other_NMD: Tensor, other_NM: Tensor) -> Tensor:
    """For each token of a text, the mean of the other text's tokens, weighted by the softmax of dot products."""
    scores_NMM = own_NMD @ other_NMD.masked_fill(~other_NM[:, :, None], 0.0).transpose(1, 2)
    weights_NMM = scores_NMM.masked_fill(~other_NM[:, None], -torch.inf).softmax(-1).to(other_NMD.dtype)
    return weights_NMM @ other_NMD.masked_fill(~other_NM[:, :, None], 0.0)


def _pool(x_NMD: Tensor, mask_NM: Tensor, scores_NM: Tensor) -> Tensor:
    """Maximum, mean, minimum and the mean weighted by the softmax of the scores [N, 4 D]."""
    mask_NM1 = mask_NM[:, :, None]
    x_NMD = x_NMD.masked_fill(~mask_NM1, 0.0)
    weights_NM = scores_NM.masked_fill(~mask_NM, -torch.inf).softmax(-1).to(x_NMD.dtype)
    largest_ND = x_NMD.masked_fill(~mask_NM1, -torch.inf).amax(1)
    smallest_ND = x_NMD.masked_fill(~mask_NM1, torch.inf).amin(1)
    mean_ND = x_NMD.sum(1) / mask_NM1.sum(1)
    return torch.cat((largest_ND, mean_ND, smallest_ND, (weights_NM[:, :, None] * x_NMD).sum(1)), -1)


class MaxoutHead(nn.Module):
    """Three layers of norm, dropout and a linear layer; all units but the outputs are the largest of four."""

    def __init__(self, width: int, hidden: int, outputs: int, *, dropout: float) -> None:
        """`hidden`: that of the network below; its maxout layers have 4 and 2 times as many units."""
        super().__init__()
        widths = [width, 4 * hidden, 2 * hidden]
        # differs from the paper, which does not say what the last layer is: it has no maximum
        sizes = [PIECES * 4 * hidden, PIECES * 2 * hidden, outputs]
        self.norms = nn.ModuleList(MaskedBatchNorm(each) for each in widths)
        self.linears = nn.ModuleList(nn.Linear(each, size) for each, size in zip(widths, sizes, strict=True))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_NW: Tensor, used_N: Tensor) -> Tensor:
        """[N, W], and which of the rows are texts [N] -> logits [N, K]."""
        for number, (norm, linear) in enumerate(zip(self.norms, self.linears, strict=True)):
            if number:
                x_NW = x_NW.view(len(x_NW), -1, PIECES).amax(-1)
            x_NW = linear(self.dropout(norm(x_NW, used_N)))
        return x_NW
