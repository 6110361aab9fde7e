"""On CUDA: GELU with its column sums and FP8 outputs, and the choice of the faster precision."""

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
def test_gelu_forward_backward_and_column_sums(shape: tuple[int, int], tanh: bool) -> None:
    from bertsmith.nn.kernels.elementwise import biased_gelu

    torch.manual_seed(0)
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    bias = torch.zeros(shape[1], device="cuda", requires_grad=True)
    dy = torch.randn_like(x)
    approximate = "tanh" if tanh else "none"
    out, expected = biased_gelu(x, bias, tanh), F.gelu(x, approximate=approximate)
    actual = torch.autograd.grad(out, (x, bias), dy)
    (reference,) = torch.autograd.grad(expected, x, dy)
    assert torch.allclose(out.float(), expected.float(), rtol=0.01, atol=1e-5)
    assert torch.allclose(actual[0].float(), reference.float(), rtol=0.02, atol=1e-4)
    exact = x.detach().double().requires_grad_()
    (gradient,) = torch.autograd.grad(F.gelu(exact, approximate=approximate), exact, dy.double())
    sums = gradient.sum(0)  # of unrounded gradients, like ours
    assert (actual[1] - sums).norm() < 1e-3 * sums.norm()


@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
@pytest.mark.parametrize("shape", SHAPES, ids=["even", "ragged"])
def test_fp8_outputs_equal_a_cast(shape: tuple[int, int], tanh: bool) -> None:
    from bertsmith.nn.kernels import elementwise

    torch.manual_seed(0)
    x, dy = (torch.randn(shape, device="cuda") * 4 for _ in range(2))
    y, (gradient, sums) = elementwise._gelu_forward(x, tanh), elementwise._gelu_backward(dy, x, tanh)
    dx8, dx8_t, fp8_sums = elementwise.gelu_backward_fp8(dy, x, 16.0, tanh)
    for exact, scale, quantized, transposed in (
        (y, 8.0, *elementwise.gelu_fp8(x, 8.0, tanh)),
        (x, 128.0, *elementwise.cast_fp8(x, 128.0)),
        (gradient, 16.0, dx8, dx8_t),
    ):
        largest = torch.finfo(quantized.dtype).max
        cast = (exact * scale).clamp(-largest, largest).to(quantized.dtype)
        assert torch.equal(quantized.view(torch.uint8), cast.view(torch.uint8))
        tokens = len(quantized)
        for each in (transposed, elementwise.transpose_fp8(quantized)):
            assert each.shape == (shape[1], -(-tokens // 16) * 16)
            assert torch.equal(each.view(torch.uint8)[:, :tokens], quantized.view(torch.uint8).t())
            assert not each.view(torch.uint8)[:, tokens:].any()
    assert torch.allclose(fp8_sums.sum(0), sums.sum(0), rtol=1e-4, atol=1e-2)


def test_large_values_saturate_and_nan_stays_nan() -> None:
    from bertsmith.nn.kernels import elementwise

    x = torch.full((64, 64), 1e4, device="cuda")
    x[0, 0] = torch.nan
    dy = torch.tensor([[1e9], [-1e9]], device="cuda").repeat(32, 64)
    for quantized, largest in (
        (elementwise.gelu_fp8(x, 8.0, False)[0], 448.0),
        (elementwise.cast_fp8(x, 8.0)[0], 448.0),
        (elementwise.gelu_backward_fp8(dy, x, 16.0, False)[0], 57344.0),
    ):
        values = quantized.float()
        assert values[0, 0].isnan()
        assert values[2:].abs().eq(largest).all()


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_a_compiled_fp8_feed_forward_equals_the_eager_one(activation: str) -> None:
    torch.manual_seed(0)
    layer_config = LayerConfig(activation=activation)
    layer = Float8FeedForward(FeedForward(width=768, inner=3072, layer_config=layer_config)).cuda().train()
    x = torch.randn(2048, 768, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn_like(x) / len(x)
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True)):
        layer.zero_grad()
        (gradient,) = torch.autograd.grad(out := run(x), x, dy, retain_graph=True)
        out.backward(dy)
        results.append([out.detach(), gradient, *(each.grad.clone() for each in layer.parameters())])
    for actual, reference in zip(*results, strict=True):
        assert (actual.float() - reference.float()).norm() < 0.01 * reference.float().norm()


def test_the_faster_precision_is_chosen() -> None:
    device, block = torch.device("cuda"), make_block(width=768, heads=12, inner=3072, layer_config=LayerConfig())
    times = autotune.time_fp8(block, 128, 512, device, clock=partial(device_seconds, device=device))
    assert None not in times.values()
    assert autotune.fp8_is_faster(times) == (times["fp8"] < 0.97 * times["bf16"])  # type: ignore[operator]
