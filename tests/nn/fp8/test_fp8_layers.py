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


def linear_layers() -> tuple[nn.Linear, Float8Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(K, N)
    nn.init.normal_(plain.weight, std=0.05)
    other = nn.Linear(K, N)
    other.load_state_dict(plain.state_dict())
    return plain, Float8Linear(other)


def relative_error(actual: Tensor, reference: Tensor) -> float:
    return float((actual.detach().float() - reference).norm() / reference.norm())


def test_close_to_the_plain_layer_forward_and_backward() -> None:
    plain, fp8 = linear_layers()
    x = torch.randn(T, K, requires_grad=True)
    x_fp8 = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    expected, out = plain(x), fp8(x_fp8)
    assert out.dtype == torch.bfloat16
    expected.backward(gradient)
    out.backward(gradient.bfloat16())
    # three mantissa bits: each factor has a random error of up to 1/16; two bits for gradients
    assert 0.005 < relative_error(out.detach(), expected.detach()) < 0.05
    assert 0.005 < relative_error(x_fp8.grad, x.grad) < 0.08
    assert relative_error(fp8.weight.grad, plain.weight.grad) < 0.005  # in bfloat16
    assert relative_error(fp8.bias.grad, plain.bias.grad) < 0.005
    assert fp8.weight.grad.dtype == torch.float32


def test_without_a_bias() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(K, N, bias=False)
    fp8, x = Float8Linear(plain), torch.randn(T, K)
    out = fp8(x)
    out.sum().backward()
    assert relative_error(out, x @ plain.weight.detach().T) < 0.05
    assert fp8.weight.grad is not None


def test_large_values_saturate() -> None:
    _, fp8 = linear_layers()
    with torch.no_grad():
        fp8.weight.fill_(1e9)
        fp8.bias.zero_()
    out = fp8(torch.full((16, K), -1e9))
    assert out.isfinite().all()
    assert relative_error(out, torch.full_like(out, -K * (448 / INPUT_SCALE) * (448 / WEIGHT_SCALE)).float()) < 0.01


def test_a_layer_in_evaluation_equals_the_plain_one() -> None:
    plain, fp8 = linear_layers()
    x = torch.randn(T, K)
    assert torch.equal(fp8.eval()(x), plain(x))
    with torch.no_grad():
        assert torch.equal(fp8.train()(x), plain(x))


def test_compiles_in_one_graph() -> None:
    _, fp8 = linear_layers()
    x = torch.randn(T, K, requires_grad=True)
    fp8(x).sum().backward()
    expected, x.grad = x.grad, None
    compiled = torch.compile(fp8, backend="aot_eager", fullgraph=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, expected)


def test_shared_weights_are_cast_once() -> None:
    torch.manual_seed(0)
    feed_forward, nodes = (
        Float8FeedForward(FeedForward(width=32, inner=64, layer_config=LayerConfig())).train(),
        list[str](),
    )

    def record(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        nodes.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph)

    def run_three_times(x_TD: Tensor) -> Tensor:
        return feed_forward(feed_forward(feed_forward(x_TD)))

    x = torch.randn(32, 32, requires_grad=True)
    backend = aot_autograd(fw_compiler=record, bw_compiler=record, partition_fn=min_cut_rematerialization_partition)
    torch.compile(run_three_times, backend=backend, fullgraph=True)(x).sum().backward()
    assert sum("_scaled_mm" in name for name in nodes) == 3 * 6
    assert sum("quantize_weight" in name for name in nodes) == 2
    assert sum("multiply" in name for name in nodes) == 1


def test_a_feed_forward_with_relu_is_converted_layer_by_layer() -> None:
    block = make_block(width=32, heads=2, inner=64, layer_config=LayerConfig(activation="relu"))
    assert convert_layers(block) == 4
    assert type(block.feed_forward) is FeedForward
    assert type(block.feed_forward.expand) is Float8Linear


def test_converted_layers_and_parameter_names() -> None:
    block = make_block(width=32, heads=2, inner=64, layer_config=LayerConfig())
    odd = make_block(width=24, heads=2, inner=64, layer_config=LayerConfig())
    names = list(block.state_dict())
    assert convert_layers(block) == 4
    assert type(block.attention.output) is Float8Output
    assert not block.attention.qkv.fp8_dx
    assert block.feed_forward.expand.fp8_dx
    assert block.feed_forward.contract.fp8_dx
    assert list(block.state_dict()) == names
    assert convert_layers(block) == 0
    assert convert_layers(odd) == 0  # matrix sizes must be even


def test_input_gradients_in_bfloat16_on_request() -> None:
    plain, fp8 = linear_layers()
    fp8.fp8_dx = False
    x = torch.randn(T, K, requires_grad=True)
    x_fp8 = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    plain(x).backward(gradient)
    out = fp8(x_fp8)
    out.backward(gradient.bfloat16())
    assert relative_error(out, plain(x).detach()) > 0.005
    assert relative_error(x_fp8.grad, x.grad) < 0.005
    assert relative_error(fp8.weight.grad, plain.weight.grad) < 0.005


@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_a_feed_forward_is_close_to_the_plain_one(activation: str) -> None:
    torch.manual_seed(0)
    plain = FeedForward(width=K, inner=2 * K, layer_config=LayerConfig(activation=activation))
    fp8 = Float8FeedForward(copy.deepcopy(plain))
    x = torch.randn(T, K, requires_grad=True)
    x_fp8 = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, K) / T
    expected, out = plain(x), fp8(x_fp8)
    expected.backward(gradient)
    out.backward(gradient.bfloat16())
    assert 0.005 < relative_error(out, expected.detach()) < 0.08
    assert 0.005 < relative_error(x_fp8.grad, x.grad) < 0.1
    for (name, actual), reference in zip(fp8.named_parameters(), plain.parameters(), strict=True):
        # the gradient of the first matrix is quantized twice: gradients with two mantissa bits, and inputs
        assert relative_error(actual.grad, reference.grad) < (0.09 if name == "expand.weight" else 0.08)
        assert actual.grad.dtype == torch.float32
    assert relative_error(fp8.contract.bias.grad, plain.contract.bias.grad) < 0.005
    assert torch.equal(fp8.eval()(x), plain(x))


