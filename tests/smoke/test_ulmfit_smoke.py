"""ULMFiT's three stages by the command line at the smallest size: general text, text of the task, classification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import done, make_shards, metals, run_arguments, steps, succeed, workspace_of, write_text

from bertsmith import load

SMALL = [
    *("encoder.layers=2", "encoder.width=24", "encoder.hidden=32", "encoder.dropout_scale=0.1", "max_length=12"),
    *("batch_size=16", "micro_batch_size=8", "steps=16", "learning_rate=2e-2", "save_every=8", "eval_every=8"),
]
EASY = ["--device", "cpu", "batch_size=16", "epochs=10", "learning_rate=0.03", "encoder.dropout_scale=0.1"]
NEW_WORDS = "the smith heats iron and strikes an anvil while water cools copper"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    words = ["--kind", "words", "--vocab-size", 40]
    with workspace_of(tmp_path_factory.mktemp("ulmfit"), "awd_lstm/tiny", *SMALL, tokenizer=words) as result:
        yield result


def test_three_stages(workspace: Path, tmp_path: Path) -> None:
    result = steps(workspace / "run")
    assert result[-1]["loss/causal_lm"] < result[0]["loss/causal_lm"] - 0.5
    assert result[0]["loss/activation_penalty"] > 0
    make_shards(tmp_path, write_text(tmp_path, NEW_WORDS, documents=60), "--kind", "words", "--vocab-size", 40)
    target = ["--start", workspace / "run", "encoder.dropout_scale=0.1", "max_length=12", "packing.mean_length=8"]
    sizes = ["batch_size=8", "steps=12", "learning_rate=1e-2", "eval_every=6"]
    printed = succeed("pretrain", "awd_lstm/target", *run_arguments(tmp_path, "target"), *target, *sizes).stderr
    assert "tokens are in its vocabulary; the others start as the mean of all" in " ".join(printed.split())
    files = metals(workspace)
    tuned = done("finetune", tmp_path / "target", *files, "-o", tmp_path / "tuned", *EASY)
    assert tuned[f"score/{tuned['main']}"] > 0.9, tuned
    settings = json.loads((tmp_path / "tuned" / "best" / "config.json").read_text())
    head, encoder = settings["objectives"]["classify"], settings["encoder"]
    assert (head["pooling"], head["hidden"], encoder["weight_dropout"], encoder["bptt"]) == ("concat", 50, 0.5, 70)
    output = load(tmp_path / "tuned").predict(["iron the smith strikes iron and iron"])
    assert output[0]["label"] == "iron"


def test_what_a_recurrent_language_model_can_do(workspace: Path, tmp_path: Path) -> None:
    scored = done("score", workspace / "run", "the smith heats iron")
    assert scored["perplexity"] > 1
    refused = {
        ("generate", workspace / "run", "the"): "generation needs a Transformer with a key/value cache",
        ("export", workspace / "run", "--to", "onnx", "-o", tmp_path / "onnx"): "recurrent encoders cannot be exported",
        (
            "pretrain",
            "gpt/tiny",
            *run_arguments(workspace, "gpt"),
            "--start",
            workspace / "run",
            "max_length=16",
        ): "has the encoder awd_lstm",
    }
    tuned = ("finetune", workspace / "run", *metals(workspace), "-o", tmp_path / "tuned", "--device", "cpu")
    refused[*tuned, "encoder.layers=4"] = "encoder.layers cannot be changed in fine-tuning, only bptt, dropout_scale,"
    refused[*tuned, "dropout=0.1"] = "awd_lstm has no single dropout; its settings are encoder.bptt"
    for words, message in refused.items():
        output = call(*words)
        assert output.returncode != 0
        assert message in output.stderr
        assert "Traceback" not in output.stderr


def test_a_backward_model_is_trained_and_fine_tuned_alike(workspace: Path, tmp_path: Path) -> None:
    backward = [*SMALL, "encoder.backward=true", "steps=12"]
    done("pretrain", "awd_lstm/tiny", "-d", workspace / "shards", "-o", tmp_path / "run", "--device", "cpu", *backward)
    result = steps(tmp_path / "run")
    assert result[-1]["loss/causal_lm"] < result[0]["loss/causal_lm"] - 0.4
    tuned = done("finetune", tmp_path / "run", *metals(workspace), "-o", tmp_path / "tuned", *EASY)
    assert tuned[f"score/{tuned['main']}"] > 0.8, tuned
