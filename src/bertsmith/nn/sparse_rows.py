"""Gradients of embedding tables that hold only the rows that a batch has read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sum_rows(gradient: Tensor) -> Tensor:
    """The same sparse gradient [V, D] with each row once, in ascending order; the sums have a fixed order."""
    rows_T, values_TD = gradient._indices()[0], gradient._values()
    ascending_T, order_T = torch.sort(rows_T, stable=True)
    rows_U, counts_U = torch.unique_consecutive(ascending_T, return_counts=True)
    starts_U = counts_U.cumsum(0) - counts_U
    sums_UD = F.embedding_bag(order_T, values_TD, starts_U, mode="sum") if len(rows_T) else values_TD
    return torch.sparse_coo_tensor(rows_U[None], sums_UD, gradient.shape, is_coalesced=True, check_invariants=False)
