"""Norms of sums for CUDA, as operations that torch can compile; see `norm_kernels` (T, W, D, tiles)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn import norm_kernels as kernels
from bertsmith.nn.dropout import least
from bertsmith.nn.fused_gelu import MULTIPLE, room_to_turn

# the fastest of 37 on an H200 for 768 columns, there and back: a warp that is alone in its program waits for no other
TILES = {"M": 64, "R": 1, "N": 64, "STAGES": 3}
MOST = 768  # columns that a warp has registers for
PROGRAMS = 8  # of so many columns that a processor has registers for


@triton_op("bertsmith::norm_forth", mutates_args=())
def norm_forth(
    x: Tensor, x_norm: list[Tensor], more: Tensor, draws: list[Tensor], weight: Tensor, bias: Tensor,
    epsilon: float, dropped: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The sum [T, D], its mean and 1 / deviation [T], its norm times the scale in eight bits, and that turned [D, W].

    `x_norm`: mean, 1 / deviation, weight and bias where the norm of x is meant; `draws`: see `dropout.draw`.
    """
    total, small = torch.empty_like(more), torch.empty_like(more, dtype=torch.float8_e4m3fn)
    turned = room_to_turn(small)
    mean, rise = (more.new_empty(len(more), dtype=torch.float32) for _ in range(2))
    wrap_triton(kernels.norm_forth)[_grid(more)](
        x, *(x_norm or (mean, rise, weight, bias)), more, *(draws or (mean, rise)), weight, bias,
        total, small, turned, mean, rise, len(more), turned.shape[1], epsilon=epsilon, scale=scale, **_chance(dropped),
        NORMED=bool(x_norm), DROPOUT=bool(draws), **_shape(more),
    )  # fmt: skip
    return total, mean, rise, small, turned


@triton_op("bertsmith::norm_back", mutates_args=())
def norm_back(
    one: Tensor, two: Tensor, total: Tensor, mean: Tensor, rise: Tensor, weight: Tensor, draws: list[Tensor],
    dropped: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of a sum [T, D]; of what was added, times the scale in eight bits; that turned [D, W]; sums.

    `one` and `two`: gradients of the norm, to be added. Sums over parts of T [P, 3, D]: the weight's gradient, the
    bias's, and that of what was added.
    """
    gradient, small = torch.empty_like(total), torch.empty_like(total, dtype=torch.float8_e5m2)
    turned, grid = room_to_turn(small), _grid(total)
    sums = total.new_empty(grid[0], 3, total.shape[1], dtype=torch.float32)
    wrap_triton(kernels.norm_back)[grid](
        one, two, total, mean, rise, weight, *(draws or (mean, rise)),
        gradient, small, turned, sums, len(total), turned.shape[1], scale=scale, **_chance(dropped),
        DROPOUT=bool(draws), **_shape(total),
    )  # fmt: skip
    return gradient, small, turned, sums


def _grid(x: Tensor) -> tuple[int]:
    """As many programs as run at a time, each with a tile or several."""
    return (min(triton.cdiv(len(x), _tiles(x)["M"]), _programs(x)),)


def _programs(x: Tensor) -> int:
    """How many run at a time: twice as many where rows are short."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    return processors * PROGRAMS * (1 if x.shape[1] > MOST // 2 else 2)


def _tiles(x: Tensor) -> dict[str, int]:
    """Those of half as many places where there would be too few for the programs that run at a time."""
    places = TILES["M"]
    few = 4 * triton.cdiv(len(x), places) < 3 * _programs(x)
    return {**TILES, "M": max(places // 2, MULTIPLE) if few else places}


def _chance(dropped: float) -> dict[str, int | float]:
    """The least number that is kept, and what it grows by: see `dropout.drop`."""
    return {"least": least(dropped), "up": 1 / (1 - dropped)}


def _shape(x: Tensor) -> dict[str, int]:
    places, width = x.shape
    left, right = pieces(width)
    tiles = _tiles(x)
    even = places % tiles["M"] == 0 and width % tiles["N"] == 0
    whole, warps = even and left + right == width, 1 if width <= MOST else 2
    return {"D": width, "A": left, "B": right, "EVEN": even, "WHOLE": whole, "num_warps": warps, **tiles}


def pieces(width: int) -> tuple[int, int]:
    """A row in two pieces of a power of two each; else in one that is too wide."""
    left = 1 << (width.bit_length() - 1)
    right = width - left
    return (left, right) if right & (right - 1) == 0 else (2 * left, 0)
