"""`modern` by the command line at the smallest size: text, shards, steps, use, fine-tuning; and turned back to BERT."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call

from bertsmith import load
from bertsmith.train.log import last_of_each_step, read_events

SHAPE = ["encoder.width=32", "encoder.heads=2", "encoder.layers=2", "encoder.initial_range=0.1"]
ROWS = ["encoder.positions=64", "packing.length=48", "rows.full=16", "micro_rows=8"]
PLAN = ["plan.steps=16", "plan.warmup=4", "plan.rate=1e-2", "save_every=8"]
SIZES = [*SHAPE, *ROWS, *PLAN, "evaluate_every=8", "evaluate_rows=16"]
AS_BERT = ["norm=after", "gated=false", "rotary=false", "biases=true", "segments=2", "pooler=true"]
LINE = "the smith heats iron and strikes an anvil while fire burns 쇠를 두드린다"


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
    base, draw, words = tmp_path_factory.mktemp("modern"), random.Random(0), LINE.split()
    texts = ["\n".join(" ".join(draw.choices(words, k=5)) + "." for _ in range(8)) for _ in range(120)]
    (base / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    text, alone = base / "text.txt", ["--workers", 1]
    done("tokenizer", "train", text, "-o", base / "t", "--vocab-size", 90, *alone)
    done("prepare", text, "-t", base / "t", "-o", base / "shards", "--held-out", 0.1, *alone)
    pretrained(base, "run", "modern/small")
    return base


def pretrained(base: Path, name: str, recipe: str, *changes: str) -> dict[str, Any]:
    """config.json of the model that a run leaves."""
    where = ["-d", base / "shards", "-o", base / name, "--device", "cpu"]
    assert done("pretrain", recipe, *where, *changes, *SIZES)["steps"] == 16
    found = last_of_each_step(read_events(base / name / "events.jsonl"), "step")
    assert found[-1]["loss/masked_lm"] < found[0]["loss/masked_lm"] - 0.5
    settings: dict[str, Any] = json.loads((base / name / "last" / "config.json").read_text())
    return settings


def test_it_leaves_a_folder_of_transformers_that_fills_gaps(road: Path) -> None:
    settings = json.loads((road / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["ModernBertForMaskedLM"]
    assert (settings["model_type"], settings["intermediate_size"]) == ("modernbert", 128)
    assert len(done("fill-mask", road / "run" / "last", "the smith [MASK] iron")["fillings"][0]) == 5
    predictor = load(road / "run" / "last")
    long, short = predictor.encode(["the smith heats iron", "쇠를"])
    assert long.shape == (32,)
    assert abs(predictor.encode(["쇠를"])[0] - short).max() < 1e-5, "row mates change nothing"


def test_a_pair_is_told_apart_by_its_separator_alone(road: Path) -> None:
    """The tokenizer has two kinds of text in a row, the encoder none."""
    draw = random.Random(1)
    for name, count in (("train", 160), ("dev", 40)):
        rows = []
        for _ in range(count):
            one, other = draw.choice(("iron", "anvil")), draw.choice(("fire", "smith"))
            rows.append({"sentence1": f"the {one}", "sentence2": f"the {other}", "label": one})
        (road / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["-t", "pairs", "--train", road / "train.jsonl", "--dev", road / "dev.jsonl"]
    settings = ["epochs=3", "rows=16", "rate=1e-2", "length=32"]
    found = done("finetune", road / "run" / "last", *files, "-o", road / "tuned", "--device", "cpu", *settings)
    assert found[f"score/{found['main']}"] > 0.9, found
    assert json.loads((road / "tuned" / "best" / "config.json").read_text())["model_type"] == "bertsmith"
    assert load(road / "tuned" / "best").predict([("the iron", "the fire")])[0]["label"] == "iron"


def test_with_every_switch_turned_it_is_pre_trained_as_bert_is(road: Path) -> None:
    changes = [f"encoder.{change}" for change in ("kind=modern", *AS_BERT)]
    settings = pretrained(road, "as_bert", "bert/tiny", *changes)
    assert settings["model_type"] == "bertsmith"
    assert list(load(road / "as_bert" / "last").model.objectives) == ["masked_lm", "next_sentence"]
    assert len(done("fill-mask", road / "as_bert" / "last", "the smith [MASK] iron")["fillings"][0]) == 5
