"""GELU between two matrices for CUDA, as operations that torch can compile; see `gelu_kernels`. T places, F width.

What has its bias from the matrix before gives that bias its gradient here, where its column sums cost no pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn import gelu_kernels as kernels

# the fastest of 8 and 14 on an H200 for a width of 3,072, without eight bits and with them
FORWARD = ({"N": 4096, "num_warps": 8}, {"N": 1024, "num_warps": 4})
BACKWARD = ({"M": 8, "N": 128, "TURNS": 8, "num_warps": 2}, {"M": 4, "N": 256, "TURNS": 16, "num_warps": 4})


def _gelu(x: Tensor, y: Tensor, small: Tensor, scale: float, most: float) -> None:
    eight = small is not y
    tiles = FORWARD[eight]
    wrap_triton(kernels.gelu)[(triton.cdiv(x.numel(), tiles["N"]),)](
        x, y, small, x.numel(), scale=scale, most=most, EIGHT=eight, **tiles
    )


def _gelu_back(back: Tensor, x: Tensor, gradient: Tensor, small: Tensor, scale: float, most: float) -> Tensor:
    places, width = x.shape
    eight = small is not gradient
    tiles = BACKWARD[eight]
    rows = tiles["M"] * tiles["TURNS"]
    sums = x.new_empty(triton.cdiv(places, rows), width, dtype=torch.float32)
    wrap_triton(kernels.gelu_back)[(len(sums) * triton.cdiv(width, tiles["N"]),)](
        back, x, gradient, small, sums, places, scale=scale, most=most, F=width, EIGHT=eight,
        EVEN=places % rows == 0 and width % tiles["N"] == 0, **tiles,
    )  # fmt: skip
    return sums


@triton_op("bertsmith::gelu", mutates_args=())
def _plain(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    _gelu(x, y, y, 1.0, 1.0)
    return y


@triton_op("bertsmith::gelu_back", mutates_args=())
def _plain_back(back: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    gradient = torch.empty_like(x)
    return gradient, _gelu_back(back, x, gradient, gradient, 1.0, 1.0)


@triton_op("bertsmith::gelu_eight", mutates_args=())
def gelu_eight(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """GELU [T, F], and that times the scale in eight bits."""
    y, small = torch.empty_like(x), torch.empty_like(x, dtype=torch.float8_e4m3fn)
    _gelu(x, y, small, scale, torch.finfo(small.dtype).max)
    return y, small


@triton_op("bertsmith::gelu_eight_back", mutates_args=())
def gelu_eight_back(back: Tensor, x: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient [T, F], that times the scale in eight bits, and its column sums over parts of the places [P, F]."""
    gradient, small = torch.empty_like(x), torch.empty_like(x, dtype=torch.float8_e5m2)
    return gradient, small, _gelu_back(back, x, gradient, small, scale, torch.finfo(small.dtype).max)


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        ctx.save_for_backward(x_TF)
        ctx.kind = bias_F.dtype
        found: Tensor = _plain(x_TF)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gradient_TF, sums_PF = _plain_back(gradients[0].contiguous(), *ctx.saved_tensors)
        return gradient_TF, sums_PF.sum(0).to(ctx.kind)


def biased_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """GELU of `x`, to which the bias was added, detached: it gets its gradient here."""
    found_TF: Tensor = _BiasedGelu.apply(x_TF, bias_F)  # type: ignore[no-untyped-call]
    return found_TF
