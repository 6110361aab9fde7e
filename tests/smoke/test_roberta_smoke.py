"""RoBERTa by the command line at the smallest size: text, bytes, shards, steps, resumed steps, use, fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from smoke.smoke_fixtures import ACCENTED, SMALL, done, metals, resume, road_of, steps, where

from bertsmith import load

SIZES = [*SMALL, "encoder.layers=2", "max_length=48", "learning_rate=1e-2", "keep_checkpoints=4"]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base, pieces = tmp_path_factory.mktemp("roberta"), ["--kind", "byte_bpe", "--vocab-size", 320]
    with road_of(base, "roberta/tiny", *SIZES, tokenizer=pieces, line=ACCENTED, between=" ") as result:
        yield result


def test_pretraining_writes_a_transformers_folder(road: Path) -> None:
    result = steps(road / "run")
    assert result[-1]["loss/masked_lm"] < result[0]["loss/masked_lm"] - 0.5
    settings = json.loads((road / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForMaskedLM"]
    assert (settings["max_position_embeddings"], settings["pad_token_id"], settings["type_vocab_size"]) == (66, 1, 1)


def test_a_resumed_run_ends_with_the_same_bits(road: Path) -> None:
    resume(road, "again")
    actual, other = ([step["loss"] for step in steps(road / name)] for name in ("again", "run"))
    assert actual == other[8:]
    one, second = (road / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == second.read_bytes()


def test_masks_are_filled_and_texts_embedded(road: Path) -> None:
    result = done("fill-mask", road / "run" / "last", "the smith <mask> iron")
    assert len(result["fillings"][0]) == 5
    predictor = load(road / "run" / "last")
    for output in predictor.fill_mask("the smith <mask> iron", targets=["heats", "strikes"]):
        assert output["sequence"] in ("the smith heats iron", "the smith strikes iron"), "the space before it stays"
    assert predictor.encode(["the smith", "쇠를"]).shape == (2, 32)


def test_the_model_can_be_fine_tuned(road: Path) -> None:
    files = metals(road)
    settings = ["epochs=4", "batch_size=16", "learning_rate=1e-2", "max_length=32"]
    result = done("finetune", road / "run" / "last", *files, "-o", road / "tuned", "--device", "cpu", *settings)
    assert result[f"score/{result['main']}"] > 0.9, result
    settings = json.loads((road / "tuned" / "best" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForSequenceClassification"]
    output = load(road / "tuned" / "best").predict(["iron the smith strikes iron and iron"])
    assert output[0]["label"] == "iron"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sentence_pair", "segment_pair", "doc_sentences"])
def test_the_other_formats_of_input(name: str, road: Path) -> None:
    done("pretrain", f"roberta/{name}", *where(road, name), *SIZES, "steps=2", "warmup=0.5")
    settings = json.loads((road / name / "last" / "config.json").read_text())
    pair = name.endswith("pair")
    assert settings["model_type"] == ("bertsmith" if pair else "roberta"), "transformers' RoBERTa has no next sentence"
    assert list(load(road / name / "last").model.objectives) == ["masked_lm", "next_sentence"][: 1 + pair]
    assert len(done("fill-mask", road / name / "last", "the smith <mask> iron")["fillings"][0]) == 5
