"""Rotary embeddings: norms are kept, products depend on the distance, positions restart with each text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_fixtures import relative_difference
from nn.test_attention import in_a_loop
from torch.nn.attention import varlen

from bertsmith.nn.attention import Attention, Kernel, RotaryEmbedding, context_for_kernel, rotary_embedding


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def exact(positions: torch.Tensor, *, base: float = 100.0) -> RotaryEmbedding:
    found = rotary_embedding(positions, head_width=8, theta=base)
    return RotaryEmbedding(found.cos.double(), found.sin.double())


def test_pairs_are_rotated_by_their_angles() -> None:
    x = drawn(5, 3, 8)
    found = exact(torch.tensor([0, 1, 2, 7, 100])).rotate(x)
    assert torch.equal(found[0], x[0])
    points, turned = (torch.complex(*part.chunk(2, -1)) for part in (x, found))
    for place, position in enumerate((0, 1, 2, 7, 100)):
        for number in range(4):
            angle = torch.tensor(position / 100.0 ** (number / 4), dtype=torch.float64)
            wanted = points[place, :, number] * torch.complex(angle.cos(), angle.sin())
            assert (turned[place, :, number] - wanted).abs().max() < 1e-5


def test_norms_are_kept_and_products_depend_on_the_distance() -> None:
    query, key = drawn(1, 2, 8).expand(50, 2, 8), drawn(1, 2, 8, seed=1).expand(50, 2, 8)
    place = torch.arange(50)
    here, there = (exact(place + start).rotate(query) for start in (0, 300))
    assert (here.norm(dim=-1) - query.norm(dim=-1)).abs().max() < 1e-6
    products, further = (
        torch.einsum("thk,uhk->htu", turned, exact(place + start).rotate(key))
        for turned, start in ((here, 0), (there, 300))
    )
    assert (products - further).abs().max() < 1e-4  # angles are rounded to float32
    diagonals = products[0].diagonal(3), products[0].diagonal(-3)
    assert all((diagonal - diagonal[0]).abs().max() < 1e-5 for diagonal in diagonals)
    assert (diagonals[0][0] - diagonals[1][0]).abs() > 1e-2, "ahead is not back"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_float32(kind: torch.dtype) -> None:
    x = drawn(20, 2, 8).to(kind)
    turn = rotary_embedding(torch.arange(20), head_width=8, theta=100.0).rotate
    found = turn(x)
    assert found.dtype == kind
    assert torch.equal(found, turn(x.float()).to(kind)), "rounded once, at the end"


@pytest.mark.parametrize("kernel", ["masked", "eager", "varlen", "equal_lengths"])
def test_packed_texts_equal_separate_ones(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", in_a_loop)
    attention = Attention(width=16, heads=2, dropout=0.0, biases=False).double()
    assert [name for name, _ in attention.named_parameters()] == ["qkv.weight", "output.weight"]
    x, positions = drawn(12, 16), torch.tensor([*range(5), *range(7)])
    document = torch.tensor([[1] * 5 + [2] * 7], dtype=torch.int32)
    bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
    context = context_for_kernel(
        document, bounds, kernel=kernel, max_seqlen=12, causal=False, equal_length_runs=((1, 5), (1, 7))
    )
    packed, _ = attention(x, replace(context, rotary=exact(positions)))
    for part in (slice(0, 5), slice(5, 12)):
        context = context_for_kernel(document[:, part], bounds, kernel="dense", max_seqlen=12, causal=False)
        alone, _ = attention(x[part], replace(context, rotary=exact(positions[part])))
        assert relative_difference(packed[part], alone) < 1e-12
        assert relative_difference(attention(x[part], context)[0], alone) > 1e-2, "without turns it is another answer"
