"""On CUDA: GELU with its column sums and its eight bits is GELU, and eight bits are chosen by measurement."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from bertsmith.nn import autotune
from bertsmith.nn.fp8.layers import Float8FeedForward
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import FeedForward, make_block
from bertsmith.training.roofline import device_seconds

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SHAPES = [(2048, 3072), (1001, 520)]


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", SHAPES, ids=["even", "ragged"])
def test_gelu_there_and_back_with_the_sums_of_its_columns(shape: tuple[int, int], tanh: bool) -> None:
    from bertsmith.nn.kernels.elementwise import biased_gelu

    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(shape[1], device="cuda", requires_grad=True)
    back = torch.randn_like(x)
    how = "tanh" if tanh else "none"
    found, expected = biased_gelu(x, bias, tanh), F.gelu(x, approximate=how)
    ours = torch.autograd.grad(found, (x, bias), back)
    (theirs,) = torch.autograd.grad(expected, x, back)
    assert torch.allclose(found.float(), expected.float(), rtol=0.01, atol=1e-5)
    assert torch.allclose(ours[0].float(), theirs.float(), rtol=0.02, atol=1e-4)
    exact = x.detach().double().requires_grad_()
    (gradient,) = torch.autograd.grad(F.gelu(exact, approximate=how), exact, back.double())
    sums = gradient.sum(0)  # of numbers that were not rounded, as ours are
    assert (ours[1] - sums).norm() < 1e-3 * sums.norm()


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", SHAPES, ids=["even", "ragged"])
def test_eight_bits_are_those_of_a_cast(shape: tuple[int, int], tanh: bool) -> None:
    from bertsmith.nn.kernels import elementwise

    torch.manual_seed(0)
    x, back = (torch.randn(shape, device="cuda") * 4 for _ in range(2))
    there, (gradient, sums) = elementwise._plain(x, tanh), elementwise._plain_back(back, x, tanh)
    small_back, turned_back, sums_back = elementwise.gelu_backward_fp8(back, x, 16.0, tanh)
    for exact, scale, small, turned in (
        (there, 8.0, *elementwise.gelu_fp8(x, 8.0, tanh)),
        (x, 128.0, *elementwise.cast_fp8(x, 128.0)),
        (gradient, 16.0, small_back, turned_back),
    ):
        most = torch.finfo(small.dtype).max
        cast = (exact * scale).clamp(-most, most).to(small.dtype)
        assert torch.equal(small.view(torch.uint8), cast.view(torch.uint8))
        places = len(small)
        for each in (turned, elementwise.transpose_fp8(small)):
            assert each.shape == (shape[1], -(-places // 16) * 16)
            assert torch.equal(each.view(torch.uint8)[:, :places], small.view(torch.uint8).t())
            assert not each.view(torch.uint8)[:, places:].any()
    assert torch.allclose(sums_back.sum(0), sums.sum(0), rtol=1e-4, atol=1e-2)


def test_what_is_too_large_for_eight_bits_is_held_and_what_is_no_number_stays_none() -> None:
    from bertsmith.nn.kernels import elementwise

    x = torch.full((64, 64), 1e4, device="cuda")
    x[0, 0] = torch.nan
    back = torch.tensor([[1e9], [-1e9]], device="cuda").repeat(32, 64)
    for small, most in (
        (elementwise.gelu_fp8(x, 8.0, False)[0], 448.0),
        (elementwise.cast_fp8(x, 8.0)[0], 448.0),
        (elementwise.gelu_backward_fp8(back, x, 16.0, False)[0], 57344.0),
    ):
        found = small.float()
        assert found[0, 0].isnan()
        assert found[2:].abs().eq(most).all()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_a_compiled_half_in_eight_bits_is_the_one_that_is_not_compiled(activation: str) -> None:
    torch.manual_seed(0)
    layer_config = LayerConfig(activation=activation)
    half = Float8FeedForward(FeedForward(width=768, inner=3072, layer_config=layer_config)).cuda().train()
    x = torch.randn(2048, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    back = torch.randn_like(x) / len(x)
    found = []
    for run in (half, torch.compile(half, fullgraph=True)):
        half.zero_grad()
        (gradient,) = torch.autograd.grad(seen := run(x), x, back, retain_graph=True)
        seen.backward(back)
        found.append([seen.detach(), gradient, *(each.grad.clone() for each in half.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert (ours.float() - theirs.float()).norm() < 0.01 * theirs.float().norm()


def test_the_faster_precision_is_found() -> None:
    device, block = torch.device("cuda"), make_block(width=768, heads=12, inner=3072, layer_config=LayerConfig())
    times = autotune.time_fp8(block, 128, 512, device, clock=partial(device_seconds, device=device))
    assert None not in times.values()
    assert autotune.fp8_is_faster(times) == (times["fp8"] < 0.97 * times["bf16"])  # type: ignore[operator]
