"""Runs the GELU kernels on the CPU by triton's interpreter, in a process of its own, and prints how far off they are.

TRITON_INTERPRET=1 python tests/nn/elementwise_cases.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.kernels import elementwise

SHAPES = {"whole tiles": (64, 96), "rags": (75, 50), "fewer than a tile": (3, 7)}
SCALE = 8.0
METHOD = {False: "none", True: "tanh"}


def numbers(shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, back = (torch.randn(shape, generator=draw) * 3 for _ in range(2))
    return x.requires_grad_(), torch.randn(shape[1], generator=draw).requires_grad_(), back


def biased(shape: tuple[int, int], tanh: bool) -> dict[str, float]:
    """GELU of a sum; the bias's gradient comes from the operation alone."""
    x, bias, back = numbers(shape)
    found = elementwise.biased_gelu(x + bias.detach(), bias, tanh)
    expected = F.gelu((x + bias).double(), approximate=METHOD[tanh])
    ours = torch.autograd.grad(found, (x, bias), back)
    theirs = torch.autograd.grad(expected, (x, bias), back.double())
    return {
        "there": (found - expected).abs().max().item(),
        "back": (ours[0] - theirs[0]).abs().max().item(),
        "sums": (ours[1] - theirs[1]).abs().max().item(),
    }


def eight(shape: tuple[int, int], tanh: bool) -> dict[str, float]:
    """Which share of the eight bits is not torch's: the interpreter loses what rounding carries over."""
    x, _, back = numbers(shape)
    exact = x.detach().double().requires_grad_()
    y = F.gelu(exact, approximate=METHOD[tanh])
    (gradient,) = torch.autograd.grad(y, exact, back.double())
    with torch.no_grad():
        small, turned = elementwise.gelu_fp8(x, SCALE, tanh)
        small_back, turned_back, sums = elementwise.gelu_backward_fp8(back, x, SCALE, tanh)
        again = elementwise.transpose_fp8(small)
        cast, cast_turned = elementwise.cast_fp8(back, SCALE)
    pairs = ((small, y * SCALE), (small_back, gradient * SCALE), (cast, back * SCALE))
    off = [(ours.float() != theirs.float().to(ours.dtype).float()).float().mean().item() for ours, theirs in pairs]
    return {
        "there": off[0],
        "back": off[1],
        "sums": (sums.sum(0) - gradient.sum(0)).abs().max().item(),
        "cast": off[2],
        "turned": max(
            wrongly_turned(*pair)
            for pair in ((small, turned), (small, again), (small_back, turned_back), (cast, cast_turned))
        ),
    }


def wrongly_turned(small: Tensor, turned: Tensor) -> float:
    """The share of bits that are elsewhere; what is turned goes on with zeros to a multiple of 16."""
    places, width = small.shape
    expected = torch.zeros(width, -(-places // 16) * 16, dtype=torch.uint8)
    expected[:, :places] = small.view(torch.uint8).t()
    return (turned.view(torch.uint8) != expected).float().mean().item() if turned.shape == expected.shape else 1.0


def found() -> dict[str, dict[str, float]]:
    elementwise.GELU_TILES.update(BLOCK_N=64)
    elementwise.GELU_BACKWARD_TILES.update(BLOCK_M=4, BLOCK_N=32, REPEATS=2)
    for tiles in (
        elementwise.GELU_FP8_TILES,
        elementwise.GELU_BACKWARD_FP8_TILES,
        elementwise.TRANSPOSE_TILES,
        elementwise.CAST_TILES,
    ):
        tiles.update(BLOCK_M=16, BLOCK_N=32)
    results = {}
    for tanh, by in ((False, ""), (True, ", by tanh")):
        results |= {f"{name}{by}": biased(shape, tanh) for name, shape in SHAPES.items()}
        results |= {f"{name}, eight bits{by}": eight(shape, tanh) for name, shape in SHAPES.items()}
    return results
