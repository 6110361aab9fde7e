"""Vectors of texts and tokens from an encoding: mixes of layers, pooling over texts, a recurrent network over texts.

T flat tokens, R selected tokens, N texts, M tokens of the longest text, D width, W output width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError
from bertsmith.nn.recurrent import BiLSTM
from bertsmith.nn.scalar_mix import ScalarMix
from bertsmith.types import Batch, Encoding

LayerChoice = Literal[
    "top",
    "second_to_last",
    "embeddings",
    "embeddings_and_top",
    "last_four_sum",
    "last_four_concat",
    "all_sum",
    "all_concat",
    "mix",
]
Pooling = Literal["auto", "pooler", "cls", "last", "mean", "concat", "biattention"]
Recurrent = Literal["none", "bilstm"]
# The rows of P-BERT Table 7, ELMo's mix, and all layers concatenated: which layers are read, embeddings first.
SLICES: dict[LayerChoice, slice] = {
    "top": slice(-1, None),
    "second_to_last": slice(-2, -1),
    "embeddings": slice(0, 1),
    "last_four_sum": slice(-4, None),
    "last_four_concat": slice(-4, None),
    "all_sum": slice(1, None),
    "all_concat": slice(0, None),
    "mix": slice(0, None),
}
SUMS = ("last_four_sum", "all_sum", "mix")
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


def check_layers(layers: LayerChoice) -> None:
    """Raises a ConfigError where it is not a known choice of layers."""
    if layers not in get_args(LayerChoice):
        raise ConfigError(f"layers={layers} must be one of {', '.join(get_args(LayerChoice))}")


def layer_numbers(layers: LayerChoice, count: int) -> tuple[int, ...]:
    """The layers that are read of an encoder with this many, 0 for the embeddings."""
    if layers.startswith("last_four") and count < 4:
        raise ConfigError(f"layers={layers}: the encoder has only {count} layers")
    if layers == "second_to_last" and count < 2:
        raise ConfigError(f"layers={layers}: the encoder has only {count} layer")
    if layers == "embeddings_and_top":  # CoVe's [word ; context] (McCann et al. 2017, §4)
        return 0, count
    return tuple(range(count + 1)[SLICES[layers]])


@dataclass(frozen=True)
class TextTokens:
    """The tokens of each text of a batch, one text per row, whatever rows of the batch they are packed in."""

    indices: Tensor  # [N, M] int64 flat token indices; arbitrary beyond a text
    mask: Tensor  # [N, M] bool: the token belongs to the text

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The texts of a batch; an empty slot repeats the first text."""
        length, document_T = batch.input_ids.shape[1], batch.document_ids.flatten()
        first_N1 = batch.cls_positions.clamp(min=0)[:, None]
        offset_M = torch.arange(batch.max_seqlen, device=batch.input_ids.device)
        index_NM = first_N1 + offset_M
        in_row_NM = offset_M < length - first_N1 % length
        index_NM = torch.where(in_row_NM, index_NM, first_N1)
        return cls(index_NM, in_row_NM & (document_T[index_NM] == document_T[first_N1]))

    @classmethod
    def compact(cls, batch: Batch) -> Self:
        """Without empty slots, and as wide as the longest text; waits for the device to know the sizes.

        For a batch without texts, one token of padding, because recurrent layers need an input.
        """
        every, used_N = cls.of(batch), batch.cls_positions >= 0
        indices, mask = every.indices[used_N], every.mask[used_N]
        if not len(indices):
            return cls(indices.new_zeros(1, 1), mask.new_ones(1, 1))
        longest = int(mask.sum(1).max())
        return cls(indices[:, :longest], mask[:, :longest])

    def lengths(self) -> Tensor:
        """The number of tokens of each text [N]."""
        return self.mask.sum(1)

    def last(self) -> Tensor:
        """The flat index of each text's last token [N]."""
        return self.indices[:, 0] + self.lengths() - 1

    def mean(self, x_TD: Tensor) -> Tensor:
        """The mean over the tokens of each text [N, D]."""
        mask_NM1 = self.mask[:, :, None]
        sum_ND = (x_TD[self.indices] * mask_NM1).sum(1, dtype=torch.promote_types(x_TD.dtype, torch.float32))
        mean_ND: Tensor = (sum_ND / mask_NM1.sum(1)).to(x_TD.dtype)
        return mean_ND

    def max(self, x_TD: Tensor) -> Tensor:
        """The maximum over the tokens of each text [N, D]."""
        return x_TD[self.indices].masked_fill(~self.mask[:, :, None], -torch.inf).amax(1)

    def flatten(self, x_NMD: Tensor, size: int) -> Tensor:
        """Vectors by text as vectors of flat tokens [T = size, D]; zeros outside texts."""
        n, m, width = x_NMD.shape
        index_NM = torch.where(self.mask, self.indices, size)
        # an empty slot repeats the first text's tokens: the text itself, which has the lower number, wins
        owner_T = torch.full((size + 1,), n * m, device=x_NMD.device)
        number_NM = torch.arange(n * m, device=x_NMD.device)
        owner_T = owner_T.scatter_reduce(0, index_NM.flatten(), number_NM, "amin")[:size]
        padded = torch.cat((x_NMD.reshape(n * m, width), x_NMD.new_zeros(1, width)))
        return padded[owner_T]


