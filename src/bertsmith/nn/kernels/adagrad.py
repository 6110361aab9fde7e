"""Adagrad's update in one pass over weights, sums and gradients: a Triton kernel and the function that calls it."""

import triton
import triton.language as tl
from torch import Tensor

TILES = {"BLOCK": 1024, "num_warps": 4}


@triton.jit
def adagrad_kernel(weights, sums, gradients, rate, divisor, skip, size, epsilon, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < tl.where(tl.load(skip) > 0, 0, size)
    gradient = tl.load(gradients + offsets, mask=mask, other=0.0) / tl.load(divisor)
    total = tl.load(sums + offsets, mask=mask, other=1.0) + gradient * gradient
    weight = tl.load(weights + offsets, mask=mask, other=0.0)
    tl.store(sums + offsets, total, mask=mask)
    tl.store(weights + offsets, weight - gradient * tl.load(rate) / (tl.sqrt(total) + epsilon), mask=mask)


def update(
    weights: Tensor, sums: Tensor, gradients: Tensor, *, rate: Tensor, divisor: Tensor, skip: Tensor, epsilon: float
) -> None:
    """Updates sums of squares and weights in place with `gradients / divisor`, unless `skip` [] is 1."""
    assert weights.is_contiguous()
    assert sums.is_contiguous()
    size = weights.numel()
    if size:
        adagrad_kernel[(triton.cdiv(size, TILES["BLOCK"]),)](
            weights, sums, gradients.contiguous(), rate, divisor, skip, size, epsilon, **TILES
        )
