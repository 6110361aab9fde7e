"""Errors of the elementwise kernels, run on the CPU with triton's interpreter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.kernels import elementwise

SHAPES = {"whole tiles": (64, 96), "partial tiles": (75, 50), "fewer than a tile": (3, 7)}
SCALE = 8.0
METHOD = {False: "none", True: "tanh"}


def random_inputs(shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator) * 3 for _ in range(2))
    return x.requires_grad_(), torch.randn(shape[1], generator=generator).requires_grad_(), dy


def gelu_errors(shape: tuple[int, int], tanh: bool) -> dict[str, float]:
    """Errors of GELU after a bias, and of the gradients."""
    x, bias, dy = random_inputs(shape)
    results = elementwise.biased_gelu(x + bias.detach(), bias, tanh)
    expected = F.gelu((x + bias).double(), approximate=METHOD[tanh])
    actual = torch.autograd.grad(results, (x, bias), dy)
    reference = torch.autograd.grad(expected, (x, bias), dy.double())
    return {
        "forward": (results - expected).abs().max().item(),
        "backward": (actual[0] - reference[0]).abs().max().item(),
        "sums": (actual[1] - reference[1]).abs().max().item(),
    }


def fp8_errors(shape: tuple[int, int], tanh: bool) -> dict[str, float]:
    """Share of FP8 values that differ from torch's: the interpreter loses carries of rounding."""
    x, _, dy = random_inputs(shape)
    exact = x.detach().double().requires_grad_()
    y = F.gelu(exact, approximate=METHOD[tanh])
    (gradient,) = torch.autograd.grad(y, exact, dy.double())
    with torch.no_grad():
        quantized, transposed = elementwise.gelu_fp8(x, SCALE, tanh)
        dx8, dx8_t, sums = elementwise.gelu_backward_fp8(dy, x, SCALE, tanh)
        transposed_again = elementwise.transpose_fp8(quantized)
        cast, cast_t = elementwise.cast_fp8(dy, SCALE)
    pairs = ((quantized, y * SCALE), (dx8, gradient * SCALE), (cast, dy * SCALE))
    errors = [
        (actual.float() != reference.float().to(actual.dtype).float()).float().mean().item()
        for actual, reference in pairs
    ]
    return {
        "forward": errors[0],
        "backward": errors[1],
        "sums": (sums.sum(0) - gradient.sum(0)).abs().max().item(),
        "cast": errors[2],
        "transposed": max(
            transpose_errors(*pair)
            for pair in ((quantized, transposed), (quantized, transposed_again), (dx8, dx8_t), (cast, cast_t))
        ),
    }


def transpose_errors(quantized: Tensor, transposed: Tensor) -> float:
    """Share of wrong bytes of a transpose, which is padded with zeros to a multiple of 16."""
    tokens, width = quantized.shape
    expected = torch.zeros(width, -(-tokens // 16) * 16, dtype=torch.uint8)
    expected[:, :tokens] = quantized.view(torch.uint8).t()
    return (
        (transposed.view(torch.uint8) != expected).float().mean().item() if transposed.shape == expected.shape else 1.0
    )


def all_errors() -> dict[str, dict[str, float]]:
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
    for tanh, by in ((False, ""), (True, ", tanh")):
        results |= {f"{name}{by}": gelu_errors(shape, tanh) for name, shape in SHAPES.items()}
        results |= {f"{name}, FP8{by}": fp8_errors(shape, tanh) for name, shape in SHAPES.items()}
    return results
