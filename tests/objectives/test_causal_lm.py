"""Causal language modelling: labels, and no attention to later tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import random_batch, randomize_weights, relative_difference, small_bert_config

from bertsmith.errors import ConfigError
from bertsmith.model_io.model import Model
from bertsmith.objectives import causal_lm, lm_head
from bertsmith.types import IGNORE_INDEX


def build() -> Model:
    return randomize_weights(
        Model.build(small_bert_config(causal=True, dropout=0.0, attention_dropout=0.0), [causal_lm.Config()])
    ).eval()


@pytest.mark.parametrize("lengths", [[5, 4, 7], [10, 10, 6]], ids=["packed", "full rows"])
def test_labels_are_the_next_ids_of_each_text(lengths: list[int]) -> None:
    batch = random_batch(lengths, length=10, pack=True)
    shifted = build().corrupt(batch)
    assert torch.equal(shifted.input_ids, batch.input_ids)
    for position, label in enumerate(shifted.labels["causal_lm"].tolist()):
        row, column = divmod(position, 10)
        inside = column < 9 and batch.document_ids[row, column] == batch.document_ids[row, column + 1] != 0
        assert label == (batch.input_ids[row, column + 1] if inside else IGNORE_INDEX)
    assert int((shifted.labels["causal_lm"] != IGNORE_INDEX).sum()) == sum(lengths) - 3


def test_the_loss_is_that_of_the_logits_and_labels() -> None:
    model = build()
    shifted = model.corrupt(random_batch([25, 11], length=25))
    loss = model(shifted)
    logits = model.predict(shifted, "causal_lm")
    assert logits.shape == (50, 97)
    expected = F.cross_entropy(logits, shifted.labels["causal_lm"])
    assert loss.mean().item() == pytest.approx(expected.item(), rel=1e-5)


def test_many_logits_are_computed_in_parts_with_the_same_loss_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    shifted, results = model.corrupt(random_batch([25, 11], length=25)), []
    for most in (lm_head.MAX_LOGITS, 7 * 97):
        monkeypatch.setattr(lm_head, "MAX_LOGITS", most)
        model.zero_grad()
        loss = model(shifted)
        loss.mean().backward()
        results.append((loss, [p.grad for p in model.parameters() if p.grad is not None]))
    (whole, expected), (parts, actual) = results
    assert parts.mean().item() == pytest.approx(whole.mean().item(), rel=1e-6)
    assert parts.correct == whole.correct
    assert all(relative_difference(one, other) < 1e-5 for one, other in zip(actual, expected, strict=True))


def test_logits_at_given_tokens() -> None:
    model, batch = build(), random_batch([25, 11], length=25)
    some = model.predict(batch.replace(indices={"causal_lm": torch.tensor([3, 30])}), "causal_lm")
    assert relative_difference(some, model.predict(batch, "causal_lm")[[3, 30]]) < 1e-6


def test_a_later_token_does_not_change_earlier_outputs() -> None:
    model = build()
    batch = random_batch([30, 22], length=30)
    before = model.predict(batch, "causal_lm").view(2, 30, -1)
    ids = batch.input_ids.clone()
    ids[:, 12] = torch.where(ids[:, 12] == 50, 51, 50)
    after = model.predict(batch.replace(input_ids=ids), "causal_lm").view(2, 30, -1)
    assert relative_difference(after[:, :12], before[:, :12]) < 1e-6
    assert all(
        relative_difference(after[row, position], before[row, position]) > 1e-4
        for row in range(2)
        for position in (12, 13, 21)
    )


def test_a_bidirectional_encoder_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"causal_lm predicts the next token: it needs a causal encoder, set encoder\.causal=true"
    ):
        Model.build(small_bert_config(), [causal_lm.Config()])
