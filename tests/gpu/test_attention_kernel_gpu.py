"""On CUDA: our attention and rotary kernels, compiled GELU and dropout equal their references, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import VOCABULARY, random_batch
from torch import Tensor

from bertsmith.encoders import modern
from bertsmith.model_io.model import Model
from bertsmith.nn import attention
from bertsmith.nn.activations import get_activation
from bertsmith.nn.attention import Attention, AttentionContext, AttentionShape, make_attention_context, rotary_embedding
from bertsmith.nn.dropout import Dropout
from bertsmith.nn.fp8 import enable_fp8
from bertsmith.objectives import masked_lm

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
EVEN = [0, 300, 512, 1024, 1100, 1111, 1700, 2048, 2048]
RAGGED = [0, 300, 512, 1001]


def sequence_bounds_of(cu_seqlens: list[int]) -> tuple[Tensor, Tensor]:
    bound = torch.tensor(cu_seqlens, dtype=torch.int32, device="cuda")
    text = torch.searchsorted(bound, torch.arange(cu_seqlens[-1], dtype=torch.int32, device="cuda"), right=True)
    return bound[text - 1], bound[text]


def exact(qkv: Tensor, begin: Tensor, *, causal: bool) -> Tensor:
    """Masked attention in float32 [T, H, K]."""
    q, k, v = (part.transpose(0, 1).float() for part in qkv.unbind(1))
    outputs = begin[:, None] == begin
    return F.scaled_dot_product_attention(q, k, v, outputs.tril() if causal else outputs).transpose(0, 1)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("cu_seqlens", [EVEN, RAGGED], ids=["even", "ragged"])
def test_equal_to_masked_attention(cu_seqlens: list[int], width: int, causal: bool, compiles: bool) -> None:
    from bertsmith.nn.kernels.attention import attend

    begin, end = sequence_bounds_of(cu_seqlens)
    torch.manual_seed(0)
    qkv = torch.randn(cu_seqlens[-1], 3, 4, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(cu_seqlens[-1], 4, width, device="cuda", dtype=torch.bfloat16)
    torch.compiler.reset()  # torch limits recompilations
    run = torch.compile(attend, fullgraph=True) if compiles else attend
    results = run(qkv, begin, end, dropout=0.0, causal=causal)
    (actual,) = torch.autograd.grad(results, qkv, gradient)
    expected = exact(qkv, begin, causal=causal)
    (reference,) = torch.autograd.grad(expected, qkv, gradient.float())
    assert (results - expected).abs().max() < 0.02
    assert (actual - reference).abs().max() < 0.05
    assert (actual - reference).norm() < 0.01 * reference.norm()


@pytest.mark.parametrize("cu_seqlens", [EVEN, RAGGED], ids=["even", "ragged"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_fp8_outputs_and_gradients_with_transposes_and_sums(
    cu_seqlens: list[int], width: int, dropout: float, causal: bool
) -> None:
    from bertsmith.nn.kernels import attention as kernels

    torch.manual_seed(0)
    args = *sequence_bounds_of(cu_seqlens), kernels.draw_dropout(cu_seqlens[-1], torch.device("cuda"), dropout)
    qkv = torch.randn(cu_seqlens[-1], 3, 4, width, device="cuda", dtype=torch.bfloat16)
    gradient = torch.randn(cu_seqlens[-1], 4, width, device="cuda", dtype=torch.bfloat16)
    outputs = kernels.attention_forward(qkv, *args, dropout, causal)
    exact = kernels.attention_backward(gradient, qkv, *args, *outputs, dropout, causal).flatten(1).float()
    dqkv8, dqkv8_t, sums = kernels.attention_backward_fp8(gradient, qkv, *args, *outputs, dropout, causal, 16.0)
    *repeated, out8, out8_t = kernels.attention_forward_fp8(qkv, *args, dropout, causal, 8.0)
    assert all(torch.equal(one, other) for one, other in zip(outputs, repeated, strict=True))
    assert (out8.float() / 8 - outputs[0].flatten(1).float()).norm() < 0.04 * outputs[0].float().norm()
    assert (dqkv8.float() / 16 - exact).norm() < 0.08 * exact.norm()
    for one, other in ((dqkv8, dqkv8_t), (out8, out8_t)):
        assert torch.equal(other.view(torch.uint8)[:, : cu_seqlens[-1]], one.view(torch.uint8).t())
        assert not other.view(torch.uint8)[:, cu_seqlens[-1] :].any()
    assert torch.allclose(sums.sum(0), exact.sum(0), rtol=0.01, atol=0.1)


@pytest.mark.parametrize("cu_seqlens", [EVEN, RAGGED], ids=["even", "ragged"])
def test_an_fp8_layer_is_close_to_the_plain_one(cu_seqlens: list[int]) -> None:
    torch.manual_seed(0)
    plain = Attention(width=256, heads=4, dropout=0.0).cuda().train()
    fp8 = copy.deepcopy(plain)
    assert enable_fp8(fp8, blocks=False) == 2
    x, gradient = (torch.randn(cu_seqlens[-1], 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    context = AttentionContext(
        "triton",
        1,
        False,
        torch.tensor(cu_seqlens, device="cuda"),
        1024,
        None,
        sequence_bounds=sequence_bounds_of(cu_seqlens),
    )
    results = []
    for run, layer in ((plain, plain), (fp8, fp8), (torch.compile(fp8, fullgraph=True), fp8)):
        own_value = x.clone().requires_grad_()
        layer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out, _ = run(own_value, context)
        out.backward(gradient / len(gradient))
        results.append([out.detach(), own_value.grad, *(weight.grad.clone() for weight in layer.parameters())])
    for reference, actual, compiled in zip(*results, strict=True):
        assert (actual - reference).float().norm() < 0.12 * reference.float().norm()
        assert (compiled - actual).float().norm() < 0.02 * actual.float().norm()


def test_dropout_is_a_function_of_the_seed_and_unbiased() -> None:
    from bertsmith.nn.kernels.attention import attend

    begin, end = sequence_bounds_of([0, 1000, 2048])
    qkv = torch.randn(2048, 3, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def outputs(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attend(qkv, begin, end, dropout=0.3, causal=False)

    assert torch.equal(outputs(1), outputs(1))
    assert not torch.equal(outputs(1), outputs(2))
    with torch.no_grad():
        mean = torch.stack([outputs(seed).float() for seed in range(200)]).mean(0)
    expected = exact(qkv, begin, causal=False)
    one = (outputs(0) - expected).norm()
    assert (mean - expected).norm() < one / 10  # the error of the mean of 200 draws
    # the gradient belongs to the same draw as the output
    torch.manual_seed(3)
    (gradient,) = torch.autograd.grad(attend(qkv, begin, end, dropout=0.3, causal=False).float().sum(), qkv)
    (other,) = torch.autograd.grad(outputs(4).float().sum(), qkv)
    (repeated,) = torch.autograd.grad(outputs(3).float().sum(), qkv)
    assert torch.equal(gradient, repeated)
    assert not torch.equal(gradient, other)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_only_training_in_half_precision_uses_the_triton_kernel(dropout: float) -> None:
    batch = random_batch([60, 60], length=64).to("cuda")
    shape = AttentionShape(heads=4, head_width=64, dropout=dropout, causal=False)
    assert make_attention_context(batch, shape, dtype=torch.bfloat16, training=True).kernel == "triton"
    with torch.no_grad():
        assert make_attention_context(batch, shape, dtype=torch.bfloat16, training=True).kernel != "triton"
    assert make_attention_context(batch, shape, dtype=torch.float32, training=True).kernel != "triton"


def test_compiled_gelu_and_dropout() -> None:
    x = torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)
    x = x.masked_fill(x == 0, 1.0).requires_grad_()  # below, zero means dropped
    gelu = get_activation("gelu")
    results, expected = torch.compile(gelu, fullgraph=True)(x), gelu(x)
    assert (results - expected).abs().max() < 0.02
    (actual,), (reference,) = (torch.autograd.grad(some.float().sum(), x) for some in (results, expected))
    assert (actual - reference).abs().max() < 0.02
    drops = torch.compile(Dropout(0.1).train(), fullgraph=True)
    some = drops(torch.ones_like(x))
    assert abs((some == 0).float().mean().item() - 0.1) < 0.003
    (gradient,) = torch.autograd.grad((dropped := drops(x)).float().sum(), x)
    assert torch.equal(gradient == 0, dropped == 0)


def test_rotary_models_train_equally_with_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    how = {"layers": 2, "width": 64, "heads": 2, "norm": "after", "gated": False, "biases": True}
    encoder = modern.Config(**how, vocab_size=VOCABULARY.size, max_positions=40)  # type: ignore[arg-type]
    model = Model.build(encoder, [masked_lm.Config()], vocabulary=VOCABULARY, seed=3).cuda()
    batch = model.corrupt(random_batch([12, 9, 23, 7, 40, 5], length=40, pack=True).to("cuda"))
    results = []
    for disabled in (set(), {"triton"}):
        monkeypatch.setattr(attention, "DISABLED_KERNELS", disabled)
        torch.compiler.reset()
        model.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            assert (model.encoder._attention_context(batch, return_attentions=False).kernel == "triton") == (
                not disabled
            )
            loss = torch.compile(model)(batch).mean()
        loss.backward()
        plain = [
            weight.grad for name, weight in model.named_parameters() if "qkv" not in name
        ]  # those of qkv are noise here
        results.append([loss.detach()[None], *(gradient for gradient in plain if gradient is not None)])
    assert all((one - other).norm() < 0.05 * other.norm() for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("tokens", [256, 203])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_rotation_forward_and_backward_in_fp8(tokens: int, width: int) -> None:
    from bertsmith.nn.kernels import elementwise

    torch.manual_seed(0)
    qkv, gradient = (torch.randn(tokens, 3, 4, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    rotary = rotary_embedding(torch.arange(tokens, device="cuda"), head_width=width, theta=100.0)
    own_value = qkv.clone().requires_grad_()
    q, k, v = own_value.unbind(1)
    right = torch.stack((rotary.rotate(q), rotary.rotate(k), v), 1)
    (exact,) = torch.autograd.grad(right.float(), own_value, gradient.float())
    assert torch.allclose(elementwise.rotate_qk(qkv, rotary.cos, rotary.sin), right, atol=0.02)
    dqkv8, dqkv8_t, sums = elementwise.rotary_backward_fp8(gradient, rotary.cos, rotary.sin, 16.0)
    exact = exact.flatten(1).float()
    assert (dqkv8.float() / 16 - exact).norm() < 0.08 * exact.norm()
    assert torch.equal(dqkv8_t.view(torch.uint8)[:, :tokens], dqkv8.view(torch.uint8).t())
    assert not dqkv8_t.view(torch.uint8)[:, tokens:].any()
    assert torch.allclose(sums.sum(0), exact.sum(0), rtol=0.01, atol=0.1)
