"""Two orders of what is turned together in a head: its first and its second half, or each with its neighbour."""

from __future__ import annotations

import torch


def in_turn(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of halves, first and second in turn."""
    return value.view(heads, 2, -1, *value.shape[1:]).transpose(1, 2).reshape_as(value)


def in_halves(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of neighbours, all first ones of a head before all second ones."""
    return value.view(heads, -1, 2, *value.shape[1:]).transpose(1, 2).reshape_as(value)
