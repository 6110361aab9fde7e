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
    def forward(ctx: Any, x_RD: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(x_RD, *others)
        return torch.cat([products(x_RD, other_ED) for other_ED in others], 1)

    @staticmethod
    def backward(ctx: Any, gradient_RC: Tensor) -> tuple[Tensor, ...]:
        x_RD, *others = ctx.saved_tensors
        sizes = [BLOCK + len(other_ED) - len(x_RD) for other_ED in others]
        x_gradient_RD, gradients = torch.zeros_like(x_RD), [torch.empty_like(other_ED) for other_ED in others]
        parts = zip(torch.split(gradient_RC, sizes, 1), others, gradients, strict=True)
        for gradient_RM, other_ED, gradient_ED in parts:
            product_gradients(gradient_RM, x_RD, other_ED, out=(x_gradient_RD, gradient_ED))
        return x_gradient_RD, *gradients


def banded_products(x_RD: Tensor, y_ED: Tensor, z_ED: Tensor) -> Tensor:
    """The products of each row of x with the rows of y, then of z, in its band [R, 2S + 2r + 2r'].

    y and z have r and r' rows before the row of x's first one, and as many after that of its last one.
    """
    tensors, device = [x_RD, y_ED, z_ED], x_RD.device.type
    if torch.is_autocast_enabled(device):  # which a backward pass does not see
        tensors = [each.to(torch.get_autocast_dtype(device)) for each in tensors]
    result: Tensor = _BandedProducts.apply(*tensors)  # type: ignore[no-untyped-call]
    return result


def products(x_RD: Tensor, y_ED: Tensor) -> Tensor:
    """The products of each row of x with the rows of y in its band [R, S + 2r], without a gradient."""
    return torch.bmm(_blocks(x_RD), _bands(y_ED, len(x_RD))).flatten(0, 1)


def product_gradients(gradient_RM: Tensor, x_RD: Tensor, y_ED: Tensor, *, out: tuple[Tensor, Tensor]) -> None:
    """Adds the gradient of x to the first tensor of `out`, and writes that of y to the second."""
    gradient_GSM = _blocks(gradient_RM)
    _blocks(out[0]).baddbmm_(gradient_GSM, _bands(y_ED, len(x_RD)).transpose(1, 2))
    _add_overlaps(torch.bmm(gradient_GSM.transpose(1, 2), _blocks(x_RD)), out[1])


def offsets(reach: int, device: torch.device) -> Tensor:
    """How far after the row itself the row of each column is [S, S + 2 reach]."""
    columns = torch.arange(-reach, BLOCK + reach, device=device)
    return columns - torch.arange(BLOCK, device=device)[:, None]


def _blocks(rows_RD: Tensor) -> Tensor:
    """[G, S, D]"""
    return rows_RD.view(-1, BLOCK, rows_RD.shape[1])


def _bands(y_ED: Tensor, rows: int) -> Tensor:
    """The rows of the bands of all blocks [G, D, S + 2r], a view in which they overlap."""
    return y_ED.unfold(0, BLOCK + len(y_ED) - rows, BLOCK)


def _add_overlaps(blocks_GMD: Tensor, total: Tensor) -> None:
    """Writes the sum over all blocks that a row is in [R + 2r, D]."""
    blocks, size, width = blocks_GMD.shape
    rows = blocks * BLOCK + size - BLOCK
    total[: blocks * BLOCK].view(blocks, BLOCK, width).copy_(blocks_GMD[:, :BLOCK])
    total[blocks * BLOCK :] = 0
    for first in range(BLOCK, size, BLOCK):  # columns of the rows of later blocks
        part_GMD = blocks_GMD[:, first : first + BLOCK]
        length = part_GMD.shape[1]
        whole = min(blocks, (rows - first) // BLOCK)
        total[first : first + whole * BLOCK].view(whole, BLOCK, width)[:, :length] += part_GMD[:whole]
        for block in range(whole, blocks):  # the last ones, whose rows do not fill a block
            total[first + block * BLOCK :][:length] += part_GMD[block]
