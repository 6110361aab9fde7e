"""`modern` on the command line at the smallest size: text, shards, steps, inference, fine-tuning; also as BERT."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from smoke.smoke_fixtures import SMALL, done, make_shards, pretrain, steps, write_text
from threads import threads

from bertsmith import load

SIZES = [*SMALL, "encoder.layers=2", "max_length=48", "learning_rate=1e-2"]
AS_BERT = ["norm=after", "gated=false", "positions=learned", "biases=true", "segment_types=2", "pooler=true"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Text, tokenizer, shards and a pre-training run in one folder."""
    base = tmp_path_factory.mktemp("modern")
    with threads(1):
        make_shards(base, write_text(base), "--vocab-size", 160)
        pretrained(base, "run", "modern/small")
        yield base


def pretrained(base: Path, name: str, recipe: str, *changes: str) -> dict[str, Any]:
    """config.json of the model of a run."""
    pretrain(base, name, recipe, *changes, *SIZES)
    result = steps(base / name)
    assert result[-1]["loss/masked_lm"] < result[0]["loss/masked_lm"] - 0.5
    settings: dict[str, Any] = json.loads((base / name / "last" / "config.json").read_text())
    return settings


def test_pretraining_writes_a_transformers_folder_that_fills_masks(workspace: Path) -> None:
    settings = json.loads((workspace / "run" / "last" / "config.json").read_text())
    assert settings["architectures"] == ["ModernBertForMaskedLM"]
    assert (settings["model_type"], settings["intermediate_size"]) == ("modernbert", 128)
    assert len(done("fill-mask", workspace / "run" / "last", "the smith [MASK] iron")["fillings"][0]) == 5
    predictor = load(workspace / "run" / "last")
    long, short = predictor.encode(["the smith heats iron", "쇠를"])
    assert long.shape == (32,)
    assert abs(predictor.encode(["쇠를"])[0] - short).max() < 1e-5, "other texts of the row change nothing"


def test_pairs_are_separated_only_by_the_separator(workspace: Path) -> None:
    """The tokenizer has two segment ids, the encoder none."""
    draw = random.Random(1)
    for name, count in (("train", 160), ("dev", 40)):
        rows = []
        for _ in range(count):
            one, other = draw.choice(("iron", "anvil")), draw.choice(("fire", "smith"))
            rows.append({"sentence1": f"the {one}", "sentence2": f"the {other}", "label": one})
        (workspace / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["-t", "pairs", "--train", workspace / "train.jsonl", "--dev", workspace / "dev.jsonl"]
    settings = ["epochs=3", "batch_size=16", "learning_rate=1e-2", "max_length=32"]
    result = done(
        "finetune", workspace / "run" / "last", *files, "-o", workspace / "tuned", "--device", "cpu", *settings
    )
    assert result[f"score/{result['main']}"] > 0.9, result
    assert json.loads((workspace / "tuned" / "best" / "config.json").read_text())["model_type"] == "bertsmith"
    assert load(workspace / "tuned" / "best").predict([("the iron", "the fire")])[0]["label"] == "iron"


def test_configured_as_bert_it_is_pre_trained_like_bert(workspace: Path) -> None:
    changes = [f"encoder.{change}" for change in ("kind=modern", *AS_BERT)]
    settings = pretrained(workspace, "as_bert", "bert/tiny", *changes)
    assert settings["model_type"] == "bertsmith"
    assert list(load(workspace / "as_bert" / "last").model.objectives) == ["masked_lm", "next_sentence"]
    assert len(done("fill-mask", workspace / "as_bert" / "last", "the smith [MASK] iron")["fillings"][0]) == 5
