"""ELECTRA: sizes, projected embeddings, pooler, layer-wise learning rates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import random_batch, randomize_weights, relative_difference

from bertsmith.encoders import electra
from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import classify
from bertsmith.training.plan import TrainingPlan

SMALL = {"layers": 3, "width": 32, "heads": 4, "vocab_size": 97, "max_positions": 40}


def test_sizes() -> None:
    with torch.device("meta"):
        found = {name: electra.Config.size(name, vocab_size=30_522) for name in electra.SIZES}
    small, base, large = found["small"], found["base"], found["large"]
    assert (small.layers, small.width, small.heads, small.inner, small.embedding_width) == (12, 256, 4, 1024, 128)
    assert (base.layers, base.width, base.heads, base.inner, base.embedding_width) == (12, 768, 12, 3072, 768)
    assert (large.layers, large.width, large.heads, large.inner, large.embedding_width) == (24, 1024, 16, 4096, 1024)
    assert electra.Config() == small
    with pytest.raises(
        ConfigError,
        match="'bas' is not a size of electra: expected one of tiny, mini, small, base, large; did you mean base",
    ):
        electra.Config.size("bas", vocab_size=97)
    with pytest.raises(ConfigError, match="embedding_width=0 must be at least 1"):
        electra.Config(embedding_width=0)


def test_embeddings_are_projected_where_widths_differ() -> None:
    narrow, wide = (electra.Config(**SMALL, embedding_width=width).build() for width in (24, 32))
    assert narrow.token_embeddings.shape == (97, 24)
    assert narrow.embeddings.project.weight.shape == (32, 24)
    assert not list(wide.embeddings.project.parameters())
    assert narrow.layer_groups()[0] is narrow.embeddings, (
        "which learns as slowly as the tables (electra: model/optimization.py)"
    )


def test_embed_returns_embeddings_before_the_projection() -> None:
    encoder = randomize_weights(electra.Config(**SMALL, embedding_width=24).build()).eval()
    batch = random_batch([12, 40, 7], length=40)
    embedded = encoder.embed(batch)
    assert embedded.shape == (120, 24)
    layers = encoder(batch, return_layers=True).layers
    assert relative_difference(encoder.embeddings.project(embedded), layers[0]) < 1e-6


def test_the_pooler_is_dropout_linear_and_gelu() -> None:
    encoder = randomize_weights(electra.Config(**SMALL, pooler=True, pooler_dropout=0.5).build()).eval()
    batch = random_batch([12, 40, 7], length=40)
    found = encoder(batch)
    expected = F.gelu(F.linear(found.last_hidden[batch.cls_positions], encoder.pooler.weight, encoder.pooler.bias))
    assert relative_difference(found.pooled, expected) < 1e-6
    encoder.pooler.train()
    assert relative_difference(encoder(batch).pooled, expected) > 1e-2
    assert not electra.Config().pooler


def test_layerwise_learning_rates_as_in_the_published_code() -> None:
    """decay^(L + 2 - depth): embeddings 0, layer i at i + 1, the head at L + 2 (electra: model/optimization.py)."""
    model = Model.build(electra.Config(**SMALL, pooler=True), [classify.Config()])
    parts = model.layer_groups()
    plan = TrainingPlan(steps=10, learning_rate=1e-4, layer_decay=0.8)
    rates = dict(zip(map(id, parts), plan.learning_rates(0.0, groups=len(parts)), strict=True))
    layers = SMALL["layers"]
    expected = {id(model.encoder.embeddings): 0.8 ** (layers + 2), id(model.objectives): 1.0}
    expected |= {id(block): 0.8 ** (layers + 2 - (i + 1)) for i, block in enumerate(model.encoder.blocks)}
    for part, share in expected.items():
        assert rates[part] == pytest.approx(1e-4 * share)
