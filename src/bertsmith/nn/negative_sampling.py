"""The loss of negative sampling: weighted sums of -log s(x_i · y_o) and of -log s(-x_i · z_n), by banded products.

R rows, E rows of y or z (R and those that the bands of the first and of the last row reach), V vocabulary, D width,
C columns: those of y, whose label is 1, then those of z, whose label is 0 (see `nn.banded`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertsmith.nn import row_threads
from bertsmith.nn.banded import BLOCK, product_gradients, products


class _LogisticLoss(torch.autograd.Function):
    """The forward computes the gradient."""

    @staticmethod
    def forward(ctx: Any, logits_RC: Tensor, weight_RC: Tensor, columns: int) -> Tensor:
        sizes = [columns, logits_RC.shape[1] - columns]
        logits, weights = torch.split(logits_RC, sizes, 1), torch.split(weight_RC, sizes, 1)
        y_total, y_gradient = _logistic(logits[0], weights[0], 1)
        z_total, z_gradient = _logistic(logits[1], weights[1], 0)
        ctx.save_for_backward(torch.cat([y_gradient, z_gradient], 1))
        return y_total + z_total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (gradient_RC,) = ctx.saved_tensors
        return gradient_RC * gradient, None, None


def logistic_loss(logits_RC: Tensor, weight_RC: Tensor, *, columns: int) -> Tensor:
    """The weighted sum [] of logistic losses; the label is 1 in the first columns and 0 in the rest."""
    total: Tensor = _LogisticLoss.apply(logits_RC, weight_RC, columns)  # type: ignore[no-untyped-call]
    return total


def _logistic(logits: Tensor, weight: Tensor, label: int) -> tuple[Tensor, Tensor]:
    """The weighted sum [] of the logistic losses of one label, and its gradient."""
    correct = (logits if label else -logits).sigmoid()  # the probability of the label
    gradient = (1 - correct).mul_(weight)
    # torch's logsigmoid is ten times slower; differs where the probability is too small for a normal number
    total = correct.clamp_(min=torch.finfo(logits.dtype).tiny).log_().mul_(weight).sum().neg_()
    return total, gradient.neg_() if label else gradient


@dataclass(frozen=True)
class _Band:
    """The words that rows are multiplied with: those around them, or noise words."""

    ids_E: Tensor
    label: int
    columns: slice  # of their products
    start: int  # of its entries in the sparse gradient
    halo: int  # rows that bands reach before the first row and after the last one

    def rows(self, first: int, last: int) -> tuple[Tensor, slice]:
        """The words of a part of the rows, and their entries in the gradient; bands of neighbouring parts overlap."""
        begin = self.start + first + first // row_threads.ROWS * self.halo
        return self.ids_E[first : last + self.halo], slice(begin, begin + last - first + self.halo)


class _SparseLoss(torch.autograd.Function):
    """In parts of the rows, which look up the vectors of their words: neither these nor the products are kept."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, table_VD: Tensor, weight_RC: Tensor, *ids: Tensor) -> Tensor:
        bands = _bands(len(x_RD), ids)
        totals, gradient_RC = x_RD.new_zeros(_parts(len(x_RD)), 2), torch.empty_like(weight_RC)

        def part(first: int, last: int) -> None:
            for band in bands:
                some_E, _ = band.rows(first, last)
                logits = products(x_RD[first:last], table_VD.index_select(0, some_E))
                total, gradient = _logistic(logits, weight_RC[first:last, band.columns], band.label)
                totals[first // row_threads.ROWS, band.label] = total
                gradient_RC[first:last, band.columns] = gradient

        row_threads.for_parts(part, len(x_RD), x_RD.device)
        ctx.save_for_backward(x_RD, table_VD, gradient_RC, *ids)
        return totals.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_RD, table_VD, gradient_RC, *ids = ctx.saved_tensors
        x_gradient_RD, bands = torch.zeros_like(x_RD), _bands(len(x_RD), ids)
        entries = sum(len(x_RD) + _parts(len(x_RD)) * band.halo for band in bands)
        rows, values = ids[0].new_empty(entries), x_RD.new_empty(entries, x_RD.shape[1])

        def part(first: int, last: int) -> None:
            for band in bands:
                some_E, entry = band.rows(first, last)
                scaled = gradient_RC[first:last, band.columns] * gradient
                out = x_gradient_RD[first:last], values[entry]
                product_gradients(scaled, x_RD[first:last], table_VD.index_select(0, some_E), out=out)
                rows[entry] = some_E

        row_threads.for_parts(part, len(x_RD), x_RD.device)
        table = torch.sparse_coo_tensor(rows[None], values, table_VD.shape, check_invariants=False)
        return x_gradient_RD, table, None, *(None for _ in ids)


def sparse_loss(x_RD: Tensor, table_VD: Tensor, weight_RC: Tensor, context_E: Tensor, noise_E: Tensor) -> Tensor:
    """The same sum on the CPU, of the products of x with rows of the table, whose gradient is sparse."""
    total: Tensor = _SparseLoss.apply(x_RD, table_VD, weight_RC, context_E, noise_E)  # type: ignore[no-untyped-call]
    return total


def _bands(rows: int, ids: Sequence[Tensor]) -> tuple[_Band, _Band]:
    context_E, noise_E = ids
    halos = len(context_E) - rows, len(noise_E) - rows
    columns = BLOCK + halos[0]
    return (
        _Band(context_E, 1, slice(columns), 0, halos[0]),
        _Band(noise_E, 0, slice(columns, None), rows + _parts(rows) * halos[0], halos[1]),
    )


def _parts(rows: int) -> int:
    return -(-rows // row_threads.ROWS)
