"""Errors of Adagrad's kernel, run on the CPU with triton's interpreter."""

from __future__ import annotations

import torch

from bertsmith.nn.kernels import adagrad

SIZES = {"whole blocks": (4, 8), "partial last block": (7, 5), "less than a block": (3,)}
RATE, EPSILON = 0.3, 1e-3


def errors(*shape: int) -> dict[str, float]:
    """Of weights and sums after an update; changes in a skipped one, whose gradient is not finite."""
    draw = torch.Generator().manual_seed(0)
    weights, gradients = (torch.randn(shape, generator=draw) for _ in range(2))
    sums, divisor = torch.rand(shape, generator=draw), torch.tensor(2.0)
    total = sums.double() + (gradients.double() / 2).square()
    expected = weights.double() - RATE * gradients.double() / 2 / (total.sqrt() + EPSILON)
    found, counted = weights.clone(), sums.clone()
    options = {"rate": torch.tensor(RATE), "divisor": divisor, "epsilon": EPSILON}
    skipped = weights.clone(), sums.clone()
    adagrad.update(*skipped, gradients * torch.inf, skip=torch.tensor(1.0), **options)
    adagrad.update(found, counted, gradients, skip=torch.tensor(0.0), **options)
    return {
        "weights": (found - expected).abs().max().item(),
        "sums": (counted - total).abs().max().item(),
        "skipped": float(not (torch.equal(skipped[0], weights) and torch.equal(skipped[1], sums))),
    }


def all_errors() -> dict[str, dict[str, float]]:
    adagrad.TILES.update(BLOCK=16)
    return {name: errors(*shape) for name, shape in SIZES.items()}
