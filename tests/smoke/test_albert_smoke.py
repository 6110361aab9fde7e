"""ALBERT by the command line at the smallest size: text, pieces, shards, steps, resumed steps, use, fine-tuning."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call

from bertsmith.train.log import last_of_each_step, read_events

SHAPE = ["encoder.width=32", "encoder.heads=2", "encoder.table_width=16", "encoder.initial_range=0.1"]
ROWS = ["encoder.positions=64", "packing.length=32", "rows.full=16", "micro_rows=8"]
PLAN = ["plan.steps=16", "plan.warmup=4", "plan.rate=3e-2", "save_every=8", "keep=4"]
SIZES = [*SHAPE, *ROWS, *PLAN, "evaluate_every=8", "evaluate_rows=16"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def done(*words: object) -> Any:
    """What a verb says in JSON, once it has gone well."""
    found = call(*words, "--json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, tokenizer, shards and a pre-training run in one folder."""
    base, draw = tmp_path_factory.mktemp("albert"), random.Random(0)
    line = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다 café"
    words = line.split()
    texts = [" ".join(" ".join(draw.choices(words, k=5)) + "." for _ in range(8)) for _ in range(120)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    text, alone = base / "text.txt", ["--workers", 1]
    done("tokenizer", "train", text, "-o", base / "t", "--kind", "unigram", "--vocab-size", 120, *alone)
    done("prepare", text, "-t", base / "t", "-o", base / "shards", "--held-out", 0.1, *alone)
    where = ["-d", base / "shards", "-o", base / "run", "--device", "cpu"]
    found = done("pretrain", "albert/tiny", *where, *SIZES)
    assert found["steps"] == 16
    return base


def steps(run: Path) -> list[dict[str, Any]]:
    return last_of_each_step(read_events(run / "events.jsonl"), "step")


def test_it_learns_and_says_how_well(road: Path) -> None:
    found = steps(road / "run")
    assert found[-1]["loss/masked_lm"] < found[0]["loss/masked_lm"] - 0.5
    assert {"loss/sentence_order", "accuracy/sentence_order"} <= set(found[0])
    assert len(last_of_each_step(read_events(road / "run" / "events.jsonl"), "evaluation")) == 2
    settings = json.loads((road / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["AlbertForPreTraining"]
    assert (settings["embedding_size"], settings["num_hidden_groups"]) == (16, 1)


def test_a_resumed_run_ends_with_the_same_bits(road: Path) -> None:
    where = ["-d", road / "shards", "-o", road / "again", "--device", "cpu"]
    middle = min((road / "run" / "checkpoints").iterdir())
    assert int(middle.name.removeprefix("step-")) == 8
    done("pretrain", road / "run" / "recipe.json", *where, "--resume", middle)
    mine, other = ([step["loss"] for step in steps(road / name)] for name in ("again", "run"))
    assert mine == other[8:]
    one, another = (road / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == another.read_bytes()


def test_a_dry_run_tells_what_is_asked(road: Path) -> None:
    where = ["-d", road / "shards", "-o", road / "dry", "--device", "cpu", "--dry-run"]
    found = json.dumps(done("pretrain", "albert/tiny", *where, *SIZES))
    assert "of these swapped" in found
    assert "blind guessing 0.693" in found
    wrong = call("pretrain", "albert/tiny", *where, "packing.kind=pairs", "packing.length=32", *SIZES, "--json")
    assert "sentence_order needs ordered_pairs, which packing.kind=pairs does not make" in wrong.stdout + wrong.stderr


def test_it_fills_gaps_and_gives_vectors(road: Path) -> None:
    found = done("fill-mask", road / "run" / "last", "the smith [MASK] iron")
    assert len(found["fillings"][0]) == 5
    (road / "some.txt").write_text("the smith heats iron\n쇠를 두드린다\n", encoding="utf-8")
    made = call("embed", road / "run" / "last", road / "some.txt", "-o", road / "vectors.npy")
    assert made.returncode == 0, made.stderr


def test_it_is_fine_tuned(road: Path) -> None:
    draw = random.Random(1)
    for name, count in (("train", 128), ("dev", 32)):
        rows = []
        for _ in range(count):
            metal = draw.choice(("iron", "anvil"))
            rows.append({"text": f"{metal} the smith strikes {metal} and {metal}", "label": metal})
        (road / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["-t", "classification", "--train", road / "train.jsonl", "--dev", road / "dev.jsonl"]
    settings = ["epochs=12", "rows=16", "rate=1e-2", "length=32"]
    found = done("finetune", road / "run" / "last", *files, "-o", road / "tuned", "--device", "cpu", *settings)
    assert found[f"score/{found['main']}"] > 0.9, found
    said = call("predict", road / "tuned", "--file", road / "dev.jsonl", "--device", "cpu")
    assert said.stdout.count("iron") + said.stdout.count("anvil") >= 32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["share_attention", "nsp"])
def test_ablations_train_and_are_used(name: str, road: Path) -> None:
    where = ["-d", road / "shards", "-o", road / name, "--device", "cpu"]
    done("pretrain", f"albert/{name}", *where, *SIZES, "encoder.layers=2", "plan.steps=2", "plan.warmup=1")
    settings = json.loads((road / name / "last" / "config.json").read_text())
    assert settings["model_type"] == "bertsmith", "transformers has no class for these"
    assert len(done("fill-mask", road / name / "last", "the smith [MASK] iron")["fillings"][0]) == 5
