"""Vectors of words from their characters: convolutions, maximum over time, highway layers (Kim et al. 2016; ELMo).

N words, C characters of a word, E width of a character, K filters of all widths together, P width of the vectors.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import get_activation
from bertsmith.types import Batch

TABLE = 261  # characters: see tokenizers.spelling
WORD_BEGIN, WORD_END, PADDING = 258, 259, 260
CHARACTER_RANGE, FILTER_RANGE, CARRY_BIAS = 1.0, 0.05, -2.0  # of new weights


class _Lookup(torch.autograd.Function):
    """Rows of a small table [V, E]. The gradient is a product with one-hot vectors.

    CUDA kernels that sum gradients by row are slow here: most characters are padding, and so belong to one row.
    """

    @staticmethod
    def forward(ctx: Any, table_VE: Tensor, ids_NC: Tensor) -> Tensor:
        ctx.save_for_backward(ids_NC)
        ctx.rows = len(table_VE)
        return F.embedding(ids_NC, table_VE)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (ids_NC,), (grad_NCE,) = ctx.saved_tensors, gradients
        rows_V1 = torch.arange(ctx.rows, device=ids_NC.device)[:, None]
        one_hot_CVN = (ids_NC.t()[:, None] == rows_V1).to(grad_NCE.dtype)
        return torch.bmm(one_hot_CVN, grad_NCE.transpose(0, 1)).sum(0), None


class Highway(nn.Module):
    """g · f(W x + b) + (1 - g) · x with g = sigmoid(V x + c)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width, 2 * width)  # g above, then the argument of f

    def forward(self, x_NK: Tensor) -> Tensor:
        carry_NK, transform_NK = self.gates(x_NK).chunk(2, -1)
        return torch.lerp(x_NK, F.relu(transform_NK), carry_NK.sigmoid())


class CharacterCNN(nn.Module):
    """Convolutions over all characters of a word and its padding; the maximum over time, and then the activation."""

    def __init__(
        self, filters: Sequence[tuple[int, int]], projection: int, *, width: int, highway: int, activation: str
    ) -> None:
        """`filters`: (characters, number) of each kind; `width`: of a character; `highway`: number of such layers."""
        super().__init__()
        self.embeddings = nn.Embedding(TABLE, width)
        # linear layers over [E, characters] windows: products are faster than convolutions of so few channels
        self.filters = nn.ModuleList(nn.Linear(width * reach, count) for reach, count in filters)
        self.reaches = [reach for reach, _ in filters]
        size = sum(count for _, count in filters)
        self.highway = nn.ModuleList(Highway(size) for _ in range(highway))
        self.project = nn.Linear(size, projection)
        self.activation = get_activation(activation)
        self.init_weights(activation)

    @torch.no_grad()
    def init_weights(self, activation: str) -> None:
        """New weights as in ELMo's code."""
        nn.init.uniform_(self.embeddings.weight, -CHARACTER_RANGE, CHARACTER_RANGE)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=1 / math.sqrt(part.in_features))
                nn.init.zeros_(part.bias)
        for part in self._each() if activation == "relu" else []:
            nn.init.uniform_(part.weight, -FILTER_RANGE, FILTER_RANGE)
        for layer in self.highway:
            if isinstance(layer, Highway):
                layer.gates.bias[: layer.gates.out_features // 2] = CARRY_BIAS

    def _each(self) -> list[nn.Linear]:
        return [part for part in self.filters if isinstance(part, nn.Linear)]

    def forward(self, characters_NC: Tensor) -> Tensor:
        """[N, C] -> [N, P]."""
        table, ids_NC = self.embeddings.weight, characters_NC.long()
        x_NCE: Tensor = (
            _Lookup.apply(table, ids_NC)  # type: ignore[no-untyped-call]
            if ids_NC.is_cuda
            else F.embedding(ids_NC, table)
        )
        device = x_NCE.device.type
        if torch.is_autocast_enabled(device):
            x_NCE = x_NCE.to(torch.get_autocast_dtype(device))
        parts = []
        for layer, reach in zip(self._each(), self.reaches, strict=True):
            windows = x_NCE.unfold(1, reach, 1).flatten(2)  # [N, C - reach + 1, E * reach]
            parts.append((F.linear(windows, layer.weight).amax(1) + layer.bias).to(x_NCE.dtype))
        x_NK = self.activation(torch.cat(parts, -1))
        for highway in self.highway:
            x_NK = highway(x_NK)
        x_NP: Tensor = self.project(x_NK)
        return x_NP


def distinct_words(batch: Batch, *, most: int, vocabulary: Tensor | None) -> tuple[Tensor, Tensor]:
    """The characters of the distinct words of a batch [N, most], and which of them each token is [T].

    They are those of the batch, however it has them; where only ids are known, those of the tokens of the `vocabulary`
    [V, C], or without it the bytes of the ids.
    """
    if batch.spellings is not None and batch.spelling_ids is not None:
        return fit_words(batch.spellings, most), batch.spelling_ids.flatten()
    if batch.characters is not None:
        cut = fit_words(batch.characters.flatten(0, 1), most)
        words_NC, index_T = torch.unique(cut, dim=0, return_inverse=True)
        warn_of_equal_words(batch.characters.flatten(0, 1), len(words_NC), most=most)
        return words_NC, index_T
    ids, index_T = torch.unique(batch.input_ids.flatten(), return_inverse=True)
    words_NC = id_characters(ids) if vocabulary is None else vocabulary[ids]
    return fit_words(words_NC, most), index_T


def fit_words(characters_NC: Tensor, most: int) -> Tensor:
    """The characters in `most` columns: of longer words the first bytes and the end mark."""
    width = characters_NC.shape[1]
    if width <= most:
        return characters_NC if width == most else F.pad(characters_NC, (0, most - width), value=PADDING)
    cut = characters_NC[:, :most].clone()
    cut[:, -1] = torch.where(cut[:, -1] == PADDING, PADDING, WORD_END)
    return cut


def id_characters(ids_N: Tensor) -> Tensor:
    """Ids as words of four bytes [N, 6]."""
    shifts = torch.arange(0, 32, 8, device=ids_N.device)
    bytes_N4 = (ids_N[:, None] >> shifts) & 0xFF
    return F.pad(F.pad(bytes_N4, (1, 0), value=WORD_BEGIN), (0, 1), value=WORD_END).to(torch.int16)


def warn_of_equal_words(characters_TC: Tensor, distinct: int, *, most: int) -> None:
    """Different words that are equal as far as they are read have equal vectors: that must not pass in silence.

    `distinct`: how many different words are left of these when they are cut to `most` characters.
    """
    if characters_TC.shape[-1] <= most:
        return
    different = len(torch.unique(characters_TC, dim=0))
    if different > distinct:
        warnings.warn(
            f"words that are equal in their first {most - 2} bytes get the same vector, since this encoder reads no "
            f"more of a word: {different - distinct} here",
            stacklevel=4,
        )
