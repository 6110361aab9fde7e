"""CoVe by the command line: a recurrent translation model, word vectors, plateau, resume, average, context features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from smoke.smoke_fixtures import done, steps
from smoke.test_transformer_smoke import reversed_digits
from threads import threads

from bertsmith import load
from bertsmith.model_io.vector_files import vector_chunks

TINY = ["encoder.width=64", "encoder.embedding_width=32", "encoder.dropout=0", "batch_size=16", "max_length=24"]
PLATEAU = ["schedule.kind=reduce_on_plateau", "schedule.every=true", "schedule.reduction=0.9"]


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("cove")
    parts = [*reversed_digits(base), "--parallel", "--workers", 1]
    training = [*TINY, "learning_rate=1e-2", "warmup=0.2", "eval_rows=8", "save_every=20", "eval_every=5", *PLATEAU]
    with threads(1):
        done("tokenizer", "train", *parts, "-o", base / "t", "--kind", "words", "--vocab-size", 300)
        done("prepare", *parts, "-t", base / "t", "-o", base / "shards", "--held-out", 0.05)
        where = ["-d", base / "shards", "-o", base / "run", "--device", "cpu"]
        done("pretrain", "cove/tiny", *where, *training, "steps=80")
        yield base


def test_a_toy_translation_is_learned(road: Path) -> None:
    model = load(road / "run")
    assert [one["text"] for one in model.translate(["drei", "eins zwei", "vier null fünf"])] == ["3", "2 1", "5 0 4"]
    done("average", road / "run", "--last", 2, "-o", road / "average")
    assert load(road / "average").translate("eins zwei")["text"] == "2 1"


def test_a_resumed_run_ends_with_the_same_bits_and_learning_rates(road: Path) -> None:
    folders = sorted((road / "run" / "checkpoints").iterdir())
    where = ["-d", road / "shards", "-o", road / "again", "--device", "cpu", "--resume", folders[0]]
    done("pretrain", road / "run" / "recipe.json", *where)
    first, again = steps(road / "run"), steps(road / "again")
    assert first[-1]["learning_rate"] < 1e-2, "it was reduced"
    for name in ("loss", "learning_rate"):
        assert [step[name] for step in again] == [step[name] for step in first[-len(again) :]]
    one, other = (road / name / "last" / "model.safetensors" for name in ("run", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_fixed_word_vectors_of_a_file(road: Path) -> None:
    """Words without a vector have zeros; training changes neither."""
    vectors = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    (road / "vectors.txt").write_bytes(b"".join(vector_chunks(["eins", "zwei", "beyond"], vectors, "glove")))
    where = ["-d", road / "shards", "-o", road / "fixed", "--device", "cpu"]
    settings = [*TINY, "encoder.fixed_embeddings=true", f"vectors={road / 'vectors.txt'}", "steps=2", "eval_rows=8"]
    with threads(1):
        done("pretrain", "cove/tiny", *where, *settings)
    model = load(road / "fixed", device="cpu")
    table = model.model.encoder.token_embeddings
    rows = [int(model.tokenizer.encode(word).ids[0]) for word in ("eins", "zwei", "drei")]
    assert torch.equal(table[rows[:2]], torch.from_numpy(vectors[:2]))
    assert not table[rows[2]].any()
