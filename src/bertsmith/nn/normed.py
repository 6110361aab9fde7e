"""What a norm gives, not written in full where only products in eight bits and the next norm read it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Normed(NamedTuple):
    """The norm of a sum. T places, W the next multiple of 16, D width.

    Gradients of the norm come back on two ways, which its kernel adds: of the sum, through what is added to the norm
    next, and of `way`, which holds nothing else, through the product that takes it.
    """

    total_TD: Tensor  # the sum
    way_TD: Tensor
    small_TD: Tensor  # the norm in eight bits
    turned_DW: Tensor  # and that turned
    mean_T: Tensor
    rise_T: Tensor  # 1 / deviation
    weight_D: Tensor
    bias_D: Tensor

    @property
    def norm(self) -> list[Tensor]:
        """What makes the norm of the sum."""
        return [self.mean_T, self.rise_T, self.weight_D.detach(), self.bias_D.detach()]


def written(total_TD: Tensor, mean_T: Tensor, rise_T: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """The norm of a sum [T, D] in float32."""
    return (total_TD.float() - mean_T[:, None]) * rise_T[:, None] * weight_D + bias_D


class _Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_TD: Tensor, *norm: Tensor) -> Tensor:
        return written(total_TD, *norm).to(total_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], *(None,) * 4  # of the norm, as its kernel wants it


def in_full(x: Tensor | Normed) -> Tensor:
    """[T, D], for whoever cannot do with less."""
    if isinstance(x, Tensor):
        return x
    found_TD: Tensor = _Written.apply(x.total_TD, *x.norm)  # type: ignore[no-untyped-call]
    return found_TD
