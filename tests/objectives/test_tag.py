"""Token classification at the first token of each word, with and without a BiLSTM."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, layers_of, model_with, packed, rows_and_labels

from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.objectives import tag

RECURRENT = {"recurrent": "bilstm", "recurrent_width": 12}


@pytest.mark.parametrize("change", [{}, RECURRENT, RECURRENT | {"layers": "last_four_concat"}], ids=str)
def test_loss_word_by_word(change: dict[str, Any]) -> None:
    model = model_with(tag.Config(labels=("O", "B", "I"), **change))
    batch = packed()
    loss = model(batch)
    _, labels, positions = rows_and_labels()
    total, correct, count = 0.0, 0, 0
    for number in range(len(LENGTHS)):
        everywhere = model.predict(alone(number), "tag")
        assert everywhere.shape == (LENGTHS[number], 3)
        for position, label in zip(positions["tag"][number], labels["tag"][number], strict=True):
            total -= everywhere[position].log_softmax(0)[label].item()
            correct += int(everywhere[position].argmax()) == label
            count += 1
    assert loss.sums["tag"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["tag"]) == count
    assert int(loss.correct["tag"]) == correct


def test_the_bilstm_equals_torchs_on_each_text() -> None:
    model = model_with(tag.Config(recurrent="bilstm", recurrent_width=7, recurrent_layers=1))
    head = model.objectives["tag"]
    ahead, back = head.recurrent.forward_lstms[0], head.recurrent.backward_lstms[0]
    with torch.no_grad():
        for number in (0, 4):
            x = layers_of(model, number)[-1][None]
            both = torch.cat((ahead(x)[0], back(x.flip(1))[0].flip(1)), -1)[0]
            assert torch.allclose(model.predict(alone(number), "tag"), head.head(both), atol=1e-5)


def test_dropout_applies_to_the_input_of_each_bilstm_layer() -> None:
    head = model_with(tag.Config(**RECURRENT, recurrent_dropout=0.9)).objectives["tag"].recurrent
    read: list[torch.Tensor] = []
    for lstm in head.forward_lstms:
        lstm.register_forward_pre_hook(lambda module, supplied: read.append(supplied[0]))
    x, lengths = torch.ones(2, 50, head.forward_lstms[0].input_size), torch.tensor([50, 9])
    for trains in (True, False):
        head.train(trains)(x, lengths)
    dropped = [float((one == 0).float().mean()) for one in read]
    assert dropped[:2] == pytest.approx([0.9, 0.9], abs=0.05)
    assert dropped[2:] == [0.0, 0.0]


def test_a_bilstm_is_trained_on_a_frozen_encoder() -> None:
    model = model_with(tag.Config(**RECURRENT, dropout=0.0))
    model.encoder.requires_grad_(False)
    model(packed()).mean().backward()
    assert all(parameter.grad is not None for parameter in model.objectives.parameters())
    assert all(parameter.grad is None for parameter in model.encoder.parameters())


@pytest.mark.parametrize("change", [{}, RECURRENT], ids=str)
def test_without_indices(change: dict[str, Any]) -> None:
    with pytest.raises(BertsmithError, match="tag has no indices in this batch"):
        model_with(tag.Config(**change))(packed().replace(indices={}))


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="recurrent=gru must be one of none, bilstm"):
        tag.Config(recurrent="gru")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="recurrent_layers=0 and recurrent_width=768 must be at least 1"):
        tag.Config(recurrent_layers=0)
    with pytest.raises(ConfigError, match=r"recurrent_dropout=1.0 must be at least 0 and less than 1"):
        tag.Config(recurrent_dropout=1.0)
