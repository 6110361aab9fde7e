"""Answer spans: a softmax over the tokens of one text, independent of other texts in its row."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.errors import ConfigError
from bertsmith.objectives import span
from bertsmith.types import IGNORE_INDEX

SETTINGS = [span.Config(), span.Config(recurrent="bilstm", recurrent_width=12)]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.recurrent)
def test_logits_are_those_of_each_text_alone(settings: span.Config) -> None:
    model = model_with(settings)
    with torch.no_grad():
        logits = model.predict(packed(), "span")
        assert logits.shape == (10, 40, 2)
        for number, length in enumerate(LENGTHS):
            one = model.predict(alone(number), "span")[0]
            assert one.shape == (length, 2)
            assert torch.allclose(logits[number, :length], one, atol=1e-5)
            assert logits[number, length:].eq(-math.inf).all()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.recurrent)
def test_loss_text_by_text(settings: span.Config) -> None:
    model = model_with(settings)
    batch = packed()
    batch.labels["span"][2] = IGNORE_INDEX
    batch.labels["span"][5] = 0  # no answer
    loss = model(batch)
    total, correct = 0.0, 0
    for number, positions in enumerate(batch.labels["span"][: len(LENGTHS)].tolist()):
        if number == 2:
            continue
        columns = model.predict(alone(number), "span")[0].T.tolist()
        for column, position in zip(columns, positions, strict=True):
            total += (math.log(sum(map(math.exp, column))) - column[position]) / 2
        correct += all(column[position] == max(column) for column, position in zip(columns, positions, strict=True))
    assert loss.sums["span"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["span"]) == len(LENGTHS) - 1
    assert int(loss.correct["span"]) == correct
    loss.mean().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_an_answer_is_correct_where_both_ends_are(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with(span.Config())
    batch = packed()
    labels = batch.labels["span"].clamp(min=0)
    logits = torch.nn.functional.one_hot(labels, 40).transpose(1, 2) * 9.0
    logits[0, :, 1] = logits[0, :, 1].roll(1)  # the end is wrong
    monkeypatch.setattr(model.objectives["span"], "predict", lambda *_: logits)
    assert int(model(batch).correct["span"]) == len(LENGTHS) - 1


def test_it_needs_no_pooler() -> None:
    model_with(span.Config(), pooler=False)(packed())


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="recurrent=gru must be one of none, bilstm"):
        span.Config(recurrent="gru")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="recurrent_layers=2 and recurrent_width=0 must be at least 1"):
        span.Config(recurrent_width=0)
