"""ELMo by the command line at the smallest size: a bidirectional language model, a task, resumed runs."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import (
    HALF,
    done,
    make_shards,
    metals,
    resume,
    run_arguments,
    steps,
    succeed,
    workspace_of,
    write_text,
)

from bertsmith import load
from bertsmith.training.log import last_of_each_step, read_events

SMALL = [
    *("encoder.width=12", "encoder.hidden=16", "encoder.filters=[[1,6],[2,6],[3,6]]", "max_length=8", "batch_size=16"),
    *(
        "micro_batch_size=8",
        "steps=16",
        "learning_rate=0.3",
        "schedule.kind=linear",
        "schedule.floor=0",
        "save_every=8",
        "eval_every=8",
        "eval_rows=16",
    ),
    "objectives.bidirectional_lm.samples=4",
]
TOKENIZER = ["--kind", "words", "--vocab-size", 16, "--set", "lowercase=false"]
HEAD = ["head.recurrent=none", "head.dropout=0.1", "head.hidden=16"]  # with batch normalisation


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with workspace_of(tmp_path_factory.mktemp("elmo"), "elmo/tiny", *SMALL, tokenizer=TOKENIZER) as result:
        yield result


def test_a_language_model_a_task_and_predictions(workspace: Path, tmp_path: Path) -> None:
    evaluations = last_of_each_step(read_events(workspace / "run" / "events.jsonl"), "evaluation")
    assert evaluations[-1]["loss/bidirectional_lm"] < math.log(16) - 0.1, "of the full softmax"
    tuned = ["-o", tmp_path / "tuned", "--device", "cpu", "batch_size=16", "epochs=10", "learning_rate=0.03", *HEAD]
    found = done("finetune", workspace / "run", *metals(workspace), *tuned)
    assert found[f"score/{found['main']}"] > 0.9, found
    settings = json.loads((tmp_path / "tuned" / "best" / "config.json").read_text())["objectives"]["classify"]
    assert (settings["layers"], settings["pooling"]) == ("mix", "concat")
    before, after = load(workspace / "run", device="cpu"), load(tmp_path / "tuned", device="cpu")
    trained = before.model.encoder.state_dict()
    assert all(value.equal(trained[name]) for name, value in after.model.encoder.state_dict().items()), "it is frozen"
    assert after.predict(["iron the smith strikes iron and iron"])[0]["label"] == "iron"
    one, other = after.encode(["Zyzzyva", "Quuxly"])
    assert abs(one - other).max() > 1e-4, "unknown words have vectors of their own"


def test_a_resumed_run_is_bit_identical(workspace: Path) -> None:
    resume(workspace, "again")
    assert [one["loss"] for one in steps(workspace / "again")] == [
        one["loss"] for one in steps(workspace / "run")[HALF:]
    ]
    for name in ("weights.safetensors", "recurrent_state.safetensors"):
        files = [sorted((workspace / run / "checkpoints").rglob(name))[-1].read_bytes() for run in ("run", "again")]
        assert files[0] == files[1]


def test_shards_without_spelling_are_refused(workspace: Path, tmp_path: Path) -> None:
    make_shards(
        tmp_path, write_text(tmp_path, documents=20), "--kind", "words", "--vocab-size", 40, "--set", "marks=true"
    )
    refused = call("pretrain", "elmo/tiny", *run_arguments(tmp_path, "run"), *SMALL)
    assert refused.returncode != 0
    assert "does not keep the spelling of words, which this encoder reads" in " ".join(refused.stderr.split())
    other = ["objectives.causal_lm.dropout=0", *SMALL]
    refused = call("pretrain", "awd_lstm/tiny", *run_arguments(workspace, "other"), "encoder.kind=elmo", *other)
    assert refused.returncode != 0
    assert "Traceback" not in refused.stderr


def test_commands_that_need_another_model(workspace: Path, tmp_path: Path) -> None:
    for words, message in (
        (("generate", workspace / "run", "the"), "this model has no causal_lm head"),
        (("export", workspace / "run", "--to", "onnx", "-o", tmp_path / "onnx"), "cannot be exported"),
        (("score", workspace / "run", "the smith"), "this model has no"),
    ):
        refused = call(*words)
        assert refused.returncode != 0
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_killed_run_resumes_bit_identically(workspace: Path, tmp_path: Path) -> None:
    """SIGKILL at several moments, in processes of their own."""
    settings = [*SMALL, "steps=40", "save_every=5", "eval_every=0"]
    command = [sys.executable, "-m", "bertsmith", "pretrain", "elmo/tiny", "-d", str(workspace / "shards"), *settings]
    command += ["--device", "cpu", "-q", "-o"]
    subprocess.run([*command, str(tmp_path / "uninterrupted")], check=True)
    events = tmp_path / "run" / "events.jsonl"
    for after in (3, 14, 27):
        process = subprocess.Popen([*command, str(tmp_path / "run")])
        while process.poll() is None:
            if events.exists() and events.read_text().count('"kind": "step"') >= after:
                process.kill()
            time.sleep(0.01)
        assert process.returncode == -signal.SIGKILL
    subprocess.run([*command, str(tmp_path / "run")], check=True)
    for pattern in ("last/model.safetensors", "**/recurrent_state.safetensors"):
        files = [sorted((tmp_path / run).glob(pattern))[-1].read_bytes() for run in ("run", "uninterrupted")]
        assert files[0] == files[1]
    succeed("predict", "--help")
