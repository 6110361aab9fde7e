"""FP8 blocks: which blocks are converted, their outputs and gradients, and evaluation."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from model_fixtures import pretraining_model
from nn.fp8.test_fp8_layers import off
from torch import Tensor, nn

from bertsmith.nn import kernels
from bertsmith.nn.attention import AttentionContext, RotaryEmbedding, context_for_kernel, rotary_embedding
from bertsmith.nn.fp8 import layers, ops
from bertsmith.nn.fp8.block import Float8Block, convert_blocks
from bertsmith.nn.fp8.layers import Float8Qkv
from bertsmith.nn.fp8.ops import LazyNorm, materialize
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import Block, FeedForward, make_block

T, D, F = 48, 64, 128


def blocks(count: int = 2, **layer_config: object) -> nn.ModuleList:
    torch.manual_seed(0)
    made = nn.ModuleList(
        make_block(width=D, heads=2, inner=F, layer_config=LayerConfig(**layer_config)) for _ in range(count)
    )
    for weight in made.parameters():
        nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.05)
    return made.train()


def everyone() -> AttentionContext:
    return context_for_kernel(
        torch.zeros(1, T, dtype=torch.int32), torch.tensor([0, T]), kernel="dense", max_seqlen=T, causal=False
    )


def test_blocks_are_converted_and_keep_their_parameter_names() -> None:
    made = blocks()
    names = list(made.state_dict())
    assert convert_blocks(made) == 8
    assert all(type(block) is Float8Block for block in made)
    assert type(made[0].attention.qkv) is Float8Qkv
    assert list(made.state_dict()) == names
    assert convert_blocks(made) == 0


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_has_fp8_blocks_unless_weights_are_sharded(whole: bool) -> None:
    model = pretraining_model(layers=2, width=32, heads=2)
    model.enable_fp8(whole=whole)
    block = model.encoder.blocks[0]
    assert (type(block) is Float8Block) == whole
    assert type(block.attention.qkv) is Float8Qkv


@pytest.mark.parametrize("layer_config", [{"activation": "relu"}, {"biases": False}])
def test_blocks_with_an_unsupported_layer_stay_blocks(layer_config: dict[str, object]) -> None:
    made = blocks(**layer_config)
    convert_blocks(made)
    assert all(type(block) is Block for block in made)


def test_a_block_without_attention_stays_a_block() -> None:
    feeds = FeedForward(width=D, inner=F, layer_config=LayerConfig())
    half = Block(attention=None, feed_forward=feeds, width=D, layer_config=LayerConfig(), dropout=0.0)
    assert convert_blocks(half) == 2
    assert type(half) is Block


def test_an_fp8_block_in_evaluation_equals_the_plain_one() -> None:
    plain = blocks(1)[0].eval()
    small, x = copy.deepcopy(plain), torch.randn(T, D)
    convert_blocks(nn.ModuleList([small]))
    small.eval()
    found, _ = small(x, everyone())
    assert torch.equal(found, plain(x, everyone())[0])


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_feed_forward_sublayers_are_close_to_plain_ones(activation: str, compiles: bool) -> None:
    plain = blocks(activation=activation)
    whole = copy.deepcopy(plain)
    convert_blocks(whole)

    def fed(x: Tensor) -> Tensor:
        found: Tensor | LazyNorm = x
        for block in whole:
            found = block._feed_forward(found)
        return materialize(found)

    x = torch.randn(T, D)
    gradient = torch.randn(T, D) / T
    found = []
    run = torch.compile(fed, backend="aot_eager", fullgraph=True) if compiles else fed
    for chain in (plain, whole):
        mine = y = x.clone().requires_grad_()
        if chain is plain:
            for block in plain:
                y = block.feed_forward_norm(y + block.feed_forward(y))
        else:
            y = run(mine)
        y.backward(gradient.to(y.dtype))
        learnt = [name for name, weight in chain.named_parameters() if weight.grad is not None]
        assert len(learnt) == 12
        found.append([y, mine.grad, *(weight.grad for weight in chain.parameters() if weight.grad is not None)])
    (y, *theirs), (z, *ours) = found
    assert z.dtype == torch.bfloat16
    assert 0.002 < off(z, y.detach()) < 0.05
    assert all(one.dtype == torch.float32 and off(one, other) < 0.12 for one, other in zip(ours, theirs, strict=True))
    assert off(ours[-1], theirs[-1]) < 0.005  # the last norm's bias: only rounded


class Kernels(ModuleType):
    """The attention and rotary kernels for one text without dropout, in torch."""

    def __init__(self) -> None:
        super().__init__("kernels")

    @staticmethod
    def draw_dropout(places: int, device: torch.device, dropout: float) -> Tensor:
        return torch.zeros(1, dtype=torch.int32)

    @staticmethod
    def _seen(qkv: Tensor) -> Tensor:
        q, k, v = qkv.float().permute(1, 2, 0, 3)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1)

    @classmethod
    def attention_forward_fp8(cls, qkv: Tensor, *context: Any) -> tuple[Tensor, ...]:
        assert len(context) == 6
        seen = cls._seen(qkv)
        small = ops.quantize(seen.flatten(1), context[-1], ops.E4M3)
        return seen.bfloat16(), torch.zeros(qkv.shape[2], len(qkv)), small, ops.transpose(small)

    @staticmethod
    def rotate_qk(qkv: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        turn = RotaryEmbedding(cosine, sine).rotate
        return torch.stack((turn(q), turn(k), v), 1)

    @classmethod
    def attention_backward(cls, back: Tensor, qkv: Tensor, *context: Any) -> Tensor:
        assert len(context) == 7
        mine = qkv.detach().float().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(cls._seen(mine), mine, back.float())
        return found.bfloat16()

    @classmethod
    def attention_backward_fp8(cls, back: Tensor, qkv: Tensor, *context: Any) -> tuple[Tensor, Tensor, Tensor]:
        return cls._small(cls.attention_backward(back, qkv, *context[:-1]), context[-1])

    @classmethod
    def rotary_backward_fp8(
        cls, back: Tensor, cosine: Tensor, sine: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return cls._small(cls.rotate_qk(back, cosine, -sine), scale)

    @staticmethod
    def _small(gradient: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        gradient = gradient.flatten(1)
        small = ops.quantize(gradient, scale, ops.E5M2)
        return small, ops.transpose(small), gradient.float().sum(0, keepdim=True)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_attention_is_close_to_the_plain_one_with_and_without_rotary(
    turned: bool, parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("attention", "elementwise"):
        monkeypatch.setitem(sys.modules, f"bertsmith.nn.kernels.{name}", Kernels())
        monkeypatch.setattr(kernels, name, sys.modules[f"bertsmith.nn.kernels.{name}"], raising=False)
    plain = blocks()
    small = copy.deepcopy(plain)
    (layers.convert_layers if parts else convert_blocks)(small)
    turn = rotary_embedding(torch.arange(T), head_width=D // 2, theta=100.0)
    x, gradient = torch.randn(T, D).bfloat16().float(), torch.randn(T, D) / T
    found = []
    for chain, kernel, seen in ((plain, "dense", turned), (small, "triton", turned), (small, "triton", not turned)):
        context = context_for_kernel(
            torch.zeros(1, T, dtype=torch.int32), torch.tensor([0, T]), kernel=kernel, max_seqlen=T, causal=False
        )
        mine = x.clone().requires_grad_()
        chain.zero_grad()
        y: Tensor | LazyNorm = mine
        for block in chain:
            y, _ = block(y, replace(context, rotary=turn if seen else None))
        materialize(y).backward(gradient.to(materialize(y).dtype))
        found.append([materialize(y), mine.grad, *(weight.grad for weight in chain.parameters())])
    (y, *theirs), (z, *ours), (other, *_) = found
    assert 0.002 < off(z, y.detach()) < 0.05
    assert off(other, y.detach()) > 1.5 * off(z, y.detach())  # turns make a difference
    names = ["x", *(name for name, _ in plain.named_parameters())]
    for name, one, right in zip(names, ours, theirs, strict=True):
        assert off(one, right) < 0.15, name


def test_dropout_applies_to_the_sublayer_output_only() -> None:
    (block,) = blocks(1, dropout=0.5)
    convert_blocks(nn.ModuleList([block]))
    x = torch.randn(T, D).bfloat16().float().requires_grad_()
    with torch.no_grad():
        more = block.feed_forward.eval()(x)
    torch.manual_seed(3)
    added = (block.train()._feed_forward(x).total_TD - x).detach()
    dropped = (added.abs() < 0.03).float().mean()  # what is kept is twice as large: bfloat16 leaves some near 0
    assert 0.45 < float(dropped) < 0.6
    assert off(added[added.abs() > 0.03], 2 * more[added.abs() > 0.03]) < 0.1
