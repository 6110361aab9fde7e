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
    """x · Φ(x), Φ the normal distribution function; compiled for half precision on CUDA, by `QuickGelu`."""
    if torch.compiler.is_compiling() and x.is_cuda and x.dtype.itemsize == 2:
        y: Tensor = QuickGelu.apply(x)  # type: ignore[no-untyped-call]
        return y
    return F.gelu(x)


def gelu_new(x: Tensor) -> Tensor:
    """The tanh approximation of GELU; it differs from GELU by up to 4.7e-4."""
    return F.gelu(x, approximate="tanh")


class QuickGelu(torch.autograd.Function):
    """GELU with erf to 1.5e-7 (Abramowitz and Stegun 7.1.26): far finer than half precision, and short.

    One exponential serves the function and its derivative: erfc(|x| / √2) = t (a₁ + t (a₂ + …)) e with
    t = 1 / (1 + p |x| / √2) and e = exp(-x² / 2). It falls to 0 on both sides, so no branch on the sign of x is needed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        x32 = x.float()
        erfc, _ = _erfc_and_exp(x32)
        y: Tensor = x32.clamp(min=0) - 0.5 * x32.abs() * erfc
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x32 = x.float()
        erfc, exponential = _erfc_and_exp(x32)
        cdf = torch.where(x32 > 0, 1 - 0.5 * erfc, 0.5 * erfc)
        dx: Tensor = gradients[0].float() * (cdf + 0.3989422804014327 * x32 * exponential)
        return dx.to(x.dtype)


def _erfc_and_exp(x: Tensor) -> tuple[Tensor, Tensor]:
    """erfc(|x| / √2) and exp(-x² / 2)."""
    exponential = torch.exp(-0.5 * x * x)
    t = 1 / (1 + 0.3275911 * 0.7071067811865476 * x.abs())
    polynomial = 1.061405429 * t
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        polynomial = (polynomial + coefficient) * t
    return polynomial * exponential, exponential


ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": gelu,  # with erf: BERT of October 2018
    "gelu_new": gelu_new,  # BERT's code since February 2019
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def get_activation(name: str) -> Activation:
    """The function of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"activation={name} is unknown: expected one of {', '.join(ACTIVATIONS)}{did_you_mean(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
