"""Dropout whose chance costs one product of integers where steps are compiled for CUDA. T places, D width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

WHOLE = 2**32
SALT = 0x5BF03635  # sets columns apart from places


class Dropout(nn.Dropout):
    """Each number is dropped with that probability in training, and the others grow; see `drop`."""

    def forward(self, input: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        if self.training and 0 < self.p < 1 and torch.compiler.is_compiling() and input.is_cuda and input.ndim == 2:
            return drop(input, self.p)
        return super().forward(input)


def drop(x_TD: Tensor, probability: float) -> Tensor:
    """Dropout by the product of two random numbers, of the place and of the column, both made of one draw.

    torch draws for each number by ten rounds of Philox, which takes three times as long as the norm behind it.
    """
    return dropped(x_TD, draw(x_TD.shape, x_TD.device), probability)


def dropped(x_TD: Tensor, draws: list[Tensor], probability: float) -> Tensor:
    """See `drop`, by what was drawn."""
    of_place_T, of_column_D = draws
    kept_TD = of_place_T[:, None] * of_column_D >= least(probability)
    return torch.where(kept_TD, x_TD * (1 / (1 - probability)), 0.0)


def draw(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Odd random numbers of places [T] and of columns [D], or of two other things, from torch's generator."""
    drawn = torch.randint(-(2**31), 2**31 - 1, (1,), dtype=torch.int32, device=device)
    numbers = (torch.arange(size, dtype=torch.int32, device=device) for size in sizes)
    return [mixed(some ^ (drawn + salt)) | 1 for some, salt in zip(numbers, (0, SALT), strict=True)]


def least(probability: float) -> int:
    """Of their products, the least that is kept."""
    return round(probability * WHOLE) - WHOLE // 2


def mixed(x: Tensor) -> Tensor:
    """int32 numbers of which every bit depends on every bit of those given."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - WHOLE)):
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, shift: int) -> Tensor:
    """To the right, with zeros coming in."""
    return (x >> shift) & ((1 << (32 - shift)) - 1)
