"""All attention kernels agree and respect document borders. (The real varlen kernel: tests/gpu.)"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import randomize_weights, relative_difference
from torch.nn.attention import varlen

from bertsmith.nn import attention as room
from bertsmith.nn.attention import Attention, AttentionContext, Kernel, choose_kernel, context_for_kernel

ROWS, LENGTH, WIDTH = 3, 12, 16
DOCUMENT = torch.tensor([[1] * 5 + [2] * 7, [1] * 3 + [2] * 3 + [3] * 2 + [0] * 4, [1] * 12], dtype=torch.int32)
BOUNDS = torch.tensor([0, 5, 12, 15, 18, 20, 24, 36, 36], dtype=torch.int32)


def attention() -> Attention:
    return randomize_weights(Attention(width=WIDTH, heads=2, dropout=0.0)).eval()


def context(kernel: Kernel, *, causal: bool = False, document: torch.Tensor = DOCUMENT) -> AttentionContext:
    return context_for_kernel(document, BOUNDS, kernel=kernel, max_seqlen=LENGTH, causal=causal)


def inputs(seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS * LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_agree(causal: bool) -> None:
    layer, x_TD = attention(), inputs()
    masked, none = layer(x_TD, context("masked", causal=causal))
    explicit, probabilities = layer(x_TD, context("eager", causal=causal))
    assert none is None
    assert probabilities.shape == (ROWS, 2, LENGTH, LENGTH)
    assert relative_difference(explicit, masked) < 1e-6
    one = torch.ones_like(DOCUMENT)
    dense, _ = layer(x_TD, context("dense", causal=causal, document=one))
    assert relative_difference(dense, layer(x_TD, context("masked", causal=causal, document=one))[0]) < 1e-6
    assert relative_difference(dense, masked) > 1e-2, "with one document per row the output differs"


@pytest.mark.parametrize("causal", [False, True])
def test_texts_of_equal_length_need_no_mask(causal: bool) -> None:
    layer, x_TD = attention(), inputs()
    runs = ((3, 2), (1, 12), (2, 5), (1, 8))
    sizes = [length for texts, length in runs for _ in range(texts)]
    document = torch.repeat_interleave(torch.arange(1, 8), torch.tensor(sizes))[None].int()
    masked, _ = layer(x_TD, context_for_kernel(document, BOUNDS, kernel="masked", max_seqlen=12, causal=causal))
    found, none = layer(
        x_TD,
        context_for_kernel(
            document, BOUNDS, kernel="equal_lengths", max_seqlen=12, causal=causal, equal_length_runs=runs
        ),
    )
    assert none is None
    assert relative_difference(found, masked) < 1e-6
    positions = torch.tensor([0, 7, 35])
    some, _ = layer(
        x_TD,
        context_for_kernel(
            document, BOUNDS, kernel="equal_lengths", max_seqlen=12, causal=causal, equal_length_runs=runs
        ),
        positions,
    )
    assert relative_difference(some, masked[positions]) < 1e-6


REAL = inspect.signature(varlen.varlen_attn)


def in_a_loop(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bounds: Any, window_size: Any) -> torch.Tensor:
    """A reference implementation of the varlen kernel, sequence by sequence."""
    REAL.bind(q, k, v, *bounds, window_size=window_size)  # torch's own takes this call
    assert window_size in ((-1, -1), (-1, 0))
    assert bounds[0] is bounds[1]
    out = torch.full_like(q, torch.nan)
    for begin, end in zip(bounds[0][:-1].tolist(), bounds[0][1:].tolist(), strict=True):
        assert end - begin <= bounds[2] == bounds[3]
        part = (t[begin:end].transpose(0, 1) for t in (q, k, v))
        out[begin:end] = F.scaled_dot_product_attention(*part, is_causal=window_size == (-1, 0)).transpose(0, 1)
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_arguments_of_the_varlen_kernel(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x_TD = attention(), inputs()
    masked, _ = layer(x_TD, context("masked", causal=causal))
    monkeypatch.setattr(varlen, "varlen_attn", in_a_loop)
    assert relative_difference(layer(x_TD, context("varlen", causal=causal))[0], masked) < 1e-6
    positions = torch.tensor([30, 2, 2])
    assert relative_difference(layer(x_TD, context("varlen", causal=causal), positions)[0], masked[positions]) < 1e-6


@pytest.mark.parametrize("causal", [False, True])
def test_probabilities_respect_the_mask_and_sum_to_one(causal: bool) -> None:
    _, probabilities = attention()(inputs(), context("eager", causal=causal))
    allowed = DOCUMENT[:, :, None] == DOCUMENT[:, None, :]
    if causal:
        allowed &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    visible = probabilities.transpose(0, 1)
    assert (visible[:, ~allowed] == 0).all()
    assert (visible[:, allowed] > 0).all()
    assert (probabilities.sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("kernel", ["masked", "eager"])
def test_selected_tokens(kernel: Kernel) -> None:
    layer, x_TD = attention(), inputs()
    positions = torch.tensor([0, 35, 7, 7, 14])
    assert (
        relative_difference(layer(x_TD, context(kernel), positions)[0], layer(x_TD, context(kernel))[0][positions])
        < 1e-6
    )


def test_attention_equals_the_formula_per_head_and_document() -> None:
    """Against the formula of Vaswani et al., head by head and document by document."""
    layer, x_TD = attention(), inputs()
    q, k, v = (x_TD @ layer.qkv.weight.T + layer.qkv.bias).split(WIDTH, dim=1)
    visible = torch.zeros_like(x_TD)
    for begin, end in zip(BOUNDS[:-2].tolist(), BOUNDS[1:-1].tolist(), strict=True):
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            weights = torch.softmax(q[begin:end, part] @ k[begin:end, part].T / 8**0.5, -1)
            visible[begin:end, part] = weights @ v[begin:end, part]
    assert (
        relative_difference(layer(x_TD, context("masked"))[0], visible @ layer.output.weight.T + layer.output.bias)
        < 1e-6
    )


def test_dropout_only_in_training() -> None:
    layer, x_TD = Attention(width=WIDTH, heads=2, dropout=0.5), inputs()
    for kernel in ("masked", "eager"):
        layer.train()
        assert relative_difference(layer(x_TD, context(kernel))[0], layer(x_TD, context(kernel))[0]) > 1e-2
        layer.eval()
        assert torch.equal(layer(x_TD, context(kernel))[0], layer(x_TD, context(kernel))[0])


USUAL = {
    "device": "cuda",
    "dtype": torch.bfloat16,
    "dense": False,
    "head_width": 64,
    "dropout": 0.0,
    "return_attentions": False,
}


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, "varlen"),
        ({"dtype": torch.float16}, "varlen"),
        ({"dtype": torch.float32}, "masked"),
        ({"device": "cpu"}, "masked"),
        ({"dropout": 0.1}, "masked"),
        ({"head_width": 20}, "masked"),
        ({"head_width": 512}, "masked"),
        ({"equal_length_runs": True}, "varlen"),
        ({"equal_length_runs": True, "device": "cpu"}, "equal_lengths"),
        ({"equal_length_runs": True, "dtype": torch.float32}, "equal_lengths"),
        ({"equal_length_runs": True, "dense": True}, "dense"),
        ({"equal_length_runs": True, "return_attentions": True}, "eager"),
        ({"dense": True}, "dense"),
        ({"requires_grad": True}, "triton"),
        ({"requires_grad": True, "dropout": 0.1}, "triton"),
        ({"requires_grad": True, "dense": True, "equal_length_runs": True}, "triton"),
        ({"requires_grad": True, "head_width": 24}, "varlen"),
        ({"requires_grad": True, "device": "cpu"}, "masked"),
        ({"requires_grad": True, "dtype": torch.float32}, "masked"),
        ({"requires_grad": True, "return_attentions": True}, "eager"),
        ({"dense": True, "device": "cpu", "dropout": 0.1}, "dense"),
        ({"dense": True, "return_attentions": True}, "eager"),
    ],
)
def test_choice_of_the_kernel(changes: dict[str, object], kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "HAS_TRITON", True)
    assert choose_kernel(**{**USUAL, **changes}) == kernel  # type: ignore[arg-type]
