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
from nn.fp8.test_fp8_layers import relative_error
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
    converted = nn.ModuleList(
        make_block(width=D, heads=2, inner=F, layer_config=LayerConfig(**layer_config)) for _ in range(count)
    )
    for weight in converted.parameters():
        nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.05)
    return converted.train()


def dense_context() -> AttentionContext:
    return context_for_kernel(
        torch.zeros(1, T, dtype=torch.int32), torch.tensor([0, T]), kernel="dense", max_seqlen=T, causal=False
    )


def test_blocks_are_converted_and_keep_their_parameter_names() -> None:
    converted = blocks()
    names = list(converted.state_dict())
    assert convert_blocks(converted) == 8
    assert all(type(block) is Float8Block for block in converted)
    assert type(converted[0].attention.qkv) is Float8Qkv
    assert list(converted.state_dict()) == names
    assert convert_blocks(converted) == 0


@pytest.mark.parametrize("fp8", [False, True])
def test_a_model_has_fp8_blocks_unless_weights_are_sharded(fp8: bool) -> None:
    model = pretraining_model(layers=2, width=32, heads=2)
    model.enable_fp8(whole=fp8)
    block = model.encoder.blocks[0]
    assert (type(block) is Float8Block) == fp8
    assert type(block.attention.qkv) is Float8Qkv


@pytest.mark.parametrize("layer_config", [{"activation": "relu"}, {"biases": False}])
def test_blocks_with_an_unsupported_layer_stay_blocks(layer_config: dict[str, object]) -> None:
    converted = blocks(**layer_config)
    convert_blocks(converted)
    assert all(type(block) is Block for block in converted)


def test_a_block_without_attention_stays_a_block() -> None:
    feed_forward = FeedForward(width=D, inner=F, layer_config=LayerConfig())
    block = Block(None, feed_forward, width=D, layer_config=LayerConfig())
    assert convert_blocks(block) == 2
    assert type(block) is Block


