"""On CUDA: the fused add, dropout and layer norm, and FP8 blocks against FP8 layers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.attention import AttentionContext, context_for_kernel, rotary_embedding
from bertsmith.nn.dropout import draw
from bertsmith.nn.fp8 import enable_fp8, ops
from bertsmith.nn.fp8.ops import LazyNorm, materialize
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import make_block

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SHAPES = [(2048, 768), (1001, 512), (333, 208), (4096, 1024), (2048, 128)]


def random_inputs(shape: tuple[int, int], *, normed: bool, dropout: float) -> tuple[Any, ...]:
    """The tensor arguments of `ops.add_norm`."""
    torch.manual_seed(0)
    tokens, width = shape
    x, y = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weights = [torch.rand(width, device="cuda") + 0.5 for _ in range(4)]
    mean, rstd = torch.randn(tokens, device="cuda") * 0.1, torch.rand(tokens, device="cuda") + 0.5
    x_norm = [mean, rstd, *weights[:2]] if normed else []
    return x, x_norm, y, draw(y.shape, y.device) if dropout else [], *weights[2:]


def on_cpu(args: Any) -> Any:
    return [each.cpu() for each in args] if isinstance(args, list) else args.cpu() if isinstance(args, Tensor) else args


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_equal_the_torch_implementation(shape: tuple[int, int], normed: bool, dropout: float) -> None:
    tokens = shape[0]
    args = *random_inputs(shape, normed=normed, dropout=dropout), 1e-5, dropout
    actual, expected = ops.add_norm(*args), ops.add_norm(*(on_cpu(each) for each in args))
    total, mean, rstd, quantized, transposed = (each.cpu() for each in actual)
    assert (total.float() - expected[0].float()).norm() < 1e-3 * expected[0].float().norm()  # some round differently
    assert torch.allclose(mean, expected[1], atol=1e-3)
    assert torch.allclose(rstd, expected[2], rtol=1e-2)
    assert (quantized.float() - expected[3].float()).norm() < 0.01 * expected[3].float().norm()
    assert torch.equal(transposed.view(torch.uint8)[:, :tokens], quantized.view(torch.uint8).t())
    assert not transposed.view(torch.uint8)[:, tokens:].any()

    one, two = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) / tokens for _ in range(2))
    backward_args = one, two, *actual[:3], args[4], args[3], dropout
    *gradient, sums = (each.cpu() for each in ops.add_norm_backward(*backward_args))
    *right, totals = ops.add_norm_backward(*(on_cpu(each) for each in backward_args))
    assert (gradient[0].float() - right[0].float()).norm() < 1e-3 * right[0].float().norm()
    assert (gradient[1].float() - right[1].float()).norm() < 0.01 * right[1].float().norm()
    assert torch.equal(gradient[2].view(torch.uint8)[:, :tokens], gradient[1].view(torch.uint8).t())
    assert not gradient[2].view(torch.uint8)[:, tokens:].any()
    assert all(
        (actual - reference).norm() < 1e-3 * reference.norm() for actual, reference in zip(sums, totals, strict=True)
    )


def test_add_norm_is_a_layer_norm() -> None:
    x, _, y, _, weight, bias = random_inputs((512, 768), normed=False, dropout=0.0)
    total, mean, rstd, quantized, _ = ops.add_norm(x, [], y, [], weight, bias, 1e-12, 0.0)
    expected = F.layer_norm(total.float(), (768,), weight, bias, 1e-12)
    normed = LazyNorm(total, total, quantized, quantized, mean, rstd, weight, bias)
    assert torch.allclose(materialize(normed).float(), expected, rtol=0.01, atol=1e-4)
    assert (quantized.float() / ops.INPUT_SCALE - expected).norm() < 0.04 * expected.norm()


def make_chains(dropout: float = 0.0, **layer_config: Any) -> tuple[nn.ModuleList, nn.ModuleList, nn.ModuleList]:
    """Plain blocks, the same with FP8 layers, and as FP8 blocks."""
    torch.manual_seed(0)
    layer_config |= {"dropout": dropout, "attention_dropout": dropout}
    plain = nn.ModuleList(
        make_block(width=256, heads=4, inner=1024, layer_config=LayerConfig(**layer_config)) for _ in range(3)
    )
    for name, weight in plain.named_parameters():
        nn.init.normal_(weight, mean=float("norm.weight" in name), std=0.05)
    by_layer, by_block = copy.deepcopy(plain), copy.deepcopy(plain)
    enable_fp8(by_layer, blocks=False)
    enable_fp8(by_block)
    return plain.cuda().train(), by_layer.cuda().train(), by_block.cuda().train()


def context(tokens: int, *, rotary: bool = False) -> AttentionContext:
    document = torch.zeros(1, tokens, dtype=torch.int32, device="cuda")
    bounds = torch.tensor([0, 77, 300, tokens], dtype=torch.int32, device="cuda")
    attention = context_for_kernel(document, bounds, kernel="triton", max_seqlen=tokens, causal=False)
    return replace(
        attention,
        rotary=rotary_embedding(torch.arange(tokens, device="cuda"), head_width=64, theta=100.0) if rotary else None,
    )


def trained(
    chain: nn.ModuleList, *, tokens: int, compiles: bool, indices: Tensor | None = None, rotary: bool = False
) -> list[Tensor]:
    """The output and all gradients."""
    torch.manual_seed(1)
    x = torch.randn(tokens, 256, device="cuda").bfloat16().float().requires_grad_()  # compilation skips one rounding
    gradient = torch.randn(tokens if indices is None else len(indices), 256, device="cuda") / tokens
    attention = context(tokens, rotary=rotary)

    def run(x: Tensor) -> Tensor:
        y: Tensor | LazyNorm = x
        for block in chain:
            y, _ = block(y, attention, indices if block is chain[-1] else None)
        return materialize(y)

    chain.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        y = (torch.compile(run, dynamic=False, fullgraph=True) if compiles else run)(x)
    y.backward(gradient.to(y.dtype))
    assert x.grad is not None
    actual = [y.detach(), x.grad, *(weight.grad for weight in chain.parameters() if weight.grad is not None)]
    assert len(actual) == 2 + len(list(chain.parameters()))
    return [each.float() for each in actual]


def errors(actual: list[Tensor], reference: list[Tensor]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(actual, reference, strict=True)]


@pytest.mark.parametrize("compiles", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    ("tokens", "activation", "rotary"),
    [(512, "gelu", False), (499, "gelu", False), (512, "gelu_new", False), (499, "gelu", True)],
)
def test_fp8_blocks_are_as_exact_as_fp8_layers(tokens: int, activation: str, rotary: bool, compiles: bool) -> None:
    torch.compiler.reset()
    plain, by_layer, by_block = make_chains(activation=activation)
    exact = trained(plain, tokens=tokens, compiles=False, rotary=rotary)
    layer_errors, block_errors = (
        errors(trained(each, tokens=tokens, compiles=compiles, rotary=rotary), exact) for each in (by_layer, by_block)
    )
    assert all(one < 1.25 * other + 0.01 for one, other in zip(block_errors, layer_errors, strict=True))
    assert 0.005 < block_errors[0] < 0.08


def test_the_last_block_at_selected_tokens() -> None:
    torch.compiler.reset()
    plain, _, by_block = make_chains()
    tokens = torch.tensor([3, 77, 200, 498], device="cuda").repeat_interleave(16)
    exact, actual = (trained(each, tokens=512, compiles=each is by_block, indices=tokens) for each in (plain, by_block))
    assert max(errors(actual, exact)) < 0.25


def test_compiled_blocks_equal_eager_ones() -> None:
    torch.compiler.reset()
    *_, by_block = make_chains()
    actual, expected = (trained(by_block, tokens=512, compiles=compiles) for compiles in (True, False))
    assert max(errors(actual, expected)) < 0.03


def test_dropout_is_unbiased() -> None:
    torch.compiler.reset()
    plain, _, _ = make_chains()
    *_, by_block = make_chains(dropout=0.1)
    exact = trained(plain, tokens=512, compiles=False)[0]
    with torch.autocast("cuda", torch.bfloat16):
        torch.manual_seed(1)
        x, attention = torch.randn(512, 256, device="cuda"), context(512)
        sums = torch.zeros_like(x)
        for _ in range(32):
            y: Tensor | LazyNorm = x
            for block in by_block:
                y, _ = block(y, attention)
            sums += materialize(y).detach()
    assert errors([sums / 32], [exact])[0] < 0.15
