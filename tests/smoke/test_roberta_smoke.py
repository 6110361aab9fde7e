"""RoBERTa by the command line at the smallest size: text, bytes, shards, steps, resumed steps, use, fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from smoke.smoke_fixtures import ACCENTED, SMALL, done, metals, resume, run_arguments, steps, workspace_of

from bertsmith import load

SIZES = [*SMALL, "encoder.layers=2", "max_length=48", "learning_rate=1e-2", "keep_checkpoints=4"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base, pieces = tmp_path_factory.mktemp("roberta"), ["--kind", "byte_bpe", "--vocab-size", 320]
    with workspace_of(base, "roberta/tiny", *SIZES, tokenizer=pieces, line=ACCENTED, between=" ") as result:
        yield result


def test_pretraining_writes_a_transformers_folder(workspace: Path) -> None:
    result = steps(workspace / "run")
    assert result[-1]["loss/masked_lm"] < result[0]["loss/masked_lm"] - 0.5
    settings = json.loads((workspace / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForMaskedLM"]
    assert (settings["max_position_embeddings"], settings["pad_token_id"], settings["type_vocab_size"]) == (66, 1, 1)


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    resume(workspace, "again")
    actual, other = ([step["loss"] for step in steps(workspace / name)] for name in ("again", "run"))
    assert actual == other[8:]
    one, second = (workspace / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == second.read_bytes()


def test_masks_are_filled_and_texts_embedded(workspace: Path) -> None:
    result = done("fill-mask", workspace / "run" / "last", "the smith <mask> iron")
    assert len(result["fillings"][0]) == 5
    predictor = load(workspace / "run" / "last")
    for output in predictor.fill_mask("the smith <mask> iron", targets=["heats", "strikes"]):
        assert output["sequence"] in ("the smith heats iron", "the smith strikes iron"), "the space before it stays"
    assert predictor.encode(["the smith", "쇠를"]).shape == (2, 32)


def test_the_model_can_be_fine_tuned(workspace: Path) -> None:
    files = metals(workspace)
    settings = ["epochs=4", "batch_size=16", "learning_rate=1e-2", "max_length=32"]
    result = done(
        "finetune", workspace / "run" / "last", *files, "-o", workspace / "tuned", "--device", "cpu", *settings
    )
    assert result[f"score/{result['main']}"] > 0.9, result
    settings = json.loads((workspace / "tuned" / "best" / "config.json").read_text())
    assert settings["architectures"] == ["RobertaForSequenceClassification"]
    output = load(workspace / "tuned" / "best").predict(["iron the smith strikes iron and iron"])
    assert output[0]["label"] == "iron"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sentence_pair", "segment_pair", "doc_sentences"])
def test_the_other_formats_of_input(name: str, workspace: Path) -> None:
    done("pretrain", f"roberta/{name}", *run_arguments(workspace, name), *SIZES, "steps=2", "warmup=0.5")
    settings = json.loads((workspace / name / "last" / "config.json").read_text())
    pair = name.endswith("pair")
    assert settings["model_type"] == ("bertsmith" if pair else "roberta"), "transformers' RoBERTa has no next sentence"
    assert list(load(workspace / name / "last").model.objectives) == ["masked_lm", "next_sentence"][: 1 + pair]
    assert len(done("fill-mask", workspace / name / "last", "the smith <mask> iron")["fillings"][0]) == 5
