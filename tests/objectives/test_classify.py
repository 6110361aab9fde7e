"""Text classification: loss per text, and class names."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch
from model_fixtures import random_rows
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.data.collate import collate
from bertsmith.errors import ConfigError
from bertsmith.objectives import classify, multi_label, tag
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


@pytest.mark.parametrize("kind", [classify, tag])
def test_class_weights_are_those_of_torch_over_micro_batches(kind: ModuleType) -> None:
    weights = (0.1, 3.0, 0.25)
    model = model_with(kind.Config(labels=("no", "yes", "maybe"), class_weights=weights))
    name, parts = kind.__name__.rpartition(".")[2], [packed(), packed(shape=(4, 8))]
    logits = torch.cat([model.predict(batch, name) for batch in parts])
    labels = torch.cat([batch.labels[name] for batch in parts])
    expected = torch.nn.CrossEntropyLoss(torch.tensor(weights))(logits, labels)
    losses = [model(batch) for batch in parts]
    assert torch.allclose((losses[0] + losses[1]).mean(), expected, rtol=1e-5)
    counts = {name: model.counts(parts[0])[name] + model.counts(parts[1])[name]}
    assert torch.allclose(losses[0].total(counts) + losses[1].total(counts), expected, rtol=1e-5)
    one = collate(random_rows([5]), length=5, labels={"classify": [0]})
    if kind is classify:  # the weights of a batch may add up to less than 1
        alone = torch.nn.CrossEntropyLoss()(model.predict(one, name), one.labels[name])
        assert torch.allclose(model(one).mean(), alone, rtol=1e-5)
    assert "class_weights" not in " ".join(model.state_dict())


def test_multi_label_weights_are_those_of_torch() -> None:
    weights = (4.0, 0.5)
    model = model_with(multi_label.Config(positive_weights=weights))
    batch = packed()
    known = batch.labels["multi_label"][: len(LENGTHS)]
    loss = torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(weights))
    expected = loss(model.predict(batch, "multi_label")[: len(LENGTHS)], known)
    assert torch.allclose(model(batch).mean(), expected, rtol=1e-5)
    with pytest.raises(ConfigError, match="positive_weights has 1 numbers for 2 labels"):
        multi_label.Config(positive_weights=(1.0,))
    with pytest.raises(ConfigError, match="the weight of 'LABEL_1' is 0: it must be above 0"):
        classify.Config(class_weights=(1.0, 0.0))


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
    with pytest.raises(ConfigError, match="texts=3 must be 1 or 2"):
        classify.Config(texts=3)


def test_new_weights_are_initialised_like_the_reference() -> None:
    head = classify.Config().build(BuildContext(width=768, vocab_size=9, layers=2)).head
    assert head.bias.eq(0).all()
    assert head.weight.abs().max() <= 0.04
    assert 0.016 < head.weight.std() < 0.019
