"""Rotary embeddings: norms are kept, products depend on the distance, positions restart with each text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_fixtures import relative_difference
from nn.test_attention import in_a_loop
from torch.nn.attention import varlen

from bertsmith.nn.attention import Attention, Kernel, RotaryEmbedding, context_for_kernel, rotary_embedding


def random_tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def float64_rotary(positions: torch.Tensor, *, theta: float = 100.0) -> RotaryEmbedding:
    out = rotary_embedding(positions, head_width=8, theta=theta)
    return RotaryEmbedding(out.cos.double(), out.sin.double())


def test_pairs_are_rotated_by_their_angles() -> None:
    x = random_tensor(5, 3, 8)
    out = float64_rotary(torch.tensor([0, 1, 2, 7, 100])).rotate(x)
    assert torch.equal(out[0], x[0])
    points, rotated = (torch.complex(*part.chunk(2, -1)) for part in (x, out))
    for index, position in enumerate((0, 1, 2, 7, 100)):
        for number in range(4):
            angle = torch.tensor(position / 100.0 ** (number / 4), dtype=torch.float64)
            expected = points[index, :, number] * torch.complex(angle.cos(), angle.sin())
            assert (rotated[index, :, number] - expected).abs().max() < 1e-5


def test_norms_are_kept_and_products_depend_on_the_distance() -> None:
    query, key = random_tensor(1, 2, 8).expand(50, 2, 8), random_tensor(1, 2, 8, seed=1).expand(50, 2, 8)
    index = torch.arange(50)
    near, far = (float64_rotary(index + start).rotate(query) for start in (0, 300))
    assert (near.norm(dim=-1) - query.norm(dim=-1)).abs().max() < 1e-6
    products, far_products = (
        torch.einsum("thk,uhk->htu", rotated, float64_rotary(index + start).rotate(key))
        for rotated, start in ((near, 0), (far, 300))
    )
    assert (products - far_products).abs().max() < 1e-4  # angles are rounded to float32
    diagonals = products[0].diagonal(3), products[0].diagonal(-3)
    assert all((diagonal - diagonal[0]).abs().max() < 1e-5 for diagonal in diagonals)
    assert (diagonals[0][0] - diagonals[1][0]).abs() > 1e-2, "the sign of the distance matters"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rotated_in_float32(dtype: torch.dtype) -> None:
    x = random_tensor(20, 2, 8).to(dtype)
    rotate = rotary_embedding(torch.arange(20), head_width=8, theta=100.0).rotate
    out = rotate(x)
    assert out.dtype == dtype
    assert torch.equal(out, rotate(x.float()).to(dtype)), "rounded once, at the end"


@pytest.mark.parametrize("kernel", ["masked", "eager", "varlen", "equal_lengths"])
def test_packed_texts_equal_separate_ones(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", in_a_loop)
    attention = Attention(width=16, heads=2, dropout=0.0, biases=False).double()
    assert [name for name, _ in attention.named_parameters()] == ["qkv.weight", "output.weight"]
    x, positions = random_tensor(12, 16), torch.tensor([*range(5), *range(7)])
    document = torch.tensor([[1] * 5 + [2] * 7], dtype=torch.int32)
    bounds = torch.tensor([0, 5, 12], dtype=torch.int32)
    context = context_for_kernel(
        document, bounds, kernel=kernel, max_seqlen=12, causal=False, equal_length_runs=((1, 5), (1, 7))
    )
    packed, _ = attention(x, replace(context, rotary=float64_rotary(positions)))
    for part in (slice(0, 5), slice(5, 12)):
        context = context_for_kernel(document[:, part], bounds, kernel="dense", max_seqlen=12, causal=False)
        alone, _ = attention(x[part], replace(context, rotary=float64_rotary(positions[part])))
        assert relative_difference(packed[part], alone) < 1e-12
        assert relative_difference(attention(x[part], context)[0], alone) > 1e-2, "rotation matters"
