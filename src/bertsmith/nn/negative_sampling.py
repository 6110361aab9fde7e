"""The loss of negative sampling: weighted sums of -log s(x_i · y_o) and of -log s(-x_i · z_n), by banded products.

R rows, E rows of y or z (R and those that the bands of the first and of the last row reach), V vocabulary, D width,
C columns: those of y, whose label is 1, then those of z, whose label is 0 (see `nn.banded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
class Targets:
    """The context and noise words whose vectors some rows are multiplied with, and the weights of the products."""

    context_E: Tensor
    noise_E: Tensor
    context_weight_RC: Tensor
    noise_weight_RC: Tensor


@dataclass(frozen=True)
class _Part:
    """What the backward pass needs of a part of the rows."""

    rows: slice
    total: Tensor  # [] the loss
    ids_E: Tensor  # context, then noise words; adjacent parts share some
    sizes: list[int]  # how many of each
    gradients: tuple[Tensor, Tensor]  # of the products with context and with noise words


class _SparseLoss(torch.autograd.Function):
    """Computed in parts of the rows; neither the word vectors that a part looks up nor the products are kept."""

    @staticmethod
    def forward(ctx: Any, x_RD: Tensor, table_VD: Tensor, targets: Callable[[int, int], Targets]) -> Tensor:
        def part(first: int, last: int) -> _Part:
            some = targets(first, last)
            ids_E = torch.cat([some.context_E, some.noise_E])
            sizes = [len(some.context_E), len(some.noise_E)]
            context_ED, noise_ED = torch.split(table_VD.index_select(0, ids_E), sizes)
            total, gradient_RC = _logistic(products(x_RD[first:last], context_ED), some.context_weight_RC, 1)
            other, other_RC = _logistic(products(x_RD[first:last], noise_ED), some.noise_weight_RC, 0)
            return _Part(slice(first, last), total + other, ids_E, sizes, (gradient_RC, other_RC))

        calls = [partial(part, *each) for each in row_threads.parts(len(x_RD), x_RD.device, multiple=BLOCK)]
        ctx.parts = row_threads.run(calls, x_RD.device)
        ctx.save_for_backward(x_RD, table_VD)
        return torch.stack([each.total for each in ctx.parts]).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x_RD, table_VD = ctx.saved_tensors
        rows = torch.cat([part.ids_E for part in ctx.parts])
        x_gradient_RD, values = torch.empty_like(x_RD), x_RD.new_empty(len(rows), x_RD.shape[1])

        def work(part: _Part, values_ED: Tensor) -> None:
            some_RD = x_gradient_RD[part.rows].zero_()
            bands = zip(part.gradients, torch.split(table_VD.index_select(0, part.ids_E), part.sizes), strict=True)
            for (part_RC, some_ED), out_ED in zip(bands, torch.split(values_ED, part.sizes), strict=True):
                product_gradients(part_RC * gradient, x_RD[part.rows], some_ED, out=(some_RD, out_ED))

        entries = torch.split(values, [len(part.ids_E) for part in ctx.parts])
        row_threads.run([partial(work, *each) for each in zip(ctx.parts, entries, strict=True)], x_RD.device)
        table = torch.sparse_coo_tensor(rows[None], values, table_VD.shape, check_invariants=False)
        return x_gradient_RD, table, None


def sparse_loss(x_RD: Tensor, table_VD: Tensor, targets: Callable[[int, int], Targets]) -> Tensor:
    """The same sum on the CPU, of the products of x with rows of the table, whose gradient is sparse.

    `targets(first, last)` of a part of the rows is called in a thread.
    """
    total: Tensor = _SparseLoss.apply(x_RD, table_VD, targets)  # type: ignore[no-untyped-call]
    return total