def test_an_fp8_block_in_evaluation_equals_the_plain_one() -> None:
    plain = blocks(1)[0].eval()
    fp8, x = copy.deepcopy(plain), torch.randn(T, D)
    convert_blocks(nn.ModuleList([fp8]))
    fp8.eval()
    results, _ = fp8(x, dense_context())
    assert torch.equal(results, plain(x, dense_context())[0])


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_feed_forward_sublayers_are_close_to_plain_ones(activation: str, compiles: bool) -> None:
    plain = blocks(activation=activation)
    fp8 = copy.deepcopy(plain)
    convert_blocks(fp8)

    def run_sublayers(x: Tensor) -> Tensor:
        results: Tensor | LazyNorm = x
        for block in fp8:
            results = block._feed_forward(results)
        return materialize(results)

    x = torch.randn(T, D)
    gradient = torch.randn(T, D) / T
    results = []
    run = torch.compile(run_sublayers, backend="aot_eager", fullgraph=True) if compiles else run_sublayers
    for chain in (plain, fp8):
        x_grad = y = x.clone().requires_grad_()
        if chain is plain:
            for block in plain:
                y = block.feed_forward_norm(y + block.feed_forward(y))
        else:
            y = run(x_grad)
        y.backward(gradient.to(y.dtype))
        trained = [name for name, weight in chain.named_parameters() if weight.grad is not None]
        assert len(trained) == 12
        results.append([y, x_grad.grad, *(weight.grad for weight in chain.parameters() if weight.grad is not None)])
    (y, *reference), (z, *actual) = results
    assert z.dtype == torch.bfloat16
    assert 0.002 < relative_error(z, y.detach()) < 0.05
    assert all(
        one.dtype == torch.float32 and relative_error(one, other) < 0.12
        for one, other in zip(actual, reference, strict=True)
    )
    assert relative_error(actual[-1], reference[-1]) < 0.005  # the last norm's bias: only rounded


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
        rotates = cls._seen(qkv)
        fp8 = ops.quantize(rotates.flatten(1), context[-1], ops.E4M3)
        return rotates.bfloat16(), torch.zeros(qkv.shape[2], len(qkv)), fp8, ops.transpose(fp8)

    @staticmethod
    def rotate_qk(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = qkv.unbind(1)
        rotary = RotaryEmbedding(cos, sin).rotate
        return torch.stack((rotary(q), rotary(k), v), 1)

    @classmethod
    def attention_backward(cls, gradient: Tensor, qkv: Tensor, *context: Any) -> Tensor:
        assert len(context) == 7
        x_grad = qkv.detach().float().requires_grad_()
        with torch.enable_grad():
            (results,) = torch.autograd.grad(cls._seen(x_grad), x_grad, gradient.float())
        return results.bfloat16()

    @classmethod
    def attention_backward_fp8(cls, gradient: Tensor, qkv: Tensor, *context: Any) -> tuple[Tensor, Tensor, Tensor]:
        return cls._small(cls.attention_backward(gradient, qkv, *context[:-1]), context[-1])

    @classmethod
    def rotary_backward_fp8(
        cls, gradient: Tensor, cos: Tensor, sin: Tensor, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        return cls._small(cls.rotate_qk(gradient, cos, -sin), scale)

    @staticmethod
    def _small(gradient: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        gradient = gradient.flatten(1)
        fp8 = ops.quantize(gradient, scale, ops.E5M2)
        return fp8, ops.transpose(fp8), gradient.float().sum(0, keepdim=True)


@pytest.mark.parametrize("by_layer", [False, True])
@pytest.mark.parametrize("with_rotary", [False, True])
def test_attention_is_close_to_the_plain_one_with_and_without_rotary(
    with_rotary: bool, by_layer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("attention", "elementwise"):
        monkeypatch.setitem(sys.modules, f"bertsmith.nn.kernels.{name}", Kernels())
        monkeypatch.setattr(kernels, name, sys.modules[f"bertsmith.nn.kernels.{name}"], raising=False)
    plain = blocks()
    fp8 = copy.deepcopy(plain)
    (layers.convert_layers if by_layer else convert_blocks)(fp8)
    rotary = rotary_embedding(torch.arange(T), head_width=D // 2, theta=100.0)
    x, gradient = torch.randn(T, D).bfloat16().float(), torch.randn(T, D) / T
    results = []
    for chain, kernel, rotates in (
        (plain, "dense", with_rotary),
        (fp8, "triton", with_rotary),
        (fp8, "triton", not with_rotary),
    ):
        context = context_for_kernel(
            torch.zeros(1, T, dtype=torch.int32), torch.tensor([0, T]), kernel=kernel, max_seqlen=T, causal=False
        )
        x_grad = x.clone().requires_grad_()
        chain.zero_grad()
        y: Tensor | LazyNorm = x_grad
        for block in chain:
            y, _ = block(y, replace(context, rotary=rotary if rotates else None))
        materialize(y).backward(gradient.to(materialize(y).dtype))
        results.append([materialize(y), x_grad.grad, *(weight.grad for weight in chain.parameters())])
    (y, *reference), (z, *actual), (other, *_) = results
    assert 0.002 < relative_error(z, y.detach()) < 0.05
    assert relative_error(other, y.detach()) > 1.5 * relative_error(z, y.detach())  # rotation changes the result
    names = ["x", *(name for name, _ in plain.named_parameters())]
    for name, one, expected in zip(names, actual, reference, strict=True):
        assert relative_error(one, expected) < 0.15, name


def test_dropout_applies_to_the_sublayer_output_only() -> None:
    (block,) = blocks(1, dropout=0.5)
    convert_blocks(nn.ModuleList([block]))
    x = torch.randn(T, D).bfloat16().float().requires_grad_()
    with torch.no_grad():
        y = block.feed_forward.eval()(x)
    torch.manual_seed(3)
    added = (block.train()._feed_forward(x).total_TD - x).detach()
    dropped_share = (added.abs() < 0.03).float().mean()  # kept values are doubled; bfloat16 leaves some near 0
    assert 0.45 < float(dropped_share) < 0.6
    assert relative_error(added[added.abs() > 0.03], 2 * y[added.abs() > 0.03]) < 0.1
