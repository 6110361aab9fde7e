"""ELECTRA's generator as a model of its own: the same numbers, the same memory, a folder that opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_fixtures import VOCABULARY, random_batch, randomize_weights, relative_difference
from model_fixtures import small_bert_config as bert
from model_io.folder_fixtures import tokenizer

from bertsmith.encoders import electra
from bertsmith.errors import DataError
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import open_model, save_model
from bertsmith.objectives import masked_lm, replaced_token
from bertsmith.types import Vocabulary

SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "max_positions": 40}


def build(*, rows: int = 97, vocabulary: Vocabulary | None = VOCABULARY, **changes: Any) -> Model:
    config = electra.Config(**SMALL | {"vocab_size": rows, "embedding_width": 24} | changes)
    return randomize_weights(
        Model.build(config, [replaced_token.Config(generator_width=0.5)], vocabulary=vocabulary)
    ).eval()


@pytest.mark.parametrize("narrow", [24, 16], ids=["with a map", "without one"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_exported_generator_gives_the_same_logits(narrow: int, activation: str, tmp_path: Path) -> None:
    rows = tokenizer().vocab_size
    model = build(rows=rows, vocabulary=None, embedding_width=narrow, activation=activation)
    generator = model.auxiliary_models()["generator"]
    batch = random_batch([12, 40, 7], length=40)
    batch = batch.replace(input_ids=batch.input_ids % rows, indices={"masked_lm": torch.arange(120)})
    inside = model.objectives["replaced_token"].generator
    expected = inside.masked_lm.predict(
        inside(model.encoder.embed(batch), batch), batch, model.encoder.token_embeddings
    )
    real = (batch.document_ids != 0).flatten()
    assert relative_difference(generator.predict(batch, "masked_lm")[real], expected[real]) < 1e-6
    save_model(generator, tokenizer(), tmp_path / "generator")
    opened, _, facts = open_model(tmp_path / "generator")
    assert facts.architectures == ("ElectraForMaskedLM",)
    assert (opened.encoder.width, opened.encoder.config.heads, opened.encoder.config.inner) == (16, 1, 64)
    assert relative_difference(opened.predict(batch, "masked_lm")[real], expected[real]) < 1e-6


def test_the_exported_generator_shares_the_weights() -> None:
    model = build()
    generator = model.auxiliary_models()["generator"]
    with torch.no_grad():
        generator.encoder.token_embeddings.fill_(0.5)
        generator.encoder.blocks[1].feed_forward.expand.weight.fill_(0.25)
    assert (model.encoder.token_embeddings == 0.5).all()
    assert (model.objectives["replaced_token"].generator.blocks[1].feed_forward.expand.weight == 0.25).all()


def test_models_without_a_generator() -> None:
    assert not Model.build(bert(), [masked_lm.Config()], vocabulary=VOCABULARY).auxiliary_models()
    judging = Model.build(electra.Config(**SMALL, vocab_size=97), [replaced_token.Config(generator_width=0.0)])
    assert not judging.auxiliary_models()
    on_bert = Model.build(bert(pooler=False), [replaced_token.Config(generator_width=0.5)], vocabulary=VOCABULARY)
    assert not on_bert.auxiliary_models(), "BERT's tables are as wide as its blocks: no folder could hold its generator"


def test_an_electra_folder_does_not_hold_the_generator(tmp_path: Path) -> None:
    save_model(build(rows=tokenizer().vocab_size, vocabulary=None), tokenizer(), tmp_path / "m")
    wanted = replaced_token.Config(generator_width=0.5)
    with pytest.raises(DataError, match=r"weights are missing: objectives\.replaced_token\..*--ignore-heads"):
        open_model(tmp_path / "m", objectives=[wanted])
    model, _, _ = open_model(tmp_path / "m", objectives=[], new_heads=[wanted])
    assert model.auxiliary_models()["generator"].encoder.width == 16
