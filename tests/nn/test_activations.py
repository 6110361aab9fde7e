"""QuickGelu equals GELU, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bertsmith.nn.activations import QuickGelu, get_activation


def test_quick_gelu_equals_gelu_forward_and_backward() -> None:
    x = torch.cat((torch.linspace(-12, 12, 100_001), torch.tensor([0.0, -0.0, -60.0, 60.0]))).requires_grad_()
    exact = x.detach().double().requires_grad_()
    result, expected = QuickGelu.apply(x), F.gelu(exact)  # type: ignore[no-untyped-call]
    assert (result - expected).abs().max() < 1e-6
    (actual,) = torch.autograd.grad(result.sum(), x)
    (reference,) = torch.autograd.grad(expected.sum(), exact)
    assert (actual - reference).abs().max() < 1e-6


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_exact_as_torchs_gelu(kind: torch.dtype) -> None:
    x = torch.linspace(-8, 8, 20_001).to(kind).requires_grad_()
    result = QuickGelu.apply(x)  # type: ignore[no-untyped-call]
    (actual,) = torch.autograd.grad(result.sum(), x)
    (reference,) = torch.autograd.grad(F.gelu(x).sum(), x)
    assert result.dtype == actual.dtype == kind
    step = torch.finfo(kind).eps
    assert torch.allclose(result.float(), F.gelu(x).float(), rtol=step, atol=1e-6)
    assert torch.allclose(actual.float(), reference.float(), rtol=2 * step, atol=1e-6)


def test_one_graph() -> None:
    x = torch.randn(100, requires_grad=True)
    result = torch.compile(QuickGelu.apply, fullgraph=True, backend="aot_eager")(x)
    (actual,), (reference,) = (torch.autograd.grad(some.sum(), x) for some in (result, F.gelu(x)))
    assert torch.allclose(result, F.gelu(x), atol=1e-6)
    assert torch.allclose(actual, reference, atol=1e-6)


def test_get_activation_is_torchs_gelu_without_compilation() -> None:
    x = torch.randn(100, dtype=torch.bfloat16)
    assert torch.equal(get_activation("gelu")(x), F.gelu(x))
