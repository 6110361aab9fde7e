"""Runs the kernels of norms on the CPU by triton's interpreter, in a process of its own: how far off they are.

TRITON_INTERPRET=1 python tests/nn/norm_cases.py
"""

from __future__ import annotations

from typing import Any

import torch
from elementwise_cases import wrongly_turned
from torch import Tensor

from bertsmith.nn.dropout import draw
from bertsmith.nn.fp8 import ops
from bertsmith.nn.kernels import norm

SHAPES = {"whole tiles": (64, 48), "rags": (75, 50), "fewer than a tile": (3, 16)}
WAYS = {"": (0.0, False), ", normed": (0.0, True), ", with dropout, normed": (0.3, True)}
EPSILON = 1e-5


def numbers(shape: tuple[int, int], *, normed: bool) -> tuple[Tensor, list[Tensor], Tensor, Tensor, Tensor]:
    """What goes in, what makes its norm, what is added, weight and bias."""
    places, width = shape
    seed = torch.Generator().manual_seed(0)
    x, more = (torch.randn(shape, generator=seed) * 2 for _ in range(2))
    weights = [torch.randn(width, generator=seed) + 1 for _ in range(4)]
    mean, rise = torch.randn(places, generator=seed), torch.rand(places, generator=seed) + 0.5
    return x, [mean, rise, *weights[:2]] if normed else [], more, weights[2], weights[3]


def off(shape: tuple[int, int], dropped: float, *, normed: bool) -> dict[str, float]:
    """From what torch computes, which `test_eight_norm` holds to LayerNorm."""
    x, x_norm, more, weight, bias = numbers(shape, normed=normed)
    torch.manual_seed(1)
    draws = draw(more.shape, more.device) if dropped else []
    given: tuple[Any, ...] = x, x_norm, more, draws, weight, bias, EPSILON, dropped
    ours, theirs = norm.add_norm(*given, ops.INPUT_SCALE), ops.add_norm(*given)
    one, two = torch.randn(shape) / shape[0], torch.randn(shape) / shape[0]
    come: tuple[Any, ...] = one, two, *theirs[:3], weight, draws, dropped
    *back, sums = norm.add_norm_backward(*come, ops.GRADIENT_SCALE * shape[0])
    right = ops.add_norm_backward(*come)
    return {
        "there": max(apart(*pair) for pair in zip(ours[:3], theirs[:3], strict=True)),
        "bits": bits(ours[3], theirs[3]),
        "turned": wrongly_turned(ours[3], ours[4]),
        "back": apart(back[0], right[0]) * shape[0],
        "bits back": bits(back[1], right[1]),
        "turned back": wrongly_turned(back[1], back[2]),
        "sums": apart(sums.sum(0), right[3]),
    }


def apart(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()


def bits(ours: Tensor, theirs: Tensor) -> float:
    """The share that is not the same: the interpreter loses what rounding carries over."""
    return (ours.float() != theirs.float()).float().mean().item()


def found() -> dict[str, dict[str, float]]:
    norm.TILES.update(BLOCK_M=32, ROWS=2, BLOCK_N=16)
    norm.PROGRAMS = 1  # some have several tiles, and where there is one it is halved
    return {
        f"{shape}{way}": off(size, dropped, normed=normed)
        for shape, size in SHAPES.items()
        for way, (dropped, normed) in WAYS.items()
    }
