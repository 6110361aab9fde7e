"""Token classification at the first token of each word, with and without a BiLSTM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from model_fixtures import random_rows
from objectives.head_fixtures import LENGTHS, alone, layers_of, model_with, packed, rows_and_labels

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.metrics.sequence_labelling import scheme_violations
from bertsmith.model_io.model import Model
from bertsmith.nn.crf import LabelSequences
from bertsmith.objectives import tag
from bertsmith.tasks.task import Features
from bertsmith.training.finetune_loader import make_batch
from bertsmith.types import IGNORE_INDEX, Batch

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


LABELS = ("O", "B-A", "I-A")
CRF = {"labels": LABELS, "crf": True, "dropout": 0.0}


def sums_and_gradients(model: Model, batches: list[Batch]) -> tuple[float, int, dict[str, torch.Tensor]]:
    """Of the losses of all batches together."""
    model.zero_grad()
    losses = [model(batch) for batch in batches]
    sum(loss.sums["tag"] for loss in losses).backward()
    gradients = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    return sum(loss.sums["tag"].item() for loss in losses), sum(int(loss.counts["tag"]) for loss in losses), gradients


@pytest.mark.parametrize("change", [{}, RECURRENT], ids=str)
def test_a_crf_scores_each_text_of_a_packed_batch_as_a_sequence_of_its_own(change: dict[str, Any]) -> None:
    model = model_with(tag.Config(**CRF, **change)).double()
    rows, labels, positions = rows_and_labels()
    separate = [
        collate([row], length=len(row), labels={"tag": [labels["tag"][n]]}, indices={"tag": [positions["tag"][n]]})
        for n, row in enumerate(rows)
    ]
    total, count, gradients = sums_and_gradients(model, separate)
    for batch in (packed(), packed(pack=False, shape=None)):
        same, number, found = sums_and_gradients(model, [batch])
        assert (number, "tag" in model(batch).correct) == (count, False)
        assert same == pytest.approx(total, rel=1e-12)
        for name, gradient in gradients.items():
            assert torch.allclose(found[name], gradient, rtol=0, atol=1e-9), name
    assert gradients["objectives.tag.crf.transitions"].abs().min() > 0
    crf, expected = model.objectives["tag"].crf, 0.0
    for batch in separate:
        emissions, gold = model.predict(batch, "tag").detach(), batch.labels["tag"]
        sequences = LabelSequences(emissions[None], torch.tensor([len(gold)]))
        expected += crf.negative_log_likelihood(sequences, gold[None]).item()
    assert total == pytest.approx(expected, rel=1e-12)


def test_words_without_a_label_are_left_out_of_the_sequence_and_sentences_are_apart() -> None:
    model = model_with(tag.Config(**CRF)).double()
    (row,) = random_rows([12])

    def loss(words: list[int], classes: list[int], starts: list[list[int]] | None = None) -> float:
        indices = {"tag": [words]} | ({} if starts is None else {"tag.starts": starts})
        batch = collate([row], length=12, labels={"tag": [classes]}, indices=indices, shape=(2, 3, 9))
        return model(batch).sums["tag"].item()

    assert loss([1, 3, 4, 8], [1, IGNORE_INDEX, 2, 0]) == pytest.approx(loss([1, 4, 8], [1, 2, 0]), rel=1e-12)
    apart = loss([1, 3], [1, 2]) + loss([4, 8, 9], [0, 1, 0])
    whole = [1, 3, 4, 8, 9], [1, 2, 0, 1, 0]
    assert loss(*whole, starts=[[1, 4]]) == pytest.approx(apart, rel=1e-12)
    assert loss(*whole) == pytest.approx(loss(*whole, starts=[[1]]), rel=1e-12)
    assert loss(*whole) != pytest.approx(apart, rel=1e-3)
    assert loss([1, 3, 4, 8, 9], [1, 2, IGNORE_INDEX, 1, 0], starts=[[1, 4]]) == pytest.approx(
        loss([1, 3], [1, 2]) + loss([8, 9], [1, 0]), rel=1e-12
    ), "the sentence begins although its first word has no label"
    assert loss([3, 4], [IGNORE_INDEX] * 2) == loss([], []) == 0
    empty = collate([row], length=12, labels={"tag": [[]]}, indices={"tag": [[]]})
    assert model(empty).sums["tag"].item() == 0


def test_features_of_several_sentences_have_their_first_tokens() -> None:
    rows = random_rows([9, 7])
    one = Features((rows[0],), 0, np.array([0, 1, 2]), np.array([1, 2, 5]), sentence_starts=np.array([1, 5]))
    other = Features((rows[1],), 1, np.array([1]), np.array([3]))
    batch = make_batch([one, other, replace(one, head="classify-x")], "tag-ner", length=16, padding_id=0)
    first, second = batch.cls_positions[:2].tolist()
    assert batch.indices["tag-ner"].tolist() == [first + 1, first + 2, first + 5, second + 3]
    assert batch.indices["tag-ner.starts"].tolist() == [first + 1, first + 5]
    assert list(make_batch([other], "tag", length=16, padding_id=0).indices) == ["tag"]


def test_decoding_by_a_crf_obeys_the_scheme() -> None:
    labels = ("O", "B-A", "I-A", "E-A", "S-A")
    draw = np.random.default_rng(0)
    words = [draw.normal(0, 4, (size, 5)).astype(np.float32) for size in (1, 2, 9, 30)]
    for scheme, valid in (("detect", True), ("none", False)):
        decoder = model_with(tag.Config(labels=labels, crf=True, crf_scheme=scheme)).objectives["tag"].sequence_decoder
        tags = [[labels[number] for number in best] for best, _ in decoder(words)]
        assert all(not scheme_violations(one, scheme="IOBES") for one in tags) == valid
    assert model_with(tag.Config(labels=labels)).objectives["tag"].sequence_decoder is None


def test_start_and_end_scores_are_optional() -> None:
    names = [
        name for name, _ in model_with(tag.Config(**CRF, crf_start_end=False)).objectives["tag"].named_parameters()
    ]
    assert names == ["head.weight", "head.bias", "crf.transitions"]


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="class_weights weigh words, but a CRF scores whole sentences"):
        tag.Config(**CRF, class_weights=(1.0, 2.0, 2.0))
    with pytest.raises(ConfigError, match="the labels B, I, E form no valid sequence for some lengths: add O"):
        tag.Config(labels=("B", "I", "E"), crf=True, crf_scheme="IOBES").build_crf()
    with pytest.raises(ConfigError, match="recurrent=gru must be one of none, bilstm"):
        tag.Config(recurrent="gru")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="recurrent_layers=0 and recurrent_width=768 must be at least 1"):
        tag.Config(recurrent_layers=0)
    with pytest.raises(ConfigError, match=r"recurrent_dropout=1.0 must be at least 0 and less than 1"):
        tag.Config(recurrent_dropout=1.0)


def test_the_loss_compiles_with_a_graph_break() -> None:
    batch, head = packed(), model_with(tag.Config(**CRF)).objectives["tag"]
    logits = torch.randn(len(batch.labels["tag"]), 3, generator=torch.Generator().manual_seed(0))
    torch.compiler.reset()
    compiled = torch.compile(lambda logits: head.loss_from_logits(logits * 2, batch).mean(), backend="eager")
    assert torch.allclose(compiled(logits), head.loss_from_logits(logits * 2, batch).mean())
