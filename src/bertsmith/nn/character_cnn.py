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

from bertsmith.errors import EqualWordsWarning
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


class _Windows(torch.autograd.Function):
    """All windows of `kernel_size` characters [N, C, E] -> [N, C - kernel_size + 1, kernel_size * E].

    The gradient is a sum of slices: `unfold` has a kernel for it that is many times slower.
    """

    @staticmethod
    def forward(ctx: Any, x_NCE: Tensor, kernel_size: int) -> Tensor:
        ctx.kernel_size = kernel_size
        return x_NCE.unfold(1, kernel_size, 1).transpose(2, 3).flatten(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (grad_NWR,), kernel_size = gradients, ctx.kernel_size
        count, windows, _ = grad_NWR.shape
        parts = grad_NWR.reshape(count, windows, kernel_size, -1).unbind(2)
        grad_NCE = grad_NWR.new_zeros(count, windows + kernel_size - 1, parts[0].shape[-1])
        for first, part_NWE in enumerate(parts):
            grad_NCE[:, first : first + windows] += part_NWE
        return grad_NCE, None


class Highway(nn.Module):
    """g · f(W x + b) + (1 - g) · x with g = sigmoid(V x + c)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width, 2 * width)  # g above, then the argument of f

    def forward(self, x_NK: Tensor) -> Tensor:
        carry_NK, transform_NK = self.gates(x_NK).chunk(2, -1)
        return torch.lerp(x_NK, F.relu(transform_NK), carry_NK.sigmoid())


class CharacterCNN(nn.Module):
    """Convolutions over all characters of a word and its padding; the maximum over time, and then the activation.

    In the published code, words are padded to 50 characters. Since windows of padding alone are equal, one of them
    is enough: `padding` columns after the longest word.
    """

    def __init__(
        self, filters: Sequence[tuple[int, int]], projection: int, *, width: int, highway: int, activation: str
    ) -> None:
        """`filters`: (characters, number) of each kind; `width`: of a character; `highway`: number of such layers."""
        super().__init__()
        self.embeddings = nn.Embedding(TABLE, width)
        # weights [filters, E * characters]: products of windows are faster than convolutions of so few channels
        self.filters = nn.ModuleList(nn.Linear(width * kernel_size, count) for kernel_size, count in filters)
        self.kernel_sizes = [kernel_size for kernel_size, _ in filters]
        self.padding = max(self.kernel_sizes)
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
        for layer, kernel_size in zip(self._each(), self.kernel_sizes, strict=True):
            windows: Tensor = _Windows.apply(x_NCE, kernel_size)  # type: ignore[no-untyped-call]
            weight = layer.weight.view(len(layer.weight), -1, kernel_size)
            weight = weight.transpose(1, 2).flatten(1)  # [filters, kernel_size * E]
            # not amax, which divides gradients among equal windows: that takes several passes over all outputs
            parts.append((F.linear(windows, weight).max(1).values + layer.bias).to(x_NCE.dtype))
        x_NK = self.activation(torch.cat(parts, -1))
        for highway in self.highway:
            x_NK = highway(x_NK)
        x_NP: Tensor = self.project(x_NK)
        return x_NP


def distinct_words(
    batch: Batch, *, max_characters: int, padding: int = 0, vocabulary: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The characters of the distinct words of a batch [N, C], and which of them each token is [T].

    Words are cut after `max_characters` characters; `padding` columns are added as far as `max_characters` allows.
    A batch has either a table of distinct spellings or the characters of every token. For a batch that has ids only,
    the characters come from the `vocabulary` [V, C], or without it from the bytes of the ids.
    """
    if batch.spellings is not None and batch.spelling_ids is not None:
        return fit_words(batch.spellings, max_characters, padding), batch.spelling_ids.flatten()
    if batch.characters is not None:
        cut = fit_words(batch.characters.flatten(0, 1), max_characters, padding)
        words_NC, index_T = torch.unique(cut, dim=0, return_inverse=True)
        warn_of_equal_words(batch.characters.flatten(0, 1), len(words_NC), max_characters=max_characters)
        return words_NC, index_T
    ids, index_T = torch.unique(batch.input_ids.flatten(), return_inverse=True)
    words_NC = id_characters(ids) if vocabulary is None else vocabulary[ids]
    return fit_words(words_NC, max_characters, padding), index_T


def fit_words(characters_NC: Tensor, max_characters: int, padding: int = 0) -> Tensor:
    """The characters and `padding` columns of padding, together at most `max_characters` columns.

    Longer words keep their first bytes and the end mark.
    """
    width = characters_NC.shape[1]
    if width <= max_characters:
        added = min(padding, max_characters - width)
        return F.pad(characters_NC, (0, added), value=PADDING) if added else characters_NC
    cut = characters_NC[:, :max_characters].clone()
    cut[:, -1] = torch.where(cut[:, -1] == PADDING, PADDING, WORD_END)
    return cut


def id_characters(ids_N: Tensor) -> Tensor:
    """Ids as words of four bytes [N, 6]."""
    shifts = torch.arange(0, 32, 8, device=ids_N.device)
    bytes_N4 = (ids_N[:, None] >> shifts) & 0xFF
    return F.pad(F.pad(bytes_N4, (1, 0), value=WORD_BEGIN), (0, 1), value=WORD_END).to(torch.int16)


def warn_of_equal_words(characters_TC: Tensor, distinct: int, *, max_characters: int) -> None:
    """Warns where different words get equal vectors, because they are equal in the part that is read.

    `distinct`: the number of different words after cutting them to `max_characters` characters.
    """
    if characters_TC.shape[-1] <= max_characters:
        return
    different = len(torch.unique(characters_TC, dim=0))
    if different > distinct:
        warnings.warn(
            f"words that are equal in their first {max_characters - 2} bytes get the same vector, since this encoder "
            f"reads no more of a word: {different - distinct} here",
            EqualWordsWarning,
            stacklevel=4,
        )
