"""Language modelling on text filled in by a generator: labels, the copy gate, and gradients of each network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_fixtures import MASK, SIZE, VOCABULARY, random_batch, randomize_weights, relative_difference
from model_io.folder_fixtures import tokenizer

from bertsmith.encoders import electra
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import replaced_lm
from bertsmith.types import IGNORE_INDEX, Batch

LENGTHS = [12, 9, 23, 7, 40, 5, 31, 16]


def build(rows: int = SIZE, **settings: Any) -> Model:
    small: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "embedding_width": 24, "max_positions": 40}
    config = electra.Config(**small, vocab_size=rows, dropout=0.0, attention_dropout=0.0)
    known = VOCABULARY if rows == SIZE else None
    return randomize_weights(
        Model.build(config, [replaced_lm.Config(generator_width=0.5, **settings)], vocabulary=known)
    ).eval()


def filled(model: Model, corrupted: Batch) -> Batch:
    outputs, _ = model.objectives["replaced_lm"].sample_replacements(
        corrupted, model.encoder.embed, model.encoder.token_embeddings
    )
    return outputs


@pytest.mark.parametrize("labelled", ["masked", "all"])
def test_labels_are_the_original_ids_and_the_input_has_no_masks(labelled: str) -> None:
    model, batch = build(predict_at=labelled), random_batch(LENGTHS, length=40, pack=True)
    corrupted = model.corrupt(batch)
    after = filled(model, corrupted)
    labels, positions = after.labels["replaced_lm"], after.indices["replaced_lm"]
    used = labels != IGNORE_INDEX
    assert torch.equal(labels[used], batch.input_ids.flatten()[positions[used]])
    if labelled == "all":
        assert torch.equal(used, (batch.document_ids != 0).flatten())
    else:
        assert torch.equal(labels, corrupted.labels["masked_lm"])
        assert torch.equal(positions, corrupted.indices["masked_lm"])
    assert (corrupted.input_ids == MASK).sum() > 5 * (after.input_ids == MASK).sum()
    counts = {name: int(count) for name, count in model.counts(corrupted).items()}
    assert counts["replaced_lm"] == int(used.sum())
    assert {name: int(count) for name, count in model(corrupted).counts.items()} == counts


def test_the_copy_gate_mixes_the_input_with_the_prediction() -> None:
    model = build(predict_at="all")
    after = filled(model, model.corrupt(random_batch(LENGTHS, length=40)))
    objective = model.objectives["replaced_lm"]
    top = model.encoder(after).last_hidden
    copy = torch.sigmoid(F.linear(top, objective.copy_gate.weight, objective.copy_gate.bias))
    h = objective.norm(F.gelu(objective.transform(top)))
    predicted = F.linear(h, model.encoder.token_embeddings, objective.bias).softmax(-1)
    expected = copy * F.one_hot(after.input_ids.flatten(), SIZE) + (1 - copy) * predicted
    outputs = model.predict(after, "replaced_lm").exp()
    assert relative_difference(outputs, expected) < 1e-5
    assert (outputs.sum(-1) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("labelled", ["masked", "all"])
def test_the_generator_is_trained_by_its_own_loss(labelled: str) -> None:
    model = build(predict_at=labelled).double()
    corrupted = model.corrupt(random_batch(LENGTHS, length=40))
    model(corrupted).mean().backward()
    whole = {name: p.grad.clone() for name, p in model.named_parameters() if ".generator." in name}
    model.zero_grad()
    _, loss = model.objectives["replaced_lm"].sample_replacements(
        corrupted, model.encoder.embed, model.encoder.token_embeddings
    )
    loss.mean().backward()
    assert whole
    for name, gradient in whole.items():
        assert torch.equal(gradient, model.get_parameter(name).grad)


@pytest.mark.parametrize("labelled", ["masked", "all"])
def test_the_folder_is_that_of_a_masked_lm(labelled: str, tmp_path: Path) -> None:
    rows = tokenizer().vocab_size
    model = build(rows, predict_at=labelled)
    save_model(model, tokenizer(), tmp_path / "m")
    opened, _, facts = open_model(tmp_path / "m")
    assert facts.architectures == ("ElectraForMaskedLM",)
    batch = random_batch([12, 9], length=12)
    batch = batch.replace(input_ids=batch.input_ids % rows)
    if labelled == "masked":
        assert relative_difference(opened.predict(batch, "masked_lm"), model.predict(batch, "replaced_lm")) < 1e-6
    assert "generator" in model.auxiliary_models()


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^predict_at=some must be one of masked, all$"):
        replaced_lm.Config(predict_at="some")
    model = Model.build(electra.Config(layers=1, vocab_size=SIZE), [replaced_lm.Config(generator_width=0.0)])
    with pytest.raises(BertsmithError, match=r"^replaced_lm has no generator here"):
        model.corrupt(random_batch([12], length=12))