def test_the_output_projection_takes_fp8_inputs() -> None:
    torch.manual_seed(0)
    plain = nn.Linear(K, N)
    fp8 = Float8Output(copy.deepcopy(plain))
    x = torch.randn(T, K, requires_grad=True)
    x_fp8 = x.detach().clone().requires_grad_()
    gradient = torch.randn(T, N) / T
    expected = plain(x)
    expected.backward(gradient)
    out = fp8.project(x_fp8, (x_fp8.detach() * INPUT_SCALE).to(torch.float8_e4m3fn))
    out.backward(gradient.bfloat16())
    assert torch.equal(fp8(x), expected)  # weights that were not cast are unchanged
    assert 0.005 < relative_error(out, expected.detach()) < 0.05
    assert 0.005 < relative_error(x_fp8.grad, x.grad) < 0.08
    for actual, reference in zip(fp8.parameters(), plain.parameters(), strict=True):
        assert relative_error(actual.grad, reference.grad) < 0.005  # in bfloat16


@pytest.mark.parametrize("rows", [16, 25])
def test_a_feed_forward_takes_any_number_of_tokens(rows: int) -> None:
    """FP8 products need a multiple of 16 tokens."""
    torch.manual_seed(0)
    plain = FeedForward(width=K, inner=2 * K, layer_config=LayerConfig())
    fp8, x = Float8FeedForward(copy.deepcopy(plain)), torch.randn(rows, K)
    gradient = torch.randn(rows, K) / rows
    plain(x).backward(gradient)
    fp8(x).backward(gradient.bfloat16())
    for actual, reference in zip(fp8.parameters(), plain.parameters(), strict=True):
        assert relative_error(actual.grad, reference.grad) < 0.12


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
