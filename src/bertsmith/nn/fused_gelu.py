"""GELU between two matrices for CUDA, as operations that torch can compile; see `gelu_kernels` (T, F, W).

What has its bias from the matrix before gives that bias its gradient here, where its column sums cost no pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn import gelu_kernels as kernels

# the fastest of 8 and 14 on an H200 for a width of 3,072
FORWARD = {"N": 4096, "num_warps": 8}
BACKWARD = {"M": 8, "N": 128, "TURNS": 8, "num_warps": 2}
# in eight bits, where tiles are also written turned
FORWARD_EIGHT = {"M": 64, "N": 128, "num_warps": 4}
BACKWARD_EIGHT = {"M": 64, "N": 128, "TURNS": 1, "num_warps": 4}
TURN = {"M": 128, "N": 128, "num_warps": 4}
CAST = {"M": 64, "N": 64, "num_warps": 4}
MULTIPLE = 16  # of places in what is turned


@triton_op("bertsmith::gelu", mutates_args=())
def _plain(x: Tensor, tanh: bool) -> Tensor:
    y = torch.empty_like(x)
    wrap_triton(kernels.gelu)[(triton.cdiv(x.numel(), FORWARD["N"]),)](x, y, x.numel(), TANH=tanh, **FORWARD)
    return y


@triton_op("bertsmith::gelu_back", mutates_args=())
def _plain_back(back: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    gradient, sums = torch.empty_like(x), _sums(x, BACKWARD)
    _go_back_to(gradient, gradient, sums, back, x, 1.0, tanh, BACKWARD)
    return gradient, sums


@triton_op("bertsmith::gelu_eight", mutates_args=())
def gelu_eight(x: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor]:
    """GELU times the scale in eight bits [T, F], and that turned [F, W]."""
    return _cast(wrap_triton(kernels.cast_eight), x, scale, FORWARD_EIGHT, GELU=True, TANH=tanh)


def cast_eight(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Numbers times the scale in eight bits [T, F], and that turned [F, W]; nothing for the compiler to look into."""
    return _cast(kernels.cast_eight, x, scale, CAST, GELU=False, TANH=False)


def _cast(kernel: Any, x: Tensor, scale: float, tiles: dict[str, int], **how: bool) -> tuple[Tensor, Tensor]:
    small = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    turned = room_to_turn(small)
    kernel[_grid(x, tiles)](
        x, small, turned, x.shape[0], turned.shape[1], scale=scale, F=x.shape[1], EVEN=_even(x, tiles), **how, **tiles
    )
    return small, turned


@triton_op("bertsmith::gelu_eight_back", mutates_args=())
def gelu_eight_back(back: Tensor, x: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient times the scale in eight bits [T, F], that turned [F, W], and its sums over parts of T [P, F]."""
    small = torch.empty_like(x, dtype=torch.float8_e5m2)
    turned, sums = room_to_turn(small), _sums(x, BACKWARD_EIGHT)
    _go_back_to(small, turned, sums, back, x, scale, tanh, BACKWARD_EIGHT)
    return small, turned, sums


def _go_back_to(
    gradient: Tensor, turned: Tensor, sums: Tensor, back: Tensor, x: Tensor, scale: float, tanh: bool,
    tiles: dict[str, int],
) -> None:  # fmt: skip
    wrap_triton(kernels.gelu_back)[_grid(x, tiles)](
        back, x, gradient, turned, sums, x.shape[0], turned.shape[1], scale=scale, F=x.shape[1],
        EVEN=_even(x, tiles), EIGHT=gradient.dtype.itemsize == 1, TANH=tanh, **tiles,
    )  # fmt: skip


@triton_op("bertsmith::turn", mutates_args=())
def turn(small: Tensor) -> Tensor:
    """Numbers in eight bits [T, F], turned [F, W]."""
    turned = room_to_turn(small)
    wrap_triton(kernels.turn)[_grid(small, TURN)](
        small, turned, small.shape[0], turned.shape[1], F=small.shape[1], EVEN=_even(small, TURN), **TURN
    )
    return turned


def room_to_turn(small: Tensor) -> Tensor:
    """Where numbers in eight bits [T, F] may lie turned [F, W]."""
    places, width = small.shape
    return small.new_empty(width, triton.cdiv(places, MULTIPLE) * MULTIPLE)


def _sums(x: Tensor, tiles: dict[str, int]) -> Tensor:
    return x.new_empty(triton.cdiv(x.shape[0], tiles["M"] * tiles["TURNS"]), x.shape[1], dtype=torch.float32)


def _grid(x: Tensor, tiles: dict[str, int]) -> tuple[int]:
    return (triton.cdiv(x.shape[0], tiles["M"] * tiles.get("TURNS", 1)) * triton.cdiv(x.shape[1], tiles["N"]),)


def _even(x: Tensor, tiles: dict[str, int]) -> bool:
    return x.shape[0] % (tiles["M"] * tiles.get("TURNS", 1)) == 0 and x.shape[1] % tiles["N"] == 0


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor, tanh: bool) -> Tensor:
        ctx.save_for_backward(x_TF)
        ctx.kind, ctx.tanh = bias_F.dtype, tanh
        found: Tensor = _plain(x_TF, tanh)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient_TF, sums_PF = _plain_back(gradients[0].contiguous(), *ctx.saved_tensors, ctx.tanh)
        return gradient_TF, sums_PF.sum(0).to(ctx.kind), None


def biased_gelu(x_TF: Tensor, bias_F: Tensor, tanh: bool = False) -> Tensor:
    """GELU of `x`, or that by tanh, to which the bias was added, detached: it gets its gradient here."""
    found_TF: Tensor = _BiasedGelu.apply(x_TF, bias_F, tanh)  # type: ignore[no-untyped-call]
    return found_TF
