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
    with road_of(base, "roberta/tiny", *SIZES, tokenizer=pieces, line=ACCENTED, between=" ") as found:
        yield found


def test_it_learns_and_leaves_a_folder_of_transformers(road: Path) -> None:
    found = steps(road / "run")
    assert found[-1]["loss/masked_lm"] < found[0]["loss/masked_lm"] - 0.5
    settings = json.loads((road / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForMaskedLM"]
    assert (settings["max_position_embeddings"], settings["pad_token_id"], settings["type_vocab_size"]) == (66, 1, 1)


def test_a_resumed_run_ends_with_the_same_bits(road: Path) -> None:
    resume(road, "again")
    mine, other = ([step["loss"] for step in steps(road / name)] for name in ("again", "run"))
    assert mine == other[8:]
    one, another = (road / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == another.read_bytes()


def test_it_fills_gaps_and_gives_vectors(road: Path) -> None:
    found = done("fill-mask", road / "run" / "last", "the smith <mask> iron")
    assert len(found["fillings"][0]) == 5
    predictor = load(road / "run" / "last")
    for said in predictor.fill_mask("the smith <mask> iron", targets=["heats", "strikes"]):
        assert said["sequence"] in ("the smith heats iron", "the smith strikes iron"), "the space before it stays"
    assert predictor.encode(["the smith", "쇠를"]).shape == (2, 32)


def test_it_is_fine_tuned(road: Path) -> None:
    files = metals(road)
    settings = ["epochs=4", "batch_size=16", "learning_rate=1e-2", "max_length=32"]
    found = done("finetune", road / "run" / "last", *files, "-o", road / "tuned", "--device", "cpu", *settings)
    assert found[f"score/{found['main']}"] > 0.9, found
    settings = json.loads((road / "tuned" / "best" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForSequenceClassification"]
    said = load(road / "tuned" / "best").predict(["iron the smith strikes iron and iron"])
    assert said[0]["label"] == "iron"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sentence_pair", "segment_pair", "doc_sentences"])
def test_the_other_formats_of_input(name: str, road: Path) -> None:
    done("pretrain", f"roberta/{name}", *where(road, name), *SIZES, "steps=2", "warmup=0.5")
    settings = json.loads((road / name / "last" / "config.json").read_text())
    pair = name.endswith("pair")
    assert settings["model_type"] == ("bertsmith" if pair else "roberta"), "transformers' RoBERTa has no next sentence"
    assert list(load(road / name / "last").model.objectives) == ["masked_lm", "next_sentence"][: 1 + pair]
    assert len(done("fill-mask", road / name / "last", "the smith <mask> iron")["fillings"][0]) == 5
