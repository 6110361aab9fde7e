"""Products of each row of a sequence with the rows near it, computed in blocks as matrix products.

R rows, a multiple of S; S rows of a block, G blocks, r reach, D width. Row i has S + 2r columns: column c is row
`c - r + i // S * S` of the other sequence, so that the rows from i - r to i + r are always among them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 32  # larger blocks make better use of matrix products, and compute more products that nobody reads


class _BandedProducts(torch.autograd.Function):
    """One batched matrix product, and two in the backward; overlapping blocks are read without a copy."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, y_RD: Tensor, reach: int) -> Tensor:
        y_GMD = _overlapping(y_RD, reach)
        x_GSD = x_RD.unflatten(0, (-1, BLOCK))
        ctx.save_for_backward(x_GSD, y_GMD)
        ctx.reach = reach
        return torch.bmm(x_GSD, y_GMD.transpose(1, 2)).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x_GSD, y_GMD = ctx.saved_tensors
        gradient_GSM = gradient.unflatten(0, (-1, BLOCK))
        x_gradient_RD = torch.bmm(gradient_GSM, y_GMD).flatten(0, 1)
        y_gradient_GMD = torch.bmm(gradient_GSM.transpose(1, 2), x_GSD)
        return x_gradient_RD, _add_overlaps(y_gradient_GMD, ctx.reach), None


def banded_products(x_RD: Tensor, y_RD: Tensor, reach: int) -> Tensor:
    """The product of each row of x with the rows of y in its band [R, S + 2 reach]; rows outside of y are 0."""
    products: Tensor = _BandedProducts.apply(x_RD, y_RD, reach)
    return products


def bands(values_R: Tensor, reach: int, *, filler: int) -> Tensor:
    """One value per row of y, as the columns of the products of each block [G, S + 2 reach]."""
    padded = torch.nn.functional.pad(values_R, (reach, reach), value=filler)
    return padded.unfold(0, BLOCK + 2 * reach, BLOCK)


def distances(reach: int, device: torch.device) -> Tensor:
    """How far the row of each column is from the row itself, in rows [S, S + 2 reach]."""
    columns = torch.arange(-reach, BLOCK + reach, device=device)
    return (columns - torch.arange(BLOCK, device=device)[:, None]).abs()


def _overlapping(y_RD: Tensor, reach: int) -> Tensor:
    """[G, S + 2r, D], a view of the padded rows."""
    padded = torch.nn.functional.pad(y_RD, (0, 0, reach, reach))
    rows, width = y_RD.shape
    return padded.as_strided((rows // BLOCK, BLOCK + 2 * reach, width), (BLOCK * width, width, 1))


def _add_overlaps(blocks_GMD: Tensor, reach: int) -> Tensor:
    """The sum over all blocks that a row is in [R, D]."""
    blocks, _, width = blocks_GMD.shape
    total = blocks_GMD.new_zeros((blocks * BLOCK + 2 * reach, width))
    total[: blocks * BLOCK].view(blocks, BLOCK, width).copy_(blocks_GMD[:, :BLOCK])
    for first in range(0, 2 * reach, BLOCK):  # columns beyond the block belong to the rows of the blocks after it
        part = blocks_GMD[:, BLOCK + first : min(2 * BLOCK + first, BLOCK + 2 * reach)]
        begin, size = BLOCK + first, part.shape[1]
        whole = min(blocks, (len(total) - begin) // BLOCK)
        total[begin : begin + whole * BLOCK].view(whole, BLOCK, width)[:, :size] += part[:whole]
        for block in range(whole, blocks):  # the last ones, whose rows do not fill a block
            start = begin + block * BLOCK
            total[start : start + size] += part[block]
    return total[reach : reach + blocks * BLOCK]
