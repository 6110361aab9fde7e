"""On CUDA: norms of sums are LayerNorms with their casts, and whole blocks in eight bits learn as their parts do."""

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


def numbers(shape: tuple[int, int], *, normed: bool, dropped: float) -> tuple[Any, ...]:
    """What goes in, what makes its norm, what is added, draws, weight and bias, on the GPU."""
    torch.manual_seed(0)
    places, width = shape
    x, more = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    weights = [torch.rand(width, device="cuda") + 0.5 for _ in range(4)]
    mean, rise = torch.randn(places, device="cuda") * 0.1, torch.rand(places, device="cuda") + 0.5
    x_norm = [mean, rise, *weights[:2]] if normed else []
    return x, x_norm, more, draw(more.shape, more.device) if dropped else [], *weights[2:]


def moved(given: Any) -> Any:
    return (
        [each.cpu() for each in given]
        if isinstance(given, list)
        else given.cpu()
        if isinstance(given, Tensor)
        else given
    )


@pytest.mark.parametrize("dropped", [0.0, 0.2])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_what_torch_computes(shape: tuple[int, int], normed: bool, dropped: float) -> None:
    places = shape[0]
    given = *numbers(shape, normed=normed, dropped=dropped), 1e-5, dropped
    found, expected = ops.add_norm(*given), ops.add_norm(*(moved(each) for each in given))
    total, mean, rise, small, turned = (each.cpu() for each in found)
    assert (total.float() - expected[0].float()).norm() < 1e-3 * expected[0].float().norm()  # some round otherwise
    assert torch.allclose(mean, expected[1], atol=1e-3)
    assert torch.allclose(rise, expected[2], rtol=1e-2)
    assert (small.float() - expected[3].float()).norm() < 0.01 * expected[3].float().norm()
    assert torch.equal(turned.view(torch.uint8)[:, :places], small.view(torch.uint8).t())
    assert not turned.view(torch.uint8)[:, places:].any()

    one, two = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) / places for _ in range(2))
    come = one, two, *found[:3], given[4], given[3], dropped
    *back, sums = (each.cpu() for each in ops.add_norm_backward(*come))
    *right, totals = ops.add_norm_backward(*(moved(each) for each in come))
    assert (back[0].float() - right[0].float()).norm() < 1e-3 * right[0].float().norm()
    assert (back[1].float() - right[1].float()).norm() < 0.01 * right[1].float().norm()
    assert torch.equal(back[2].view(torch.uint8)[:, :places], back[1].view(torch.uint8).t())
    assert not back[2].view(torch.uint8)[:, places:].any()
    assert all((ours - theirs).norm() < 1e-3 * theirs.norm() for ours, theirs in zip(sums, totals, strict=True))


def test_the_norm_is_a_layer_norm() -> None:
    x, _, more, _, weight, bias = numbers((512, 768), normed=False, dropped=0.0)
    total, mean, rise, small, _ = ops.add_norm(x, [], more, [], weight, bias, 1e-12, 0.0)
    expected = F.layer_norm(total.float(), (768,), weight, bias, 1e-12)
    normed = LazyNorm(total, total, small, small, mean, rise, weight, bias)
    assert torch.allclose(materialize(normed).float(), expected, rtol=0.01, atol=1e-4)
    assert (small.float() / ops.INPUT_SCALE - expected).norm() < 0.04 * expected.norm()


def chains(dropout: float = 0.0, **layer_config: Any) -> tuple[nn.ModuleList, nn.ModuleList, nn.ModuleList]:
    """Plain blocks, the same with parts in eight bits, and whole in eight bits."""
    torch.manual_seed(0)
    layer_config |= {"dropout": dropout, "attention_dropout": dropout}
    plain = nn.ModuleList(
        make_block(width=256, heads=4, inner=1024, layer_config=LayerConfig(**layer_config)) for _ in range(3)
    )
    for name, weight in plain.named_parameters():
        nn.init.normal_(weight, mean=float("norm.weight" in name), std=0.05)
    parts, whole = copy.deepcopy(plain), copy.deepcopy(plain)
    enable_fp8(parts, blocks=False)
    enable_fp8(whole)
    return plain.cuda().train(), parts.cuda().train(), whole.cuda().train()


