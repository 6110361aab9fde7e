"""ALBERT by the command line at the smallest size: text, pieces, shards, steps, resumed steps, use, fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import ACCENTED, SMALL, done, metals, resume, run_arguments, steps, workspace_of

from bertsmith.training.log import last_of_each_step, read_events

SIZES = [*SMALL, "encoder.embedding_width=16", "max_length=32", "learning_rate=3e-2", "keep_checkpoints=4"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base, pieces = tmp_path_factory.mktemp("albert"), ["--kind", "unigram", "--vocab-size", 160]
    with workspace_of(base, "albert/tiny", *SIZES, tokenizer=pieces, line=ACCENTED, between=" ") as result:
        yield result


def test_pretraining_reduces_the_loss_and_reports_metrics(workspace: Path) -> None:
    result = steps(workspace / "run")
    assert result[-1]["loss/masked_lm"] < result[0]["loss/masked_lm"] - 0.5
    assert {"loss/sentence_order", "accuracy/sentence_order"} <= set(result[0])
    assert len(last_of_each_step(read_events(workspace / "run" / "events.jsonl"), "evaluation")) == 2
    settings = json.loads((workspace / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["AlbertForPreTraining"]
    assert (settings["embedding_size"], settings["num_hidden_groups"]) == (16, 1)


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    resume(workspace, "again")
    actual, other = ([step["loss"] for step in steps(workspace / name)] for name in ("again", "run"))
    assert actual == other[8:]
    one, second = (workspace / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == second.read_bytes()


def test_a_dry_run_reports_the_objectives(workspace: Path) -> None:
    dry = [*run_arguments(workspace, "dry"), "--dry-run"]
    result = json.dumps(done("pretrain", "albert/tiny", *dry, *SIZES))
    assert "of these swapped" in result
    assert "chance 0.693" in result
    wrong = call("pretrain", "albert/tiny", *dry, "packing.kind=pairs", "max_length=32", *SIZES, "--json")
    assert (
        "sentence_order needs the labels of packing.kind=ordered_pairs, but packing.kind=pairs"
        in wrong.stdout + wrong.stderr
    )


def test_masks_are_filled_and_texts_embedded(workspace: Path) -> None:
    result = done("fill-mask", workspace / "run" / "last", "the smith [MASK] iron")
    assert len(result["fillings"][0]) == 5
    (workspace / "some.txt").write_text("the smith heats iron\n쇠를 두드린다\n", encoding="utf-8")
    built = call("embed", workspace / "run" / "last", workspace / "some.txt", "-o", workspace / "vectors.npy")
    assert built.returncode == 0, built.stderr


def test_the_model_can_be_fine_tuned(workspace: Path) -> None:
    files = metals(workspace)
    settings = ["epochs=12", "batch_size=16", "learning_rate=1e-2", "max_length=32"]
    result = done(
        "finetune", workspace / "run" / "last", *files, "-o", workspace / "tuned", "--device", "cpu", *settings
    )
    assert result[f"score/{result['main']}"] > 0.9, result
    output = call("predict", workspace / "tuned", "--file", workspace / "dev.jsonl", "--device", "cpu")
    assert output.stdout.count("iron") + output.stdout.count("anvil") >= 32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["share_attention", "nsp"])
def test_ablations_train_and_predict(name: str, workspace: Path) -> None:
    shorter = ["encoder.layers=2", "steps=2", "warmup=0.5"]
    done("pretrain", f"albert/{name}", *run_arguments(workspace, name), *SIZES, *shorter)
    settings = json.loads((workspace / name / "last" / "config.json").read_text())
    assert settings["model_type"] == "bertsmith", "transformers has no class for these"
    assert len(done("fill-mask", workspace / name / "last", "the smith [MASK] iron")["fillings"][0]) == 5
