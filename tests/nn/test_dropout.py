"""Dropout by products of two random numbers: rates, independence, scaling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertsmith.nn.dropout import Dropout, drop, hash_int32

T, D = 1024, 768


def dropped(probability: float, seed: int) -> Tensor:
    """1 where a value was dropped [T, D], 0 elsewhere."""
    torch.manual_seed(seed)
    return (drop(torch.ones(T, D), probability) == 0).float()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.8])
def test_the_dropout_rate_of_every_token_and_column(probability: float) -> None:
    spread = (probability * (1 - probability)) ** 0.5
    for seed in range(5):
        dropout_mask = dropped(probability, seed)
        assert abs(dropout_mask.mean() - probability) < 5 * spread / (T * D) ** 0.5
        for axis, count in ((0, T), (1, D)):  # within the range of independent random numbers
            standard = (dropout_mask.mean(axis) - probability) * count**0.5 / spread
            assert 0.8 < standard.var() < 1.2
            assert standard.abs().max() < 5.5


def test_tokens_and_columns_are_independent() -> None:
    dropout_mask = dropped(0.1, 0) - 0.1
    for some in (dropout_mask[:512], dropout_mask.T[:512]):
        equal_share = torch.corrcoef(some)[~torch.eye(512, dtype=torch.bool)] * some.shape[1] ** 0.5
        assert 0.95 < equal_share.std() < 1.05
        assert equal_share.abs().max() < 6.5
    squares = (
        dropout_mask[::2, ::2] * dropout_mask[1::2, 1::2] * dropout_mask[::2, 1::2] * dropout_mask[1::2, ::2]
    )  # correlations that a product could introduce
    assert abs(squares.mean()) < 5 * 0.09**2 / (T * D / 4) ** 0.5


def test_dropout_depends_on_the_seed_and_scales_kept_values() -> None:
    assert torch.equal(dropped(0.3, 7), dropped(0.3, 7))
    assert not torch.equal(dropped(0.3, 7), dropped(0.3, 8))
    torch.manual_seed(0)
    x = torch.randn(T, D, requires_grad=True)
    result = drop(x, 0.2)
    result.sum().backward()
    stays = result != 0
    assert torch.allclose(result[stays], x[stays] / 0.8)
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(stays, 1 / (1 - 0.2), 0.0))


def test_one_graph() -> None:
    whole = torch.compile(drop, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    expected = drop(torch.ones(T, D), 0.1)
    torch.manual_seed(0)
    assert torch.equal(whole(torch.ones(T, D), 0.1), expected)


def test_all_bits_of_the_hash_are_uniform() -> None:
    result = hash_int32(torch.arange(4096, dtype=torch.int32))
    bits = (result[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
    assert (bits.float().mean(0) - 0.5).abs().max() < 0.05
    assert len(result.unique()) == 4096


def test_dropout_only_in_training_mode() -> None:
    layer, x = Dropout(0.5), torch.ones(8, 8)
    assert (layer(x) == 0).any()
    assert torch.equal(layer.eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
