"""A row of two, chosen: the same numbers and gradients as a look-up."""

from __future__ import annotations

import torch
from torch import nn

from bertsmith.nn.embeddings import of_two


def test_rows_of_two_are_those_of_a_table() -> None:
    torch.manual_seed(0)
    table, rows = nn.Embedding(2, 8), torch.randint(0, 2, (64,))
    back = torch.randn(64, 8)
    expected, found = table(rows), of_two(table.weight, rows)
    assert torch.equal(found, expected)
    (theirs,), (ours,) = (torch.autograd.grad(each, table.weight, back) for each in (expected, found))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert 0 < int(rows.sum()) < 64
