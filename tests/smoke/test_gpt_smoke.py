"""GPT-1 by the command line at the smallest size: text, shards, steps, resumed steps, fine-tuning, predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from smoke.smoke_fixtures import SMALL, done, metals, resume, steps, workspace_of

from bertsmith import load

SIZES = [*SMALL, "encoder.layers=2", "max_length=48", "learning_rate=1e-2", "keep_checkpoints=4"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base, pieces = tmp_path_factory.mktemp("gpt"), ["--kind", "bpe", "--vocab-size", 320]
    with workspace_of(base, "gpt/tiny", *SIZES, tokenizer=pieces, between=" ") as result:
        yield result


def test_pretraining_writes_a_transformers_folder(workspace: Path) -> None:
    result = steps(workspace / "run")
    assert result[-1]["loss/causal_lm"] < result[0]["loss/causal_lm"] - 0.5
    settings = json.loads((workspace / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["OpenAIGPTLMHeadModel"]
    assert settings["pad_token_id"] == load(workspace / "run" / "last").tokenizer.padding_id > 0


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    resume(workspace, "again")
    actual, other = ([step["loss"] for step in steps(workspace / name)] for name in ("again", "run"))
    assert actual == other[8:]
    one, second = (workspace / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == second.read_bytes()


def test_the_model_can_be_fine_tuned(workspace: Path) -> None:
    files = metals(workspace)
    settings = ["epochs=12", "batch_size=16", "learning_rate=3e-3", "max_length=32"]
    result = done(
        "finetune", workspace / "run" / "last", *files, "-o", workspace / "tuned", "--device", "cpu", *settings
    )
    assert result[f"score/{result['main']}"] > 0.9, result
    settings = json.loads((workspace / "tuned" / "best" / "config.json").read_text())
    assert settings["architectures"] == ["OpenAIGPTForSequenceClassification"]
    output = load(workspace / "tuned" / "best").predict(["iron the smith strikes iron and iron"])
    assert output[0]["label"] == "iron"
