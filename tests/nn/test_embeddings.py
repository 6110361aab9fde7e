"""A row of two, chosen: the same numbers and gradients as a look-up; waves: every shift is one map."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bertsmith.nn.embeddings import of_two, waves


def test_rows_of_two_are_those_of_a_table() -> None:
    torch.manual_seed(0)
    table, rows = nn.Embedding(2, 8), torch.randint(0, 2, (64,))
    back = torch.randn(64, 8)
    expected, found = table(rows), of_two(table.weight, rows)
    assert torch.equal(found, expected)
    (theirs,), (ours,) = (torch.autograd.grad(each, table.weight, back) for each in (expected, found))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert 0 < int(rows.sum()) < 64


@pytest.mark.parametrize("width", [64, 33])
def test_waves(width: int) -> None:
    table = waves(512, width)
    assert table.shape == (512, width)
    assert table.square().mean().item() == pytest.approx(1, abs=0.1)
    assert len(torch.unique(table, dim=0)) == 512
    assert torch.equal(waves(40, width), table[:40])


def test_a_shift_of_waves_is_one_map_wherever_it_begins() -> None:
    sines, cosines = waves(300, 16).double().chunk(2, 1)
    turn = 3 * torch.atan2(sines[1], cosines[1])  # what three places turn each wave by
    assert turn.max() / turn.min() > 1000
    assert torch.allclose(sines[3:], sines[:-3] * turn.cos() + cosines[:-3] * turn.sin(), atol=1e-4)
    assert torch.allclose(cosines[3:], cosines[:-3] * turn.cos() - sines[:-3] * turn.sin(), atol=1e-4)
