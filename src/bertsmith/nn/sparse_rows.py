"""Gradients of embedding tables that hold only the rows that a batch has read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.row_threads import for_parts


def sum_rows(gradient: Tensor) -> Tensor:
    """The same sparse gradient [V, D] with each row once, in ascending order; the sums have a fixed order."""
    rows_T, values_TD = gradient._indices()[0], gradient._values()
    ascending_T, order_T = torch.sort(rows_T, stable=True)
    rows_U, counts_U = torch.unique_consecutive(ascending_T, return_counts=True)
    starts_U = counts_U.cumsum(0) - counts_U
    sums_UD = values_TD.new_empty(len(rows_U), *values_TD.shape[1:])

    def part(first: int, last: int) -> None:
        # whole tensors without reading the device
        start, end = int(starts_U[first]) if first else 0, int(starts_U[last]) if last < len(rows_U) else len(order_T)
        some_T, some_U = order_T[start:end], starts_U[first:last] - start
        sums_UD[first:last] = F.embedding_bag(some_T, values_TD, some_U, mode="sum")

    for_parts(part, len(rows_U), gradient.device)
    return torch.sparse_coo_tensor(rows_U[None], sums_UD, gradient.shape, is_coalesced=True, check_invariants=False)
