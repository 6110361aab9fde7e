"""The pooler: a matrix and an activation, with dropout before them in training alone."""

from __future__ import annotations

import torch
from model_fixtures import randomize_weights
from torch import nn

from bertsmith.nn.pooler import Pooler


def test_it_is_a_matrix_and_an_activation() -> None:
    first = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    for name, function in (("tanh", torch.tanh), ("gelu", nn.functional.gelu)):
        pooler = randomize_weights(Pooler(8, activation=name))
        assert torch.equal(pooler(first), function(first @ pooler.weight.T + pooler.bias))


def test_dropout_is_before_the_matrix_and_in_training_alone() -> None:
    pooler, first = randomize_weights(Pooler(4, dropout=0.5)), torch.ones(2000, 4)
    assert len(pooler.eval()(first).unique(dim=0)) == 1
    torch.manual_seed(0)
    seen = pooler.train()(first)
    assert len(seen.unique(dim=0)) == 16, "every subset of four inputs, the others doubled"
    assert torch.equal(randomize_weights(Pooler(4)).train()(first), pooler.eval()(first))
