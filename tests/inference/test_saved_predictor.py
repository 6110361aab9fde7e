"""A predictor as an object: saved, moved, closed, printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference.predictor_fixtures import KINDS, TEXTS, random_model, tokenizer

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.inference.engine import Engine, EngineClosed
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.sentence_transformers import DenseLayer, SentenceSettings
from bertsmith.objectives import classify, masked_lm, multi_label, span

HEADS: tuple[Any, ...] = (classify.Config(labels=KINDS), span.Config(no_answer=-3.5), masked_lm.Config())


@pytest.fixture
def model() -> Predictor:
    return Predictor(random_model(*HEADS), tokenizer())


def outputs(model: Predictor) -> list[Any]:
    return [
        model.predict(TEXTS),
        model.answer("which thing", "the smith has red gold"),
        model.fill_mask("the [MASK] is red"),
        model.encode(TEXTS).tolist(),
    ]


def test_a_saved_predictor_has_the_same_outputs(model: Predictor, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "model")
    again = bertsmith.load(folder, device="cpu")
    assert outputs(again) == outputs(model)
    assert again.model.objectives["span"].config.no_answer == -3.5
    again.save(folder, overwrite=True)  # over the folder that it was loaded from
    assert outputs(bertsmith.load(folder, device="cpu")) == outputs(model)


def test_thresholds_are_saved(tmp_path: Path) -> None:
    model = Predictor(random_model(multi_label.Config(labels=KINDS, thresholds=(0.01, 0.99))), tokenizer())
    again = bertsmith.load(model.save(tmp_path / "model"), device="cpu")
    assert again.predict(TEXTS) == model.predict(TEXTS)
    assert again.model.objectives["multi_label"].config.thresholds == (0.01, 0.99)


def test_settings_of_embeddings_are_saved(tmp_path: Path) -> None:
    dense = DenseLayer(torch.randn(8, 32), torch.randn(8), tanh=True)
    prompts = {"query": "which thing is "}
    settings = SentenceSettings("max", normalize=True, max_length=6, prompts=prompts, dense=(dense,))
    model = Predictor(random_model(), tokenizer(), sentence_settings=settings)
    again = bertsmith.load(model.save(tmp_path / "model"), device="cpu")
    for prompt in ("", "query"):
        assert np.array_equal(again.encode(TEXTS, prompt=prompt), model.encode(TEXTS, prompt=prompt))
    broken = Predictor(random_model(), tokenizer(), sentence_settings=SentenceSettings(unread="WKPooling is not known"))
    with pytest.raises(BertsmithError, match=r"WKPooling is not known; to save .* without modules.json"):
        broken.save(tmp_path / "broken")


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_smaller_precision_saves_the_original_weights(precision: Any, model: Predictor, tmp_path: Path) -> None:
    folder = model.save(tmp_path / "model")
    small = bertsmith.load(folder, device="cpu", precision=precision, head="classify")
    again = bertsmith.load(small.save(tmp_path / "again"), device="cpu")
    assert list(again.model.objectives) == ["classify"]
    assert np.array_equal(again.predict_proba(TEXTS), model.predict_proba(TEXTS))
    with torch.no_grad():
        model.model.encoder.embeddings.tokens.weight.add_(1)
    model.save(folder, overwrite=True)
    with pytest.raises(BertsmithError, match="has changed since it was loaded"):
        small.save(tmp_path / "wrong")
    with pytest.raises(BertsmithError, match=f"a predictor in {precision} .* was not loaded from a folder"):
        Predictor(random_model(), tokenizer(), precision=precision).save(tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_only_a_model_folder_is_overwritten(model: Predictor, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "config.json").write_text("{}")  # of something else
    (tmp_path / "file").write_text("text")
    for name in ("project", "file"):
        with pytest.raises(BertsmithError, match=r"exists: choose another folder, or pass overwrite=True"):
            model.save(tmp_path / name)
        with pytest.raises(BertsmithError, match=f"{name} is not a model folder"):
            model.save(tmp_path / name, overwrite=True)
    assert (tmp_path / "project" / "config.json").read_text() == "{}"
    (tmp_path / "empty").mkdir()
    model.save(tmp_path / "empty")


def test_a_closed_predictor_frees_its_memory(tmp_path: Path, model: Predictor) -> None:
    with model as same:
        assert same is model
        assert model.predict("red iron")["label"] in KINDS
    assert all(value.is_meta for value in model.model.parameters())
    for use in (lambda: model.predict("a"), lambda: model.save(tmp_path / "model"), lambda: model.attention("a")):
        with pytest.raises(BertsmithError, match="this predictor is closed: load the model again"):
            use()
    assert model.labels == KINDS
    assert "closed" in repr(model)
    model.close()


def test_closing_closes_the_backend(model: Predictor) -> None:
    engine = Engine(model.backend)
    with model.with_backend(engine) as shared:
        assert shared.predict("red iron") == model.predict("red iron")
        with pytest.raises(BertsmithError, match="call to\\(\\) before with_backend"):
            shared.to("cpu")
    with pytest.raises(EngineClosed):
        model.with_backend(engine).predict("red iron")


def test_to_returns_the_predictor(model: Predictor) -> None:
    assert model.to("cpu") is model
    assert model.device == "cpu"
    with pytest.raises(BertsmithError, match="abacus is unknown"):
        model.to("abacus")


def test_the_representation_names_the_model(model: Predictor, tmp_path: Path) -> None:
    count = f"{sum(value.numel() for value in model.model.parameters()):,}"
    heads = "classify (no, yes), span, masked_lm"
    assert repr(model) == f"Predictor(bert, {count} parameters, heads: {heads}, float32 on cpu)"
    loaded = bertsmith.load(model.save(tmp_path / "m"), device="cpu", precision="int8", head="masked_lm")
    assert repr(loaded).endswith(f"heads: masked_lm, int8 on cpu, folder '{tmp_path / 'm'}')")
    many = Predictor(random_model(classify.Config(labels=tuple("abcdefgh"))), tokenizer())
    assert "classify (8 labels)" in repr(many)
