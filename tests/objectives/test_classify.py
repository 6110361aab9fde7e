"""Text classification: loss per text, and class names."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.errors import ConfigError
from bertsmith.objectives import classify
from bertsmith.objectives.objective import BuildContext


def test_loss_text_by_text() -> None:
    model = model_with(classify.Config(labels=("no", "yes", "maybe")))
    batch = packed()
    loss = model(batch)
    total, correct = 0.0, 0
    for number, label in enumerate(batch.labels["classify"][: len(LENGTHS)].tolist()):
        logits = model.predict(alone(number), "classify")[0].tolist()
        total += math.log(sum(map(math.exp, logits))) - logits[label]
        correct += logits[label] == max(logits)
    assert len(logits) == 3
    assert loss.sums["classify"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["classify"]) == len(LENGTHS)
    assert int(loss.correct["classify"]) == correct


def test_dropout_applies_to_text_vectors_in_training_only() -> None:
    model = model_with(classify.Config(dropout=0.5), dropout=0.0, attention_dropout=0.0)
    batch = packed()
    evaluating = model.predict(batch, "classify")
    assert torch.equal(model.predict(batch, "classify"), evaluating)
    model.train()
    torch.manual_seed(0)
    training_model = model.predict(batch, "classify")
    head = model.objectives["classify"]
    torch.manual_seed(0)
    dropped = torch.nn.functional.dropout(model.encoder(batch).pooled, 0.5)
    assert torch.allclose(training_model, head.head(dropped), atol=1e-6)
    assert not torch.allclose(training_model, evaluating, atol=1e-2)


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="there must be at least 2"):
        classify.Config(labels=("one",))
    with pytest.raises(ConfigError, match="labels has 'a' more than once"):
        classify.Config(labels=("a", "b", "a"))
    with pytest.raises(ConfigError, match=r"labels\[1\] is empty"):
        classify.Config(labels=("a", ""))
    with pytest.raises(ConfigError, match=r"dropout=1.0 must be at least 0 and less than 1"):
        classify.Config(dropout=1.0)


def test_new_weights_are_initialised_like_the_reference() -> None:
    head = classify.Config().build(BuildContext(width=768, vocab_size=9, layers=2)).head
    assert head.bias.eq(0).all()
    assert head.weight.abs().max() <= 0.04
    assert 0.016 < head.weight.std() < 0.019