def run_recurrent(network: BiLSTM | None, x_TW: Tensor, batch: Batch) -> Tensor:
    """The network's output at every flat token [T, W], each text on its own; its input without a network."""
    if network is None:
        return x_TW
    texts = TextTokens.of(batch)
    return texts.flatten(network(x_TW[texts.indices], texts.lengths()), x_TW.shape[0])


class LayerConcatenation(nn.Module):
    """One vector per token: a layer, or several concatenated."""

    def __init__(self, numbers: Sequence[int], *, width: int, last: int) -> None:
        """`last`: the number of the encoder's last layer, which every encoding has."""
        super().__init__()
        self.numbers, self.width = tuple(numbers), width
        self.reads_all_layers = self.numbers != (last,)

    def forward(self, encoding: Encoding) -> Tensor:
        """[T, W] of an encoding with layers; of the last layer alone, what the encoding has [R, D]."""
        if not self.reads_all_layers:
            return encoding.last_hidden
        return torch.cat([encoding.layers[number] for number in self.numbers], -1)


class LayerSum(ScalarMix):
    """One vector per token: the learned weighted sum of layers."""

    reads_all_layers = True

    def __init__(self, numbers: Sequence[int], *, width: int, layer_norm: bool = False, l2: float = 0.0) -> None:
        super().__init__(numbers, layer_norm=layer_norm, l2=l2)
        self.width = width

    def forward(self, encoding: Encoding) -> Tensor:  # type: ignore[override]
        """[T, D] of an encoding with layers."""
        return super().forward([encoding.layers[number] for number in self.numbers])


LayerReader = LayerConcatenation | LayerSum


class TextPooler(nn.Module):
    """One vector per text.

    pooler: the encoder's pooler over the first token. cls, last: the hidden state of the first or last token. mean: the
    mean over all tokens. concat: the token read last, the maximum and the mean, concatenated (P-ULMFiT §3.3). With a
    recurrent network, all but `pooler` read its output.
    """

    def __init__(
        self, pooling: Pooling, layers: LayerReader, recurrent: BiLSTM | None, *, backward: bool = False
    ) -> None:
        """`backward`: the encoder reads the first token last."""
        super().__init__()
        self.pooling, self.layers, self.recurrent, self.backward = pooling, layers, recurrent, backward
        width = layers.width if recurrent is None else recurrent.width
        self.width = width * (3 if pooling == "concat" else 1)
        self.reads_pooled = pooling == "pooler"
        self.reads_all_layers = layers.reads_all_layers
        self.reads_all_tokens = self.reads_all_layers or recurrent is not None or pooling in ("mean", "concat")

    def indices(self, batch: Batch) -> Tensor:
        """The flat index of the token that is read of each text [N]."""
        return TextTokens.of(batch).last() if self.pooling == "last" else batch.cls_positions.clamp(min=0)

    def forward(self, encoding: Encoding, batch: Batch, name: str) -> Tensor:
        """[N, W]; `name` is that of the objective in `encoding.selections`."""
        if self.reads_pooled:
            assert encoding.pooled is not None, "the model pools where an objective reads the pooled vector"
            return encoding.pooled
        if not self.reads_all_tokens:
            return encoding.at(name)
        x_TW = run_recurrent(self.recurrent, self.layers(encoding), batch)
        if self.pooling in ("cls", "last"):
            return x_TW[self.indices(batch)]
        texts = TextTokens.of(batch)
        if self.pooling == "mean":
            return texts.mean(x_TW)
        end_N = batch.cls_positions.clamp(min=0) if self.backward else texts.last()
        return torch.cat((x_TW[end_N], texts.max(x_TW), texts.mean(x_TW)), -1)