def context(places: int, *, turned: bool = False) -> AttentionContext:
    document = torch.zeros(1, places, dtype=torch.int32, device="cuda")
    bounds = torch.tensor([0, 77, 300, places], dtype=torch.int32, device="cuda")
    seen = context_for_kernel(document, bounds, kernel="triton", max_seqlen=places, causal=False)
    return replace(
        seen,
        rotary=rotary_embedding(torch.arange(places, device="cuda"), head_width=64, theta=100.0) if turned else None,
    )


def learnt(
    chain: nn.ModuleList, *, places: int, compiles: bool, last: Tensor | None = None, turned: bool = False
) -> list[Tensor]:
    """What comes out, and all gradients."""
    torch.manual_seed(1)
    x = (
        torch.randn(places, 256, device="cuda").bfloat16().float().requires_grad_()
    )  # compiled, one rounding is left out
    back = torch.randn(places if last is None else len(last), 256, device="cuda") / places
    seen = context(places, turned=turned)

    def run(x: Tensor) -> Tensor:
        y: Tensor | LazyNorm = x
        for block in chain:
            y, _ = block(y, seen, last if block is chain[-1] else None)
        return materialize(y)

    chain.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        y = (torch.compile(run, dynamic=False, fullgraph=True) if compiles else run)(x)
    y.backward(back.to(y.dtype))
    assert x.grad is not None
    found = [y.detach(), x.grad, *(weight.grad for weight in chain.parameters() if weight.grad is not None)]
    assert len(found) == 2 + len(list(chain.parameters()))
    return [each.float() for each in found]


def off(ours: list[Tensor], theirs: list[Tensor]) -> list[float]:
    return [float((one - other).norm() / other.norm()) for one, other in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("compiles", [False, True], ids=["as it is", "compiled"])
@pytest.mark.parametrize(
    ("places", "activation", "turned"),
    [(512, "gelu", False), (499, "gelu", False), (512, "gelu_new", False), (499, "gelu", True)],
)
def test_whole_blocks_are_as_near_to_plain_ones_as_their_parts(
    places: int, activation: str, turned: bool, compiles: bool
) -> None:
    torch.compiler.reset()
    plain, parts, whole = chains(activation=activation)
    exact = learnt(plain, places=places, compiles=False, turned=turned)
    of_parts, of_whole = (
        off(learnt(each, places=places, compiles=compiles, turned=turned), exact) for each in (parts, whole)
    )
    assert all(one < 1.25 * other + 0.01 for one, other in zip(of_whole, of_parts, strict=True))
    assert 0.005 < of_whole[0] < 0.08


def test_the_last_block_may_be_read_in_part() -> None:
    torch.compiler.reset()
    plain, _, whole = chains()
    places = torch.tensor([3, 77, 200, 498], device="cuda").repeat_interleave(16)
    exact, found = (learnt(each, places=512, compiles=each is whole, last=places) for each in (plain, whole))
    assert max(off(found, exact)) < 0.25


def test_a_compiled_chain_is_the_one_that_is_not_compiled() -> None:
    torch.compiler.reset()
    *_, whole = chains()
    found, expected = (learnt(whole, places=512, compiles=compiles) for compiles in (True, False))
    assert max(off(found, expected)) < 0.03


def test_with_dropout_it_is_right_on_average() -> None:
    torch.compiler.reset()
    plain, _, _ = chains()
    *_, whole = chains(dropout=0.1)
    exact = learnt(plain, places=512, compiles=False)[0]
    with torch.autocast("cuda", torch.bfloat16):
        torch.manual_seed(1)
        x, seen = torch.randn(512, 256, device="cuda"), context(512)
        sums = torch.zeros_like(x)
        for _ in range(32):
            y: Tensor | LazyNorm = x
            for block in whole:
                y, _ = block(y, seen)
            sums += materialize(y).detach()
    assert off([sums / 32], [exact])[0] < 0.15
