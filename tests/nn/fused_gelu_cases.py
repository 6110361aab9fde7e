"""Runs the GELU kernels on the CPU by triton's interpreter, in a process of its own, and prints how far off they are.

TRITON_INTERPRET=1 python tests/nn/fused_gelu_cases.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn import fused_gelu

SHAPES = {"whole tiles": (64, 96), "rags": (75, 50), "fewer than a tile": (3, 7)}
SCALE = 8.0


def numbers(shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, back = (torch.randn(shape, generator=draw) * 3 for _ in range(2))
    return x.requires_grad_(), torch.randn(shape[1], generator=draw).requires_grad_(), back


def biased(shape: tuple[int, int]) -> dict[str, float]:
    """GELU of a sum; the bias's gradient comes from the operation alone."""
    x, bias, back = numbers(shape)
    found = fused_gelu.biased_gelu(x + bias.detach(), bias)
    expected = F.gelu((x + bias).double())
    ours = torch.autograd.grad(found, (x, bias), back)
    theirs = torch.autograd.grad(expected, (x, bias), back.double())
    return {
        "there": (found - expected).abs().max().item(),
        "back": (ours[0] - theirs[0]).abs().max().item(),
        "sums": (ours[1] - theirs[1]).abs().max().item(),
    }


def eight(shape: tuple[int, int]) -> dict[str, float]:
    """Which share of the eight bits is not torch's: the interpreter loses what rounding carries over."""
    x, _, back = numbers(shape)
    with torch.no_grad():
        y, small = fused_gelu.gelu_eight(x, SCALE)
        gradient, small_back, sums = fused_gelu.gelu_eight_back(back, x, SCALE)
    pairs = ((small, y * SCALE), (small_back, gradient * SCALE))
    off = [(ours.float() != exact.to(ours.dtype).float()).float().mean().item() for ours, exact in pairs]
    return {"there": off[0], "back": off[1], "sums": (sums.sum(0) - gradient.sum(0)).abs().max().item()}


def found() -> dict[str, dict[str, float]]:
    for forward, backward in zip(fused_gelu.FORWARD, fused_gelu.BACKWARD, strict=True):
        forward.update(N=64)
        backward.update(M=4, N=32, TURNS=2)
    plain = {name: biased(shape) for name, shape in SHAPES.items()}
    return plain | {f"{name}, eight bits": eight(shape) for name, shape in SHAPES.items()}
