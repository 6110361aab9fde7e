"""Activation functions by the names that model folders use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError

Activation = Callable[[Tensor], Tensor]


def gelu(x: Tensor) -> Tensor:
    """x times the share of a normal distribution below x; compiled for half precision on CUDA, by `QuickGelu`."""
    if torch.compiler.is_compiling() and x.is_cuda and x.dtype.itemsize == 2:
        quick: Tensor = QuickGelu.apply(x)  # type: ignore[no-untyped-call]
        return quick
    return F.gelu(x)


def gelu_new(x: Tensor) -> Tensor:
    """GELU by a tanh; up to 4.7e-4 away."""
    return F.gelu(x, approximate="tanh")


class QuickGelu(torch.autograd.Function):
    """GELU with erf to 1.5e-7 (Abramowitz and Stegun 7.1.26): far finer than half precision, and short.

    One exponential serves the function and its derivative. What stands above x, erfc(|x| / √2) = t (a₁ + t (a₂ + …)) e,
    with t = 1 / (1 + p |x| / √2) and e = exp(-x² / 2), falls to 0 on both sides: no sign is asked for.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        wide = x.float()
        above, _ = _tails(wide)
        found: Tensor = wide.clamp(min=0) - 0.5 * wide.abs() * above
        return found.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        wide = x.float()
        above, falling = _tails(wide)
        share = torch.where(wide > 0, 1 - 0.5 * above, 0.5 * above)
        found: Tensor = gradients[0].float() * (share + 0.3989422804014327 * wide * falling)
        return found.to(x.dtype)


def _tails(x: Tensor) -> tuple[Tensor, Tensor]:
    """erfc(|x| / √2) and exp(-x² / 2)."""
    falling = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.3275911 * 0.7071067811865476 * x.abs())
    found = 1.061405429 * t
    for factor in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        found = (found + factor) * t
    return found * falling, falling


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": gelu,  # with erf: BERT of October 2018
    "gelu_new": gelu_new,  # BERT's code since February 2019
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Activation:
    """The function of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"activation={name} is unknown: {', '.join(ACTIVATIONS)} are known{did_you_mean(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
