"""ELECTRA from text to a fine-tuned model, through the command line; killed, it goes on bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import Done, call

from bertsmith.train.log import last_of_each_step, read_events
from bertsmith.weights.model_folder import open_model

SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=2",
    "encoder.table_width=16",
    "objectives.replaced_token.generator=0.5",
    "packing.length=32",
    "plan.steps=8",
    "plan.warmup=2",
    "plan.rate=3e-3",
    "rows.full=8",
    "micro_rows=4",
    "evaluate_every=4",
    "evaluate_rows=8",
    "save_every=2",
]
PROGRAM = "from bertsmith.cli import main\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Sums over one and over two threads differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def done(*words: object) -> Done:
    found = call(*words)
    assert found.returncode == 0, found.stderr
    return found


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, shards, and a whole run."""
    base = tmp_path_factory.mktemp("electra")
    draw = random.Random(0)
    line = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다"
    words = line.split()
    texts = ["\n".join(" ".join(draw.choices(words, k=7)) + "." for _ in range(6)) for _ in range(60)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    done("tokenizer", "train", base / "text.txt", "-o", base / "t", "--vocab-size", 90, "--workers", 1, "-q")
    done("prepare", base / "text.txt", "-t", base / "t", "-o", base / "shards", "--held-out", 0.1, "--workers", 1, "-q")
    done(*pretraining(base, base / "run"))
    return base


def pretraining(base: Path, run: Path) -> list[object]:
    return ["pretrain", "electra/tiny", "--data", base / "shards", "-o", run, "--device", "cpu", "-q", *SMALL]


def losses(run: Path) -> list[str]:
    return [float(event["loss"]).hex() for event in last_of_each_step(read_events(run / "events.jsonl"), "step")]


def test_both_networks_learn_and_are_left_behind(base: Path) -> None:
    steps = last_of_each_step(read_events(base / "run" / "events.jsonl"), "step")
    assert len(steps) == 8
    for part in ("masked_lm", "replaced_token"):
        assert steps[-1][f"loss/{part}"] < steps[0][f"loss/{part}"] - 0.05
    for name in ("best", "last"):
        judge, _, facts = open_model(base / "run" / name)
        assert facts.architectures == ("ElectraForPreTraining",)
        assert list(judge.objectives) == ["replaced_token"]
        guesser, _, facts = open_model(base / "run" / "generator" / name)
        assert facts.architectures == ("ElectraForMaskedLM",)
        assert guesser.encoder.width == 16
        assert torch.equal(guesser.encoder.table, judge.encoder.table)
    card = (base / "run" / "last" / "README.md").read_text()
    assert f"| parameters | {sum(weight.numel() for weight in judge.parameters()):,} |" in card
    found = json.loads(done("fill-mask", base / "run" / "generator" / "best", "the smith [MASK] iron", "--json").stdout)
    assert len(found["fillings"][0]) == 5


def test_a_run_s_facts(base: Path) -> None:
    (facts,) = [event for event in read_events(base / "run" / "events.jsonl") if event["kind"] == "facts"]
    assert set(facts["unigram"]) == {"masked_lm"}
    assert 0.8 < facts["chance"]["replaced_token"] < 0.9


def test_killed_and_gone_on_gives_the_same_bits(base: Path) -> None:
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
    done(*words)
    assert losses(base / "again") == losses(base / "run")
    for folder in ("last", "generator/last"):
        ours, theirs = ((base / run / folder / "model.safetensors").read_bytes() for run in ("again", "run"))
        assert ours == theirs


@pytest.mark.slow
def test_a_second_stage_takes_both_networks(base: Path) -> None:
    shorter = ["plan.steps=1", "plan.warmup=0", "plan.rate=0", "evaluate_every=0", f"start={base / 'run' / 'last'}"]
    done(*pretraining(base, base / "second"), *shorter)
    start = next(event for event in read_events(base / "second" / "events.jsonl") if event["kind"] == "start")
    wanted = [base / "run" / "last", base / "run" / "generator" / "last"]
    assert start["notes"] == [f"began with the weights of {folder}" for folder in wanted]
    for folder in ("last", "generator/last"):
        ours, theirs = ((base / run / folder / "model.safetensors").read_bytes() for run in ("second", "run"))
        assert ours == theirs


def test_fine_tuned_judged_and_embedded(base: Path) -> None:
    rows = [f"{word} the smith\t{label}" for word, label in (("iron", "metal"), ("fire", "heat")) for _ in range(12)]
    (base / "task.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    files = ["--train", base / "task.tsv", "--dev", base / "task.tsv", "-o", base / "tuned", "--device", "cpu", "-q"]
    settings = ["epochs=2", "rate=3e-3", "depth_decay=0.8", "rows=8"]
    done("finetune", base / "run" / "best", "-t", "classification", *files, *settings)
    _, _, facts = open_model(base / "tuned" / "best")
    assert facts.architectures == ("ElectraForSequenceClassification",)
    (found,) = json.loads(done("classify", base / "tuned" / "best", "iron the smith", "--json").stdout)["predictions"]
    assert found["found"][0]["label"] in ("metal", "heat")
    (base / "texts.txt").write_text("iron\nfire burns\n")
    done("embed", base / "run" / "best", base / "texts.txt", "-o", base / "v.npy")
    assert np.load(base / "v.npy").shape == (2, 32)
