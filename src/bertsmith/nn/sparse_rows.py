"""Gradients of embedding tables that hold only the rows that a batch has read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.row_threads import for_parts, parts, run

# torch warns of its default once in every process, even though all calls here pass check_invariants
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")


def sum_rows(gradients: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The same sparse gradients [V, D] with each row once, in ascending order, and norms [] of their parts.

    The sums have a fixed order.
    """
    summed: list[Tensor] = []
    calls: list[partial[Tensor]] = []
    for gradient in gradients:
        entries_T, values_TD = gradient._indices()[0], gradient._values()
        ascending_T, order_T = _stable_sort(entries_T)
        rows_U, counts_U = torch.unique_consecutive(ascending_T, return_counts=True)
        starts_U = counts_U.cumsum(0) - counts_U
        sums_UD = values_TD.new_empty(len(rows_U), *values_TD.shape[1:])
        each = partial(_sum_part, sums_UD, values_TD, order_T, starts_U)
        calls += [partial(each, *part) for part in parts(len(rows_U), gradient.device)]
        size = gradient.shape
        summed += [torch.sparse_coo_tensor(rows_U[None], sums_UD, size, is_coalesced=True, check_invariants=False)]
    return summed, run(calls, gradients[0].device) if gradients else []


def _stable_sort(rows_T: Tensor) -> tuple[Tensor, Tensor]:
    """The sorted rows and their order."""
    if rows_T.device.type != "cpu":
        return torch.sort(rows_T, stable=True)
    numbers = (rows_T << 32) + torch.arange(len(rows_T))
    numbers.numpy().sort()  # ten times faster than torch's stable sort
    return numbers >> 32, numbers & (1 << 32) - 1


def _sum_part(sums_UD: Tensor, values_TD: Tensor, order_T: Tensor, starts_U: Tensor, first: int, last: int) -> Tensor:
    """Writes the sums of some rows, and returns their norm []."""
    # for whole tensors, without synchronising with the device
    start, end = int(starts_U[first]) if first else 0, int(starts_U[last]) if last < len(starts_U) else len(order_T)
    some_UD = F.embedding_bag(order_T[start:end], values_TD, starts_U[first:last] - start, mode="sum")
    sums_UD[first:last] = some_UD
    norm: Tensor = torch.linalg.vector_norm(some_UD)
    return norm


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table_VD: Tensor, ids_R: Tensor) -> Tensor:
        ctx.save_for_backward(ids_R)
        ctx.shape = table_VD.shape
        vectors_RD = table_VD.new_empty(len(ids_R), table_VD.shape[1])

        def part(first: int, last: int) -> None:
            torch.index_select(table_VD, 0, ids_R[first:last], out=vectors_RD[first:last])

        for_parts(part, len(ids_R), table_VD.device)
        return vectors_RD

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (ids_R,) = ctx.saved_tensors
        return torch.sparse_coo_tensor(ids_R[None], gradient, ctx.shape, check_invariants=False), None


def look_up(table: nn.Embedding, ids_R: Tensor) -> Tensor:
    """Rows of the table [R, D]; with sparse gradients on a CPU in parts."""
    if not (table.sparse and torch.is_grad_enabled() and ids_R.device.type == "cpu"):
        vectors_RD: Tensor = table(ids_R)
    else:
        vectors_RD = _Lookup.apply(table.weight, ids_R)  # type: ignore[no-untyped-call]
    return vectors_RD
