"""Damage to the files of a run: what can be skipped is skipped and named, even with -q, and the result is the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Done, call
from threads import threads
from training.test_pretrain import losses, recipe, stop_after

from bertsmith.errors import SkippedWarning
from bertsmith.training.pretrain import PretrainRun, pretrain
from bertsmith.training.pretrain_data import PretrainData
from bertsmith.training.run import Evaluation
from bertsmith.training.step import Step

CHANGES = ("steps=6", "eval_every=2", "save_every=2", "batch_size=8", "eval_rows=4")
WEIGHTS = ("last/model.safetensors", "best/model.safetensors", "checkpoints/step-00000006/optimizer.safetensors")


@pytest.fixture(autouse=True, scope="module")
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


@pytest.fixture(scope="module")
def evaluations() -> Iterator[None]:
    """The model after step 2 has the best score."""

    def evaluate(run: PretrainRun) -> Evaluation:
        cost = float(run.trainer.steps_done)
        return Evaluation({"loss": cost, "loss/masked_lm": cost}, cost, "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainRun, "evaluate", evaluate)
        yield


@pytest.fixture(scope="module")
def runs(evaluations: None, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A finished run, and one that was stopped after step 4."""
    base = tmp_path_factory.mktemp("damaged")
    pretrain(recipe(*CHANGES), shards, base / "whole", device="cpu", quiet=True)
    stop_after(4, lambda: pretrain(recipe(*CHANGES), shards, base / "stopped", device="cpu", quiet=True))
    return base / "whole", base / "stopped"


@pytest.fixture
def stopped(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[1], tmp_path / "run"))


def resume(run: Path, shards: Path) -> Done:
    done = call("pretrain", run / "recipe.json", "-d", shards, "-o", run, "-q", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    return done


def assert_same_result(run: Path, whole: Path) -> None:
    assert losses(run)[-2:] == losses(whole)[-2:]
    for name in WEIGHTS:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


RUBBISH = b"\x00\xff\x80{\x00\n"


def test_garbled_lines_of_the_log_are_skipped(runs: tuple[Path, Path], stopped: Path, shards: Path) -> None:
    events = stopped / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    best = next(index for index, line in enumerate(lines) if b'"evaluation"' in line)
    lines[best] = RUBBISH
    lines[best + 2] = lines[best + 2][:20] + lines[best + 3]
    events.write_bytes(b"".join([*lines, RUBBISH, lines[3][:30]]))
    expected = [
        f"events.jsonl:{number} is not an event and was skipped: it is not JSON"
        for number in (best + 1, best + 3, len(lines) + 1)
    ]
    shown = call("runs", "show", stopped)
    assert shown.returncode == 0
    assert all(line in shown.stdout for line in expected)
    done = resume(stopped, shards)
    expected.append("the last 30 bytes of events.jsonl are not a complete line and were removed")
    assert done.stderr.splitlines() == [f"bertsmith: warning: {line}" for line in expected]
    assert_same_result(stopped, runs[0])


def test_a_skipped_checkpoint_is_reported_although_quiet(runs: tuple[Path, Path], stopped: Path, shards: Path) -> None:
    weights = stopped / "checkpoints" / "step-00000004" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    done = resume(stopped, shards)
    assert done.stderr.startswith("bertsmith: warning: step-00000004 was skipped: ")
    assert len(done.stderr.splitlines()) == 1
    assert_same_result(stopped, runs[0])


def test_a_skipped_update_is_reported_although_quiet(
    stopped: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Step, "skipped", property(lambda step: step.number == 6))
    with pytest.warns(SkippedWarning, match="the update of step 6 was skipped: its loss or gradient is not finite"):
        pretrain(recipe(*CHANGES), shards, stopped, device="cpu", quiet=True)


@pytest.mark.parametrize("damage", ["truncated", "garbled", "removed", "replaced"])
def test_a_damaged_tokenizer_of_shards_is_named_with_the_remedy(damage: str, shards: Path, tmp_path: Path) -> None:
    copied = Path(shutil.copytree(shards, tmp_path / "shards"))
    file = copied / "tokenizer" / "tokenizer.json"
    contents = file.read_bytes()
    if damage == "truncated":
        file.write_bytes(contents[:-200])
    elif damage == "garbled":
        file.write_bytes(contents[:500] + bytes(range(256)) + contents[500:])
    elif damage == "removed":
        shutil.rmtree(file.parent)
        file = copied / "tokenizer" / "tokenizer_config.json"
    else:
        for path in (file, file.with_name("vocab.txt")):
            path.write_bytes(path.read_bytes().replace("쇠를".encode(), "쇠들".encode()))
    words: list[object] = [
        "pretrain",
        "bert/tiny",
        "-d",
        copied,
        "-o",
        tmp_path / "run",
        "-q",
        "--device",
        "cpu",
        "steps=1",
    ]
    done = call(*words)
    assert (done.returncode, len(done.stderr.splitlines())) == (65, 1)
    assert done.stderr.startswith(f"bertsmith: {file} is ")
    assert f"to {copied}/tokenizer, or run `bertsmith prepare` again with --overwrite" in done.stderr
    assert not (tmp_path / "run").exists()
    shutil.copytree(shards.parent / "t", copied / "tokenizer", dirs_exist_ok=True)
    assert PretrainData.open(copied).tokenizer.fingerprint in done.stderr
