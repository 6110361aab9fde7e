"""The torch implementation of add and norm in FP8, to which kernels are compared, equals LayerNorm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.dropout import draw, keep_threshold
from bertsmith.nn.fp8 import ops
from bertsmith.nn.fp8.ops import add_norm, add_norm_backward, layer_norm

T, D, EPS = 48, 32, 1e-5


def random_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(T, D) * 2, torch.randn(T, D), torch.rand(D) + 0.5, torch.randn(D)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("normed", [False, True])
def test_add_norm_equals_layer_norm_forward_and_backward(dropout: float, normed: bool) -> None:
    x, y, weight, bias = random_inputs()
    variance, mean = torch.var_mean(x, 1, correction=0)
    x_norm = [mean, torch.rsqrt(variance + EPS), bias + 1, weight] if normed else []
    random = draw(y.shape, y.device) if dropout else []
    residual = F.layer_norm(x, (D,), bias + 1, weight, EPS) if normed else x
    kept = random[0][:, None] * random[1] >= keep_threshold(dropout) if dropout else torch.ones(T, D, dtype=torch.bool)
    leaves = [each.double().requires_grad_() for each in (residual, y, weight, bias)]
    total = leaves[0] + leaves[1] * kept / (1 - dropout)
    expected = F.layer_norm(total, (D,), leaves[2], leaves[3], EPS)
    dn1, dn2 = torch.randn(T, D) / T, torch.randn(T, D) / T
    dx, dy, dweight, dbias = torch.autograd.grad(expected, leaves, (dn1 + dn2).double())

    out = add_norm(x, x_norm, y, random, weight, bias, EPS, dropout)
    assert torch.allclose(out[0].double(), total, atol=1e-5)
    y = layer_norm(*out[:3], weight, bias)
    assert torch.allclose(y.double(), expected, atol=1e-5)
    assert torch.equal(out[3].float(), ops.quantize_input(y).float())
    assert torch.equal(out[4].float()[:, :T], out[3].float().t())

    gradient, dy8, dy8_t, sums = add_norm_backward(dn1, dn2, *out[:3], weight, random, dropout)
    assert torch.allclose(gradient.double(), dx, atol=1e-6)
    assert (dy8.double() / (ops.GRADIENT_SCALE * T) - dy).norm() < 0.08 * dy.norm()
    assert bool((dy8.float() == 0)[~kept].all())
    assert torch.equal(dy8_t.float()[:, :T], dy8.float().t())
    for actual, reference in zip(sums.double(), (dweight, dbias, dy.sum(0)), strict=True):
        assert torch.allclose(actual, reference, atol=1e-6)
