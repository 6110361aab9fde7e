"""Errors of the add-and-norm kernels, run on the CPU with triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
from elementwise_cases import transpose_errors
from torch import Tensor

from bertsmith.nn.dropout import draw
from bertsmith.nn.fp8 import ops
from bertsmith.nn.kernels import norm

SHAPES = {"whole tiles": (64, 48), "partial tiles": (75, 50), "fewer than a tile": (3, 16)}
VARIANTS = {"": (0.0, False), ", normed": (0.0, True), ", with dropout, normed": (0.3, True)}
EPS = 1e-5


def random_inputs(shape: tuple[int, int], *, normed: bool) -> tuple[Tensor, list[Tensor], Tensor, Tensor, Tensor]:
    """x, its norm, y, weight and bias."""
    tokens, width = shape
    seed = torch.Generator().manual_seed(0)
    x, y = (torch.randn(shape, generator=seed) * 2 for _ in range(2))
    weights = [torch.randn(width, generator=seed) + 1 for _ in range(4)]
    mean, rstd = torch.randn(tokens, generator=seed), torch.rand(tokens, generator=seed) + 0.5
    return x, [mean, rstd, *weights[:2]] if normed else [], y, weights[2], weights[3]


def errors(shape: tuple[int, int], dropout: float, *, normed: bool) -> dict[str, float]:
    """Differences from the torch implementation, which `test_fp8_norm` compares with LayerNorm."""
    x, x_norm, y, weight, bias = random_inputs(shape, normed=normed)
    torch.manual_seed(1)
    random = draw(y.shape, y.device) if dropout else []
    args: tuple[Any, ...] = x, x_norm, y, random, weight, bias, EPS, dropout
    actual, reference = norm.add_norm(*args, ops.INPUT_SCALE), ops.add_norm(*args)
    one, two = torch.randn(shape) / shape[0], torch.randn(shape) / shape[0]
    backward_args: tuple[Any, ...] = one, two, *reference[:3], weight, random, dropout
    *gradients, sums = norm.add_norm_backward(*backward_args, ops.GRADIENT_SCALE * shape[0])
    expected = ops.add_norm_backward(*backward_args)
    return {
        "forward": max(largest_difference(*pair) for pair in zip(actual[:3], reference[:3], strict=True)),
        "fp8 output": differing_share(actual[3], reference[3]),
        "transposed": transpose_errors(actual[3], actual[4]),
        "backward": largest_difference(gradients[0], expected[0]) * shape[0],
        "fp8 gradient": differing_share(gradients[1], expected[1]),
        "transposed gradient": transpose_errors(gradients[1], gradients[2]),
        "sums": largest_difference(sums.sum(0), expected[3]),
    }


def largest_difference(actual: Tensor, reference: Tensor) -> float:
    return (actual - reference).abs().max().item()


def differing_share(actual: Tensor, reference: Tensor) -> float:
    """Share of FP8 values that differ: the interpreter loses carries of rounding."""
    return (actual.float() != reference.float()).float().mean().item()


def all_errors() -> dict[str, dict[str, float]]:
    norm.TILES.update(BLOCK_M=32, ROWS=8, BLOCK_N=16)
    norm.PROGRAMS = 1  # so that programs have several tiles, and a single tile is halved
    return {
        f"{shape}{variant}": errors(size, dropout, normed=normed)
        for shape, size in SHAPES.items()
        for variant, (dropout, normed) in VARIANTS.items()
    }
