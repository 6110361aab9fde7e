"""Products of each row of a sequence with the rows near it, computed in blocks as matrix products.

R rows, a multiple of S; S rows of a block, G blocks, r reach, D width. Row i has S + 2r columns: column c is row
`c - r + i // S * S` of the other sequence, so that the rows from i - r to i + r are always among them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 32  # larger blocks make better use of matrix products, and compute more products that are never read


class _BandedProducts(torch.autograd.Function):
    """Batched matrix products; overlapping blocks are read without a copy."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, y_RD: Tensor, z_RD: Tensor, reaches: tuple[int, int]) -> Tensor:
        others = [_overlapping(rows_RD, reach) for rows_RD, reach in zip((y_RD, z_RD), reaches, strict=True)]
        x_GSD = x_RD.reshape(-1, BLOCK, x_RD.shape[1])
        ctx.save_for_backward(x_GSD, *others)
        ctx.reaches = reaches
        return torch.cat([torch.bmm(x_GSD, other_GMD.transpose(1, 2)) for other_GMD in others], 2).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_GSD, *others = ctx.saved_tensors
        parts = torch.split(gradient.reshape(-1, BLOCK, gradient.shape[1]), [other.shape[1] for other in others], 2)
        x_gradient_GSD = torch.bmm(parts[0], others[0])
        x_gradient_GSD.baddbmm_(parts[1], others[1])
        transposed = [torch.bmm(part_GSM.transpose(1, 2), x_GSD) for part_GSM in parts]
        gradients = [_add_overlaps(part, reach) for part, reach in zip(transposed, ctx.reaches, strict=True)]
        return x_gradient_GSD.flatten(0, 1), *gradients, None


def banded_products(x_RD: Tensor, y_RD: Tensor, z_RD: Tensor, *, reaches: tuple[int, int]) -> Tensor:
    """The products of each row of x with the rows of y, then of z, in its band [R, 2S + 2r + 2r'].

    Rows outside of y and z are 0.
    """
    products: Tensor = _BandedProducts.apply(x_RD, y_RD, z_RD, reaches)  # type: ignore[no-untyped-call]
    return products


def offsets(reach: int, device: torch.device) -> Tensor:
    """How far after the row itself the row of each column is [S, S + 2 reach]."""
    columns = torch.arange(-reach, BLOCK + reach, device=device)
    return columns - torch.arange(BLOCK, device=device)[:, None]


def _overlapping(y_RD: Tensor, reach: int) -> Tensor:
    """[G, S + 2r, D], a view of the padded rows."""
    rows, width = y_RD.shape
    padded = y_RD.new_empty((rows + 2 * reach, width))  # `pad` would fill all of it with zeros first
    padded[:reach] = 0
    padded[rows + reach :] = 0
    padded[reach : rows + reach] = y_RD
    return padded.as_strided((rows // BLOCK, BLOCK + 2 * reach, width), (BLOCK * width, width, 1))


def _add_overlaps(blocks_GMD: Tensor, reach: int) -> Tensor:
    """The sum over all blocks that a row is in [R, D]."""
    blocks, _, width = blocks_GMD.shape
    total = blocks_GMD.new_empty((blocks * BLOCK + 2 * reach, width))
    total[: blocks * BLOCK].view(blocks, BLOCK, width).copy_(blocks_GMD[:, :BLOCK])
    total[blocks * BLOCK :] = 0
    for first in range(BLOCK, BLOCK + 2 * reach, BLOCK):  # columns of the rows of later blocks
        part_GMD = blocks_GMD[:, first : first + BLOCK]
        size = part_GMD.shape[1]
        whole = min(blocks, (blocks * BLOCK + 2 * reach - first) // BLOCK)
        total[first : first + whole * BLOCK].view(whole, BLOCK, width)[:, :size] += part_GMD[:whole]
        for block in range(whole, blocks):  # the last ones, whose rows do not fill a block
            total[first + block * BLOCK :][:size] += part_GMD[block]
    return total[reach : reach + blocks * BLOCK]
