"""`pretrain` end to end at the smallest size: it learns; stopped or killed, a run ends with the same bits."""

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
from typing import Any

import pytest
import torch
from command_line import call

from bertsmith import recipes, run
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.pretraining import pretrain
from bertsmith.recipe import Recipe, read_recipe, with_overrides
from bertsmith.text.wordpiece import Config
from bertsmith.train.log import last_of_each_step, read_events

SMALL = [
    "encoder.width=32",
    "encoder.heads=2",
    "encoder.layers=2",
    "packing.length=32",
    "plan.steps=16",
    "plan.warmup=4",
    "plan.rate=3e-3",
    "rows.full=16",
    "micro_rows=8",
    "evaluate_every=8",
    "evaluate_rows=16",
    "save_every=4",
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("pretrain")
    draw = random.Random(0)
    line = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다"
    words = line.split()
    texts = [" ".join(" ".join(draw.choices(words, k=7)) + "." for _ in range(6)) for _ in range(200)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    run.train_tokenizer([base / "text.txt"], base / "t", settings=Config(), vocabulary_size=90, workers=1, quiet=True)
    run.prepare([base / "text.txt"], base / "shards", tokenizer=base / "t", held_out=0.1, workers=1, quiet=True)
    return base / "shards"


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Sums over one and over two threads differ in their last bits, and other tests may have set another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def recipe(*changes: str, name: str = "bert/tiny") -> Recipe:
    return with_overrides(recipes.find(name), [*SMALL, *changes])


def losses(folder: Path) -> list[str]:
    return [float(event["loss"]).hex() for event in last_of_each_step(read_events(folder / "events.jsonl"), "step")]


@pytest.fixture(scope="module")
def whole(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    torch.set_num_threads(2)
    found = pretrain(recipe(), shards, folder, device="cpu", quiet=True)
    assert found["steps"] == 16
    return folder


def test_a_run_learns_and_leaves_models_behind(whole: Path) -> None:
    events = read_events(whole / "events.jsonl")
    steps = last_of_each_step(events, "step")
    assert [event["step"] for event in steps] == list(range(1, 17))
    assert steps[-1]["loss/masked_lm"] < steps[0]["loss/masked_lm"] - 0.5
    assert [event["step"] for event in last_of_each_step(events, "evaluation")] == [8, 16]
    for name in ("best", "last"):
        found = json.loads(call("fill-mask", whole / name, "the smith [MASK] iron", "--json").stdout)
        assert len(found["fillings"][0]) == 5
    assert read_recipe(whole / "recipe.json").plan.steps == 16


def test_stopped_and_gone_on_gives_the_same_bits(whole: Path, shards: Path, tmp_path: Path) -> None:
    program = "import sys\nfrom bertsmith.cli import main\nif __name__ == '__main__':\n    main()\n"
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), "pretrain", str(whole / "recipe.json")]
    command += ["--data", str(shards), "-o", str(tmp_path / "run"), "--device", "cpu", "-q"]
    events = tmp_path / "run" / "events.jsonl"
    for kill, after in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        threads = os.environ | {"OMP_NUM_THREADS": "2"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=threads)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if events.exists() and events.read_text().count('"kind": "step"') >= after:
                break
            time.sleep(0.02)
        os.kill(process.pid, kill)
        _, message = process.communicate()
        assert process.returncode == (75 if kill == signal.SIGTERM else -signal.SIGKILL), message
        if kill == signal.SIGTERM:
            assert "the same command goes on from there" in message
    pretrain(read_recipe(whole / "recipe.json"), shards, tmp_path / "run", device="cpu", quiet=True)
    assert losses(tmp_path / "run") == losses(whole)
    for name in ("model.safetensors", "config.json", "vocab.txt"):
        assert (tmp_path / "run" / "last" / name).read_bytes() == (whole / "last" / name).read_bytes()


@pytest.mark.parametrize("name", ["bert/no_nsp", "bert/ltr"])
def test_ablations_train(name: str, shards: Path, tmp_path: Path) -> None:
    found = pretrain(
        recipe("plan.steps=6", "plan.warmup=2", name=name), shards, tmp_path / "run", device="cpu", quiet=True
    )
    assert found["steps"] == 6


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_whole_and_comes_back_from_its_json(name: str, tmp_path: Path) -> None:
    made = recipes.find(name)
    assert made.name == name
    (tmp_path / "recipe.json").write_bytes(made.to_json())
    assert recipes.find(str(tmp_path / "recipe.json")) == made


def test_another_recipe_in_the_same_folder_is_refused(whole: Path, shards: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.rate was 0\.003 and is now 0\.001"):
        pretrain(recipe("plan.rate=1e-3"), shards, whole, device="cpu", quiet=True)


BAD: dict[str, tuple[list[str], int, str]] = {
    "unknown recipe": (["pretrain", "bert/tinny", "-d", "{s}", "-o", "{t}/r"], 78, "did you mean bert/tiny?"),
    "unknown key": (
        ["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "encoder.layer=4"],
        78,
        "did you mean encoder.layers?",
    ),
    "length over positions": (
        ["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "packing.length=600"],
        78,
        "encoder.positions",
    ),
    "no shards": (["pretrain", "bert/tiny", "-d", "{t}", "-o", "{t}/r"], 65, "index.json"),
    "uneven micro-batches": (["pretrain", "bert/tiny", "-d", "{s}", "-o", "{t}/r", "micro_rows=7"], 78, "7 rows"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case: str, shards: Path, tmp_path: Path) -> None:
    words, status, part = BAD[case]
    done = call(*[word.format(s=shards, t=tmp_path) for word in words], "--device", "cpu")
    assert done.returncode == status, done.stderr
    assert part in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_running_out_of_memory_gives_advice(shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertsmith import pretraining

    def exhausted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(pretraining, "_loop", exhausted)
    with pytest.raises(BertsmithError, match="8 rows in one forward: go on with micro_rows=4"):
        pretrain(recipe(), shards, tmp_path / "run", device="cpu", quiet=True)
