"""The torch implementation of add and norm in FP8, to which kernels are compared, equals LayerNorm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertsmith.nn.dropout import draw, keep_threshold
from bertsmith.nn.fp8 import ops
from bertsmith.nn.fp8.ops import add_norm, add_norm_backward, layer_norm

T, D, EPSILON = 48, 32, 1e-5


def numbers() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(T, D) * 2, torch.randn(T, D), torch.rand(D) + 0.5, torch.randn(D)


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize("normed", [False, True])
def test_add_norm_equals_layer_norm_forward_and_backward(dropped: float, normed: bool) -> None:
    x, more, weight, bias = numbers()
    variance, mean = torch.var_mean(x, 1, correction=0)
    x_norm = [mean, torch.rsqrt(variance + EPSILON), bias + 1, weight] if normed else []
    draws = draw(more.shape, more.device) if dropped else []
    before = F.layer_norm(x, (D,), bias + 1, weight, EPSILON) if normed else x
    kept = draws[0][:, None] * draws[1] >= keep_threshold(dropped) if dropped else torch.ones(T, D, dtype=torch.bool)
    leaves = [each.double().requires_grad_() for each in (before, more, weight, bias)]
    total = leaves[0] + leaves[1] * kept / (1 - dropped)
    expected = F.layer_norm(total, (D,), leaves[2], leaves[3], EPSILON)
    one, two = torch.randn(T, D) / T, torch.randn(T, D) / T
    of_x, of_more, of_weight, of_bias = torch.autograd.grad(expected, leaves, (one + two).double())

    found = add_norm(x, x_norm, more, draws, weight, bias, EPSILON, dropped)
    assert torch.allclose(found[0].double(), total, atol=1e-5)
    y = layer_norm(*found[:3], weight, bias)
    assert torch.allclose(y.double(), expected, atol=1e-5)
    assert torch.equal(found[3].float(), ops.quantize_input(y).float())
    assert torch.equal(found[4].float()[:, :T], found[3].float().t())

    gradient, small, turned, sums = add_norm_backward(one, two, *found[:3], weight, draws, dropped)
    assert torch.allclose(gradient.double(), of_x, atol=1e-6)
    assert (small.double() / (ops.GRADIENT_SCALE * T) - of_more).norm() < 0.08 * of_more.norm()
    assert bool((small.float() == 0)[~kept].all())
    assert torch.equal(turned.float()[:, :T], small.float().t())
    for ours, theirs in zip(sums.double(), (of_weight, of_bias, of_more.sum(0)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
