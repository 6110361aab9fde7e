"""Embeddings of two rows and the pooler."""

from __future__ import annotations

import torch
from model_fixtures import randomize_weights
from torch import nn

from bertsmith.nn.transformer import Pooler, two_row_embedding


def test_two_row_embedding_equals_a_lookup() -> None:
    torch.manual_seed(0)
    table, rows = nn.Embedding(2, 8), torch.randint(0, 2, (64,))
    gradient = torch.randn(64, 8)
    expected, out = table(rows), two_row_embedding(table.weight, rows)
    assert torch.equal(out, expected)
    (reference,), (actual,) = (torch.autograd.grad(each, table.weight, gradient) for each in (expected, out))
    assert torch.allclose(actual, reference, atol=1e-5)
    assert 0 < int(rows.sum()) < 64


def test_the_pooler_is_a_linear_layer_and_an_activation() -> None:
    cls = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    for name, function in (("tanh", torch.tanh), ("gelu", nn.functional.gelu)):
        pooler = randomize_weights(Pooler(8, activation=name))
        assert torch.equal(pooler(cls), function(cls @ pooler.weight.T + pooler.bias))


def test_pooler_dropout_is_before_the_linear_layer_and_only_in_training() -> None:
    pooler, cls = randomize_weights(Pooler(4, dropout=0.5)), torch.ones(2000, 4)
    assert len(pooler.eval()(cls).unique(dim=0)) == 1
    torch.manual_seed(0)
    assert len(pooler.train()(cls).unique(dim=0)) == 16, "every subset of four inputs"
    assert torch.equal(randomize_weights(Pooler(4)).train()(cls), pooler.eval()(cls))
