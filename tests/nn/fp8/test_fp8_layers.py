"""FP8 layers are close to plain ones forward and backward, compile as one graph, and train a model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from model_fixtures import pretraining_model
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from training.test_trainer import bert_feed

from bertsmith.nn.fp8.layers import Float8FeedForward, Float8Linear, Float8Output, convert_layers
from bertsmith.nn.fp8.ops import INPUT_SCALE, WEIGHT_SCALE
from bertsmith.nn.layer_config import LayerConfig
from bertsmith.nn.transformer import FeedForward, make_block
from bertsmith.training.optimizers import adamw
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.trainer import Trainer

T, K, N = 256, 64, 48


def layers() -> tuple[nn.Linear, Float8Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(K, N)
    nn.init.normal_(plain.weight, std=0.05)
    other = nn.Linear(K, N)
    other.load_state_dict(plain.state_dict())
    return plain, Float8Linear(other)


def off(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.detach().float() - theirs).norm() / theirs.norm())


def test_close_to_the_plain_layer_forward_and_backward() -> None:
    plain, small = layers()
    x = torch.randn(T, K, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    expected, found = plain(x), small(again)
    assert found.dtype == torch.bfloat16
    expected.backward(gradient)
    found.backward(gradient.bfloat16())
    # three bits of fraction: each factor is off by up to 1/16, at random; two for gradients
    assert 0.005 < off(found.detach(), expected.detach()) < 0.05
    assert 0.005 < off(again.grad, x.grad) < 0.08
    assert off(small.weight.grad, plain.weight.grad) < 0.005  # in bfloat16
    assert off(small.bias.grad, plain.bias.grad) < 0.005
    assert small.weight.grad.dtype == torch.float32


def test_without_a_bias() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(K, N, bias=False)
    small, x = Float8Linear(plain), torch.randn(T, K)
    found = small(x)
    found.sum().backward()
    assert off(found, x @ plain.weight.detach().T) < 0.05
    assert small.weight.grad is not None


def test_large_values_saturate() -> None:
    _, small = layers()
    with torch.no_grad():
        small.weight.fill_(1e9)
        small.bias.zero_()
    found = small(torch.full((16, K), -1e9))
    assert found.isfinite().all()
    assert off(found, torch.full_like(found, -K * (448 / INPUT_SCALE) * (448 / WEIGHT_SCALE)).float()) < 0.01


def test_a_layer_in_evaluation_equals_the_plain_one() -> None:
    plain, small = layers()
    x = torch.randn(T, K)
    assert torch.equal(small.eval()(x), plain(x))
    with torch.no_grad():
        assert torch.equal(small.train()(x), plain(x))


def test_compiles_in_one_graph() -> None:
    _, small = layers()
    x = torch.randn(T, K, requires_grad=True)
    small(x).sum().backward()
    expected, x.grad = x.grad, None
    compiled = torch.compile(small, backend="aot_eager", fullgraph=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, expected)


def test_shared_weights_are_cast_once() -> None:
    torch.manual_seed(0)
    feeds, made = Float8FeedForward(FeedForward(width=32, inner=64, layer_config=LayerConfig())).train(), list[str]()

    def noted(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        made.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)

    def three(x_TD: Tensor) -> Tensor:
        return feeds(feeds(feeds(x_TD)))

    x = torch.randn(32, 32, requires_grad=True)
    backend = aot_autograd(fw_compiler=noted, bw_compiler=noted, partition_fn=min_cut_rematerialization_partition)
    torch.compile(three, backend=backend, fullgraph=True)(x).sum().backward()
    assert sum("_scaled_mm" in name for name in made) == 3 * 6
    assert sum("quantize_weight" in name for name in made) == 2
    assert sum("multiply" in name for name in made) == 1


def test_a_feed_forward_with_relu_is_converted_layer_by_layer() -> None:
    part = make_block(width=32, heads=2, inner=64, layer_config=LayerConfig(activation="relu"))
    assert convert_layers(part) == 4
    assert type(part.feed_forward) is FeedForward
    assert type(part.feed_forward.expand) is Float8Linear


def test_converted_layers_and_parameter_names() -> None:
    part = make_block(width=32, heads=2, inner=64, layer_config=LayerConfig())
    odd = make_block(width=24, heads=2, inner=64, layer_config=LayerConfig())
    names = list(part.state_dict())
    assert convert_layers(part) == 4
    assert type(part.attention.output) is Float8Output
    assert not part.attention.qkv.fp8_dx
    assert part.feed_forward.expand.fp8_dx
    assert part.feed_forward.contract.fp8_dx
    assert list(part.state_dict()) == names
    assert convert_layers(part) == 0
    assert convert_layers(odd) == 0  # no side of a matrix may be odd


def test_input_gradients_in_bfloat16_on_request() -> None:
    plain, small = layers()
    small.fp8_dx = False
    x = torch.randn(T, K, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    plain(x).backward(gradient)
    found = small(again)
    found.backward(gradient.bfloat16())
    assert off(found, plain(x).detach()) > 0.005
    assert off(again.grad, x.grad) < 0.005
    assert off(small.weight.grad, plain.weight.grad) < 0.005


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_a_feed_forward_is_close_to_the_plain_one(activation: str) -> None:
    torch.manual_seed(0)
    plain = FeedForward(width=K, inner=2 * K, layer_config=LayerConfig(activation=activation))
    small = Float8FeedForward(copy.deepcopy(plain))
    x = torch.randn(T, K, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, K) / T
    expected, found = plain(x), small(again)
    expected.backward(gradient)
    found.backward(gradient.bfloat16())
    assert 0.005 < off(found, expected.detach()) < 0.08
    assert 0.005 < off(again.grad, x.grad) < 0.1
    for (name, ours), theirs in zip(small.named_parameters(), plain.parameters(), strict=True):
        # the first matrix meets eight bits twice on its way back: gradients of two bits of fraction, and what went in
        assert off(ours.grad, theirs.grad) < (0.09 if name == "expand.weight" else 0.08)
        assert ours.grad.dtype == torch.float32
    assert off(small.contract.bias.grad, plain.contract.bias.grad) < 0.005
    assert torch.equal(small.eval()(x), plain(x))


def test_the_output_projection_takes_fp8_inputs() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(K, N)
    small = Float8Output(copy.deepcopy(plain))
    x = torch.randn(T, K, requires_grad=True)
    again = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    expected = plain(x)
    expected.backward(gradient)
    found = small.project(again, (again.detach() * INPUT_SCALE).to(torch.float8_e4m3fn))
    found.backward(gradient.bfloat16())
    assert torch.equal(small(x), expected)  # what nobody cast stays as it is
    assert 0.005 < off(found, expected.detach()) < 0.05
    assert 0.005 < off(again.grad, x.grad) < 0.08
    for ours, theirs in zip(small.parameters(), plain.parameters(), strict=True):
        assert off(ours.grad, theirs.grad) < 0.005  # in bfloat16


@pytest.mark.parametrize("rows", [16, 25])
def test_a_feed_forward_takes_any_number_of_tokens(rows: int) -> None:
    """FP8 products need a multiple of 16 tokens."""
    torch.manual_seed(0)
    plain = FeedForward(width=K, inner=2 * K, layer_config=LayerConfig())
    small, x = Float8FeedForward(copy.deepcopy(plain)), torch.randn(rows, K)
    gradient = torch.randn(rows, K) / rows
    plain(x).backward(gradient)
    small(x).backward(gradient.bfloat16())
    for ours, theirs in zip(small.parameters(), plain.parameters(), strict=True):
        assert off(ours.grad, theirs.grad) < 0.12


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_a_model_trains_as_in_bfloat16() -> None:
    curves, batches = {}, bert_feed(8, rows=8)(0)
    for precision in ("bf16", "fp8"):
        torch.manual_seed(0)
        model = pretraining_model(layers=2, dropout=0.0, attention_dropout=0.0, width=32, heads=2)
        trainer = Trainer(
            model,
            lambda step: batches,
            plan=TrainingPlan(steps=8, learning_rate=1e-2),
            optimizer=adamw.Config(),
            precision=precision,
        )
        curves[precision] = torch.tensor([step.loss for step in trainer])
        assert isinstance(model.encoder.blocks[0].attention.qkv, Float8Linear) == (precision == "fp8")
    change = curves["bf16"][0] - curves["bf16"][-1]
    assert change > 0.5
    assert not torch.equal(curves["bf16"], curves["fp8"])
    assert (curves["bf16"] - curves["fp8"]).abs().max() < 0.1 * change
