"""Dropout from a cheap integer hash where training steps are compiled for CUDA, and dropout of recurrent networks.

T tokens, D width, N texts, M tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

RANGE = 2**32
SALT = 0x5BF03635  # makes the random numbers of columns differ from those of tokens


class Dropout(nn.Dropout):
    """`nn.Dropout`, by `drop` where it is compiled for CUDA."""

    def forward(self, input: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        if self.training and 0 < self.p < 1 and torch.compiler.is_compiling() and input.is_cuda and input.ndim == 2:
            return drop(input, self.p)
        return super().forward(input)


def drop(x_TD: Tensor, probability: float) -> Tensor:
    """Dropout by the product of two random numbers, one for the token and one for the column.

    torch draws each number by ten rounds of Philox, which takes three times as long as the layer norm that follows.
    """
    return drop_by(x_TD, draw(x_TD.shape, x_TD.device), probability)


def drop_by(x_TD: Tensor, random: list[Tensor], probability: float) -> Tensor:
    """Dropout by the random numbers of `draw`."""
    token_T, column_D = random
    kept_TD = token_T[:, None] * column_D >= keep_threshold(probability)
    return torch.where(kept_TD, x_TD * (1 / (1 - probability)), 0.0)


def drop_variational(x_NMD: Tensor, probability: float, *, training: bool) -> Tensor:
    """Drops the same elements of all tokens of a text (Gal and Ghahramani 2016)."""
    if not training or probability == 0:
        return x_NMD
    kept_N1D = torch.empty_like(x_NMD[:, :1]).bernoulli_(1 - probability).div_(1 - probability)
    return x_NMD * kept_N1D


def draw(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Odd random int32 numbers of two dimensions, such as tokens [T] and columns [D], from torch's generator."""
    seed = torch.randint(-(2**31), 2**31 - 1, (1,), dtype=torch.int32, device=device)
    counters = (torch.arange(size, dtype=torch.int32, device=device) for size in sizes)
    return [hash_int32(counter ^ (seed + salt)) | 1 for counter, salt in zip(counters, (0, SALT), strict=True)]


def draw_dropout(tokens: int, device: torch.device, dropout: float) -> Tensor:
    """Random numbers of queries and keys [2, T] for dropout on attention probabilities; without dropout a dummy [1]."""
    if dropout > 0:
        return torch.stack(draw((tokens, tokens), device))
    return torch.zeros(1, dtype=torch.int32, device=device)


def keep_threshold(probability: float) -> int:
    """The smallest int32 product of two random numbers that is kept."""
    return round(probability * RANGE) - RANGE // 2


def hash_int32(x: Tensor) -> Tensor:
    """int32 numbers of which every bit depends on every bit of the input."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - RANGE)):
        x = (x ^ _logical_shift(x, shift)) * factor
    return x ^ _logical_shift(x, 16)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)
