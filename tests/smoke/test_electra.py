"""ELECTRA from text to a fine-tuned model on the command line; a killed run resumes bit-identically."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from smoke.smoke_fixtures import done, steps, succeed, write_text
from threads import threads

from bertsmith.model_io.model_folder import open_model
from bertsmith.training.log import read_events

SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=2",
    "encoder.embedding_width=16",
    "objectives.replaced_token.generator_width=0.5",
    "max_length=32",
    "steps=8",
    "warmup=0.25",
    "learning_rate=3e-3",
    "batch_size=8",
    "micro_batch_size=4",
    "eval_every=4",
    "eval_rows=8",
    "save_every=2",
]
PROGRAM = "from bertsmith.cli import main\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Text, shards and a complete run."""
    base = tmp_path_factory.mktemp("electra")
    alone = ["--workers", 1, "-q"]
    with threads(1):
        text = write_text(base, documents=60, sentences=6, words=7)
        succeed("tokenizer", "train", text, "-o", base / "t", "--vocab-size", 160, *alone)
        succeed("prepare", text, "-t", base / "t", "-o", base / "shards", "--held-out", 0.1, *alone)
        succeed(*pretraining(base, base / "run"))
        yield base


def pretraining(base: Path, run: Path) -> list[object]:
    return ["pretrain", "electra/tiny", "--data", base / "shards", "-o", run, "--device", "cpu", "-q", *SMALL]


def losses(run: Path) -> list[str]:
    return [float(step["loss"]).hex() for step in steps(run)]


def test_both_networks_train_and_are_saved(base: Path) -> None:
    log = steps(base / "run")
    assert len(log) == 8
    for part in ("masked_lm", "replaced_token"):
        assert log[-1][f"loss/{part}"] < log[0][f"loss/{part}"] - 0.05
    for step in log:
        assert step["loss/base_rate"] == pytest.approx(1 - step["accuracy/base_rate"])
    weighted = log[0]["loss/masked_lm"] + 50 * log[0]["loss/replaced_token"]
    assert log[0]["loss"] == pytest.approx(weighted)
    for name in ("best", "last"):
        discriminator, _, facts = open_model(base / "run" / name)
        assert facts.architectures == ("ElectraForPreTraining",)
        assert list(discriminator.objectives) == ["replaced_token"]
        guesser, _, facts = open_model(base / "run" / "generator" / name)
        assert facts.architectures == ("ElectraForMaskedLM",)
        assert guesser.encoder.width == 16
        assert torch.equal(guesser.encoder.token_embeddings, discriminator.encoder.token_embeddings)
    card = (base / "run" / "last" / "README.md").read_text()
    assert f"| parameters | {sum(weight.numel() for weight in discriminator.parameters()):,} |" in card
    result = done("fill-mask", base / "run" / "generator" / "best", "the smith [MASK] iron")
    assert len(result["fillings"][0]) == 5


def test_the_facts_of_a_run(base: Path) -> None:
    (facts,) = [event for event in read_events(base / "run" / "events.jsonl") if event["kind"] == "facts"]
    assert set(facts["unigram"]) == {"masked_lm"}
    assert not facts["chance"], "the base rate changes as the generator learns: it is a loss term"


def test_a_killed_and_resumed_run_is_bit_identical(base: Path) -> None:
    (base / "program.py").write_text(PROGRAM)
    words = [str(word) for word in pretraining(base, base / "again")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, str(base / "program.py"), *words], env=environment)
    events = base / "again" / "events.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if events.exists() and events.read_text().count('"kind": "step"') >= 4:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    succeed(*words)
    assert losses(base / "again") == losses(base / "run")
    for folder in ("last", "generator/last"):
        actual, expected = ((base / run / folder / "model.safetensors").read_bytes() for run in ("again", "run"))
        assert actual == expected


@pytest.mark.slow
def test_a_second_stage_starts_from_both_networks(base: Path) -> None:
    shorter = ["steps=1", "warmup=0", "learning_rate=0", "eval_every=0", f"start={base / 'run' / 'last'}"]
    succeed(*pretraining(base, base / "second"), *shorter)
    start = next(event for event in read_events(base / "second" / "events.jsonl") if event["kind"] == "start")
    expected_value = [base / "run" / "last", base / "run" / "generator" / "last"]
    assert start["notes"] == [f"started from the weights of {folder}" for folder in expected_value]
    for folder in ("last", "generator/last"):
        actual, expected = ((base / run / folder / "model.safetensors").read_bytes() for run in ("second", "run"))
        assert actual == expected


def test_fine_tuning_evaluation_and_embedding(base: Path) -> None:
    rows = [f"{word} the smith\t{label}" for word, label in (("iron", "metal"), ("fire", "heat")) for _ in range(12)]
    (base / "task.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    files = ["--train", base / "task.tsv", "--dev", base / "task.tsv", "-o", base / "tuned", "--device", "cpu", "-q"]
    settings = ["epochs=2", "learning_rate=3e-3", "layer_decay=0.8", "batch_size=8"]
    succeed("finetune", base / "run" / "best", "-t", "classification", *files, *settings)
    _, _, facts = open_model(base / "tuned" / "best")
    assert facts.architectures == ("ElectraForSequenceClassification",)
    (result,) = done("classify", base / "tuned" / "best", "iron the smith")["predictions"]
    assert result["results"][0]["label"] in ("metal", "heat")
    (base / "texts.txt").write_text("iron\nfire burns\n")
    succeed("embed", base / "run" / "best", base / "texts.txt", "-o", base / "v.npy")
    assert np.load(base / "v.npy").shape == (2, 32)
