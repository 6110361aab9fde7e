"""Next sentence prediction: pooled input, and missing labels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import pretraining_model, random_batch, small_bert_config

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import next_sentence


def test_reads_the_pooled_first_token_of_each_text() -> None:
    model = pretraining_model()
    batch = model.corrupt(random_batch([12, 9, 23, 7], length=40, pack=True, shape=(3, 6)))
    logits = model.predict(batch, "next_sentence")
    head = model.objectives["next_sentence"].classify
    first = model.encoder(batch).last_hidden[batch.cls_positions[:4]]
    pooled = torch.tanh(first @ model.encoder.pooler.weight.T + model.encoder.pooler.bias)
    assert torch.allclose(logits[:4], pooled @ head.weight.T + head.bias, atol=1e-5)
    loss = model(batch)
    assert int(loss.counts["next_sentence"]) == 4, "two slots for texts are empty"
    expected = F.cross_entropy(logits[:4], batch.labels["next_sentence"][:4], reduction="sum")
    assert loss.sums["next_sentence"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_labels_are_as_in_the_reference() -> None:
    assert (next_sentence.FOLLOWS, next_sentence.RANDOM) == (0, 1)


def test_without_labels() -> None:
    model = pretraining_model()
    batch = model.corrupt(random_batch([12], length=12).replace(labels={}))
    with pytest.raises(BertsmithError, match=r"no labels for next_sentence \(it has masked_lm\)"):
        model(batch)


def test_an_encoder_without_a_pooler_is_refused() -> None:
    with pytest.raises(ConfigError, match="next_sentence reads the pooled vector of each text"):
        Model.build(small_bert_config(pooler=False), [next_sentence.Config()])


def test_chance_is_the_entropy_of_two_classes() -> None:
    head = pretraining_model().objectives["next_sentence"]
    assert head.chance_accuracy({}) == 0.5
    assert head.chance_loss(0.5) == pytest.approx(math.log(2))
    assert head.chance_loss(0.9) == pytest.approx(0.3251, abs=1e-4)
    assert head.chance_loss(1.0) is None
