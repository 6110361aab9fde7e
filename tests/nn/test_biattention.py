"""The biattentive classification network: equal to its formulae for single texts and pairs, whatever is beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lstm_oracle import Array, lstm, softmax, weights_of
from model_fixtures import make_row, randomize_weights, relative_difference
from torch import Tensor, nn

from bertsmith.data.collate import collate
from bertsmith.nn.biattention import BiattentionPooler, MaxoutHead, TwoTexts
from bertsmith.nn.pooling import LayerConcatenation
from bertsmith.types import Batch, Encoding, Row

WIDTH, HIDDEN = 5, 3
TEXTS: list[tuple[list[int], list[int] | None]] = [
    ([7, 8, 9, 10], None),
    ([11, 12], [13, 14, 15]),
    ([16], None),
    ([17, 18, 19, 20, 21, 22], [23]),
    ([24, 25, 26], [27, 28, 29]),
]


def rows() -> list[Row]:
    return [make_row(np.array(one), None if other is None else np.array(other)) for one, other in TEXTS]


def table() -> Tensor:
    return torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def build() -> BiattentionPooler:
    pooler: BiattentionPooler = randomize_weights(
        BiattentionPooler(LayerConcatenation((1,), width=WIDTH, last=1), HIDDEN, dropout=0.0).double(), std=0.7
    )
    return pooler


def pooled(pooler: BiattentionPooler, batch: Batch, vectors: Tensor | None = None) -> Tensor:
    x_TW = table()[batch.input_ids.flatten()] if vectors is None else vectors
    result: Tensor = pooler(Encoding(x_TW, {}), batch, "classify")
    return result


def bilstm(module: Any, x: Array) -> Array:
    ways = [(module.forward_lstms[0], False), (module.backward_lstms[0], True)]
    return np.concatenate([lstm(x, weights_of(one), "_l0", backward=back)[0] for one, back in ways], 1)


def expected_vector(pooler: BiattentionPooler, first: list[int], second: list[int]) -> Array:
    """SPEC §2.9: A = X Yᵀ, column softmaxes, C_y for X and C_x for Y, [X; X - C; X * C], four poolings."""
    project = weights_of(pooler.project)
    embedded = [table().numpy()[ids] for ids in (first, second)]
    x, y = (bilstm(pooler.encode, np.maximum(one @ project["weight"].T + project["bias"], 0)) for one in embedded)
    affinity = x @ y.T
    context_of_x = softmax(affinity.T, axis=0).T @ y  # each column of Aᵀ is a token of x
    context_of_y = softmax(affinity, axis=0).T @ x
    parts = []
    for side, (own, context) in enumerate(((x, context_of_x), (y, context_of_y))):
        integrated = bilstm(pooler.integrate[side], np.concatenate([own, own - context, own * context], 1))
        score = weights_of(pooler.score[side])
        beta = softmax(integrated @ score["weight"][0] + score["bias"][0])
        parts += [integrated.max(0), integrated.mean(0), integrated.min(0), beta @ integrated]
    return np.concatenate(parts)


@torch.no_grad()
def test_equal_to_its_formulae_for_single_texts_and_pairs() -> None:
    """A single text is both texts; special tokens are read by neither."""
    pooler = build()
    actual = pooled(pooler, collate(rows(), length=12))
    assert actual.shape == (5, pooler.width) == (5, 16 * HIDDEN)
    for number, (first, second) in enumerate(TEXTS):
        expected = torch.from_numpy(expected_vector(pooler, first, first if second is None else second))
        assert relative_difference(actual[number], expected) < 1e-10


@torch.no_grad()
def test_padding_and_other_texts_of_a_row_change_nothing() -> None:
    pooler = build()
    alone = torch.cat([pooled(pooler, collate([row], length=len(row))) for row in rows()])
    packed = collate(rows(), length=20, pack=True, shape=(3, 7))
    assert int((packed.cls_positions < 0).sum()) == 2, "empty slots"
    x_TW = table()[packed.input_ids.flatten()]
    x_TW[packed.document_ids.flatten() == 0] = 1e3  # whatever padding holds
    for batch, vectors in ((packed, x_TW), (collate(rows(), length=30), None)):
        found = pooled(pooler, batch, vectors)
        assert relative_difference(found[:5], alone) < 1e-12
        assert found.isfinite().all()


@torch.no_grad()
def test_the_texts_of_a_pair_are_not_interchangeable() -> None:
    pooler = build()
    one, other = (collate([make_row(np.array(a), np.array(b))], length=9) for a, b in (([7, 8], [9]), ([9], [7, 8])))
    assert relative_difference(pooled(pooler, one), pooled(pooler, other)) > 1e-2


def test_texts_without_words_have_their_special_tokens() -> None:
    empty = make_row(np.array([], np.int64))
    texts = TwoTexts.of(collate([empty, rows()[1]], length=8))
    assert texts.mask.sum(-1).tolist() == [[2, 2], [2, 3]]
    assert pooled(build(), collate([empty], length=8)).isfinite().all()


def test_gradients_are_those_of_finite_differences() -> None:
    pooler, batch = build(), collate(rows()[1:2], length=8)
    x_TW = table()[batch.input_ids.flatten()].requires_grad_()
    weights = torch.randn(pooler.width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: pooled(pooler, batch, x) @ weights, (x_TW,), fast_mode=True)
    (pooled(pooler, batch, x_TW) @ weights).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in pooler.parameters())


def test_maxout_is_the_largest_of_four_linear_functions_of_normalised_inputs() -> None:
    head: MaxoutHead = randomize_weights(MaxoutHead(6, 2, 3, dropout=0.0).double())
    x, used = torch.randn(7, 6, dtype=torch.float64), torch.tensor([True] * 5 + [False] * 2)
    actual = head(x, used)
    expected = x[:5].numpy()
    for number, (norm, linear) in enumerate(zip(head.norms, head.linears, strict=True)):
        if number:
            expected = expected.reshape(5, -1, 4).max(-1)
        centred = (expected - expected.mean(0)) / np.sqrt(expected.var(0) + 1e-5)
        values = weights_of(nn.ModuleDict({"norm": norm, "linear": linear}))
        expected = (centred * values["norm.weight"] + values["norm.bias"]) @ values["linear.weight"].T
        expected = expected + values["linear.bias"]
    assert [one.in_features for one in head.linears] == [6, 8, 4]
    assert relative_difference(actual[:5], torch.from_numpy(expected)) < 1e-10


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    pooler, batch = build().float(), collate(rows(), length=12)
    x_TW = table().float()[batch.input_ids.flatten()]
    exact = pooled(pooler, batch, x_TW)
    with torch.autocast("cpu", dtype):
        assert relative_difference(pooled(pooler, batch, x_TW).float(), exact) < 0.05
