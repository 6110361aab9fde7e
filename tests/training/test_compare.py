"""`compare`: several recipes on the same data, sequentially or in parallel, with the same results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import make_shards, steps, write_text
from threads import threads

from bertsmith import recipes
from bertsmith.errors import ConfigError
from bertsmith.training.compare import PAGE, chosen_recipes, compare, folder_name

SMALL = ["encoder.width=16", "encoder.heads=2", "encoder.layers=1", "max_length=32", "batch_size=8", "steps=6"]
SMALL += [
    "warmup=0.34",
    "learning_rate=3e-3",
    "eval_every=3",
    "eval_rows=8",
    "save_every=3",
    "compute.compile=false",
]
NAMES = ["bert/tiny", "bert/tiny,learning_rate=1e-2", "bert/no_nsp"]
FOLDERS = ["bert-tiny", "bert-tiny-learning_rate=1e-2", "bert-no_nsp"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("compare")
    make_shards(base, write_text(base, between=" ", documents=60), "--vocab-size", 160)
    return base / "shards"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with threads(1):
        yield


def losses(folder: Path) -> list[float]:
    return [float(event["loss"]) for event in steps(folder)]


def test_sequential_and_parallel_runs_agree(shards: Path, tmp_path: Path) -> None:
    chosen = chosen_recipes([*NAMES, *SMALL], recipes.find)
    assert chosen[NAMES[1]].learning_rate == 1e-2
    messages: list[str] = []
    sequential = compare(chosen, shards, tmp_path / "alone", device="cpu", quiet=True, say=messages.append)
    assert messages == [f"{number} of 3: {name}" for number, name in enumerate(NAMES, 1)]
    assert [folder.name for folder in sequential] == FOLDERS
    messages.clear()
    beside = compare(chosen, shards, tmp_path / "beside", jobs=2, device="cpu", say=messages.append)
    assert messages == [f"{number} of 3: {name}: done" for number, name in enumerate(NAMES, 1)]
    for one, other_folder in zip(sequential, beside, strict=True):
        assert len(losses(one)) == 6
        assert losses(other_folder) == pytest.approx(losses(one), rel=1e-5)
    first, second, _ = (losses(folder) for folder in sequential)
    assert first[2:] != second[2:]
    page = (tmp_path / "beside" / PAGE).read_text(encoding="utf-8")
    assert all(name in page for name in FOLDERS)


def test_finished_runs_are_not_repeated(shards: Path, tmp_path: Path) -> None:
    words = ["compare", *NAMES[:2], *SMALL, "-d", shards, "-o", tmp_path, "--device", "cpu"]
    first = call(*words)
    assert first.returncode == 0, first.stderr
    assert f"2 of 2: {NAMES[1]}" in first.stderr
    assert str(tmp_path / PAGE) in first.stdout.replace("\n", "")
    before = {name: (tmp_path / name / "events.jsonl").read_bytes() for name in FOLDERS[:2]}
    rerun = call(*words, "--jobs", 2)
    assert f"1 of 2: {NAMES[0]} is finished\n2 of 2: {NAMES[1]} is finished\n" in rerun.stderr
    assert before == {name: (tmp_path / name / "events.jsonl").read_bytes() for name in FOLDERS[:2]}
    messages = call("compare", *NAMES[:2], *SMALL, "-d", shards, "-o", tmp_path, "--device", "cpu", "--json")
    assert [row["run"] for row in json.loads(messages.stdout)["runs"]] == FOLDERS[:2]
    assert not messages.stderr
    refused = call(*words, "learning_rate=0.5").stderr
    assert "learning_rate was " in refused
    assert refused.endswith(": choose another -o, or remove that folder\n")


def test_invalid_comparisons_are_refused(shards: Path, tmp_path: Path) -> None:
    timed = call("compare", *NAMES, *SMALL, "minutes=1", "-d", shards, "-o", tmp_path / "new", "--jobs", 2)
    assert timed.returncode == 78
    assert timed.stderr.count("\n") == 1
    assert "bert/tiny sets minutes, and parallel jobs would share that time" in timed.stderr
    assert not (tmp_path / "new").exists()
    last = call("compare", *NAMES, "bert/ltr,encoder.causal=false", *SMALL, "-d", shards, "-o", tmp_path / "new")
    assert (last.returncode, last.stderr.count("\n")) == (78, 1)
    assert "bert/ltr,encoder.causal=false: causal_lm predicts the next token: it needs a causal encoder" in last.stderr
    assert not (tmp_path / "new").exists()  # nor were the three before it started
    chosen = chosen_recipes(["bert/tiny", "bert-tiny,seed=1"], lambda name: recipes.find("bert/tiny"))
    identical = {name.replace(",seed=1", ""): recipe for name, recipe in chosen.items()}
    with pytest.raises(ConfigError, match="two of these have the same folder name: bert/tiny, bert-tiny"):
        compare(identical, shards, tmp_path / "new", device="cpu")
    with pytest.raises(ConfigError, match="at least one recipe"):
        chosen_recipes(SMALL, recipes.find)
    assert folder_name("bert/mini,learning_rate=1e-3") == "bert-mini-learning_rate=1e-3"
    assert folder_name("bert/mini,name=fast,learning_rate=1e-3") == "fast"
    assert folder_name("bert/mini,name=../fast one") == "fast-one"
    assert folder_name("bert/mini,name=..") == "bert-mini-name="
