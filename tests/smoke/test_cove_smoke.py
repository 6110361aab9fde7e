"""CoVe by the command line: a recurrent translation model, word vectors, plateau, resume, average, context features."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import call
from frozen_fixtures import bert_folder
from smoke.smoke_fixtures import done, steps
from smoke.test_transformer_smoke import WORDS, reversed_digits
from threads import threads

from bertsmith import load
from bertsmith.errors import BertsmithError
from bertsmith.model_io.vector_files import vector_chunks
from bertsmith.model_io.word_tables import extend_vocabulary

TINY = ["encoder.width=64", "encoder.embedding_width=32", "encoder.dropout=0", "encoder.initializer_range=0.4"]
TINY += ["batch_size=16", "max_length=24"]
# a learning rate that changes no weight: no evaluation is better than the first
FLAT = ["optimizer.kind=sgd", "learning_rate=1e-30", "warmup=0", "schedule.kind=reduce_on_plateau"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("cove")
    parts = [*reversed_digits(base), "--parallel", "--workers", 1]
    training = [*TINY, "learning_rate=1e-2", "warmup=0.05", "eval_rows=8", "save_every=20", "eval_every=20"]
    with threads(1):
        done("tokenizer", "train", *parts, "-o", base / "t", "--kind", "words", "--vocab-size", 300)
        done("prepare", *parts, "-t", base / "t", "-o", base / "shards", "--held-out", 0.05)
        where = ["-d", base / "shards", "-o", base / "run", "--device", "cpu"]
        done("pretrain", "cove/tiny", *where, *training, "steps=60")
        yield base


def test_a_toy_translation_is_learned(workspace: Path) -> None:
    model = load(workspace / "run")
    assert [one["text"] for one in model.translate(["drei", "eins zwei", "vier null fünf"])] == ["3", "2 1", "5 0 4"]
    weights = model.translate("eins zwei", attention=True)["attention"].weights
    assert weights.shape == (1, 1, 3, 3), "one layer with one head; two words and the end on either side"
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)
    done("average", workspace / "run", "--last", 2, "-o", workspace / "average")
    assert load(workspace / "average").translate("eins zwei")["text"] == "2 1"


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    folders = sorted((workspace / "run" / "checkpoints").iterdir())
    where = ["-d", workspace / "shards", "-o", workspace / "again", "--device", "cpu", "--resume", folders[0]]
    done("pretrain", workspace / "run" / "recipe.json", *where)
    first, again = steps(workspace / "run"), steps(workspace / "again")
    assert [step["loss"] for step in again] == [step["loss"] for step in first[-len(again) :]]
    one, other = (workspace / name / "last" / "model.safetensors" for name in ("run", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_a_resumed_run_has_the_same_reduced_learning_rates(workspace: Path) -> None:
    where = ["-d", workspace / "shards", "--device", "cpu"]
    settings = [*TINY, *FLAT, "steps=8", "eval_every=2", "eval_rows=2", "save_every=4"]
    with threads(1):
        done("pretrain", "cove/tiny", *where, "-o", workspace / "flat", *settings)
        middle = min((workspace / "flat" / "checkpoints").iterdir())
        done("pretrain", workspace / "flat" / "recipe.json", *where, "-o", workspace / "flat-again", "--resume", middle)
    rates = [step["learning_rate"] for step in steps(workspace / "flat")]
    assert rates == pytest.approx([1e-30] * 4 + [5e-31] * 2 + [2.5e-31] * 2, rel=1e-12)
    assert [step["learning_rate"] for step in steps(workspace / "flat-again")] == rates[4:]


@pytest.fixture(scope="module")
def vectors(workspace: Path) -> np.ndarray:
    """The vectors of three words, in the file `vectors.txt`; the model `fixed` has them."""
    rows = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    (workspace / "vectors.txt").write_bytes(b"".join(vector_chunks(["eins", "zwei", "beyond"], rows, "glove")))
    where = ["-d", workspace / "shards", "-o", workspace / "fixed", "--device", "cpu"]
    settings = [
        *TINY,
        "encoder.fixed_embeddings=true",
        f"vectors={workspace / 'vectors.txt'}",
        "steps=2",
        "eval_rows=8",
    ]
    with threads(1):
        done("pretrain", "cove/tiny", *where, *settings)
    return rows


def test_fixed_word_vectors_of_a_file(workspace: Path, vectors: np.ndarray) -> None:
    """Words without a vector have zeros; training changes neither."""
    model = load(workspace / "fixed", device="cpu")
    table = model.model.encoder.token_embeddings
    rows = [int(model.tokenizer.encode(word).ids[0]) for word in ("eins", "zwei", "drei")]
    assert torch.equal(table[rows[:2]], torch.from_numpy(vectors[:2]))
    assert not table[rows[2]].any()


def test_words_of_the_file_are_added_to_the_vocabulary(workspace: Path, vectors: np.ndarray, tmp_path: Path) -> None:
    """The logits of the target's tokens do not change, and a task's texts may contain every word of the file."""
    before = load(workspace / "fixed", device="cpu")
    result = done("extend", workspace / "fixed", "--vectors", workspace / "vectors.txt", "-o", workspace / "extended")
    assert result["added"] == 1
    model = load(workspace / "extended", device="cpu")
    assert model.translate("eins drei", beam_size=1)["text"] == before.translate("eins drei", beam_size=1)["text"]
    x, size = torch.randn(3, 64), before.tokenizer.vocab_size
    heads = [one.model.objectives["translation"] for one in (model, before)]
    assert torch.allclose(heads[0].logits(x, None), heads[1].logits(x, None)[:, :size], atol=1e-6)
    assert model.tokenizer.vocab_size == size + 1
    (number,) = model.tokenizer.encode("beyond").ids
    assert torch.equal(model.model.encoder.token_embeddings[int(number)], torch.from_numpy(vectors[2]))
    with pytest.raises(BertsmithError, match=r"has trained word vectors, to which others cannot be added: train"):
        extend_vocabulary(workspace / "run", str(workspace / "vectors.txt"), workspace / "none")
    with pytest.raises(BertsmithError, match="is not a recurrent translation model: pass one"):
        extend_vocabulary(bert_folder(tmp_path / "bert"), str(workspace / "vectors.txt"), workspace / "none")


def test_source_and_target_with_a_vocabulary_each(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_bytes(b"".join(vector_chunks(["eins"], np.ones((1, 32), np.float32), "glove")))
    source, target = workspace / "a.de", workspace / "a.digits"
    for text in (source, target):
        done("tokenizer", "train", text, "-o", tmp_path / text.name, "--kind", "words", "--vocab-size", 300)
    pairs = [source, target, "--parallel", "--workers", 1, "-t", tmp_path / source.name]
    done("prepare", *pairs, "--target-tokenizer", tmp_path / target.name, "-o", tmp_path / "shards", "--held-out", 0)
    where = ["-d", tmp_path / "shards", "-o", tmp_path / "run", "--device", "cpu"]
    vectors = ["encoder.fixed_embeddings=true", f"vectors={tmp_path / 'vectors.txt'}"]
    with threads(1):
        done("pretrain", "cove/tiny", *where, *TINY, *vectors, "steps=2", "eval_every=0")
    model = load(tmp_path / "run", device="cpu")
    assert set(model.translate("eins zwei")["text"]) <= set("0123456789 ")
    refused = call("extend", tmp_path / "run", "--vectors", tmp_path / "vectors.txt", "-o", tmp_path / "extended")
    assert "words can only be added where source and target share one" in refused.stderr


def task_files(base: Path) -> list[object]:
    """A task for `finetune`: which of two words does the text begin with?"""
    draw = random.Random(0)
    for name, count in (("train", 96), ("dev", 32)):
        rows = [[draw.choice(WORDS[1:3]), *draw.choices(WORDS[3:], k=draw.randint(1, 3))] for _ in range(count)]
        lines = "".join(f"{' '.join(row)}\t{row[0]}\n" for row in rows)
        (base / f"{name}.tsv").write_text("text\tlabel\n" + lines, encoding="utf-8")
    return ["--train", base / "train.tsv", "--dev", base / "dev.tsv"]


def test_context_vectors_of_a_frozen_encoder_in_a_task(workspace: Path) -> None:
    """[word ; context] through the biattentive classification network; only the head is trained."""
    settings = ["head.biattention_width=8", "epochs=16", "batch_size=16", "head.dropout=0", "learning_rate=5e-3"]
    with threads(1):
        where = ["-o", workspace / "task", "--device", "cpu"]
        done("finetune", workspace / "run", "-t", "classification", *task_files(workspace), *where, *settings)
    model = load(workspace / "task", device="cpu")
    assert [one["label"] for one in model.predict(["eins vier vier", "zwei fünf drei"])] == ["eins", "zwei"]
    before, after = (load(workspace / name, device="cpu").model.encoder.state_dict() for name in ("run", "task"))
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_context_vectors_as_features_beside_words_and_characters(workspace: Path) -> None:
    """[word ; characters ; context] in the encoder `taglm`: words of one folder, features of the translation model."""
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 8)).astype(np.float32)
    (workspace / "words.txt").write_bytes(b"".join(vector_chunks(WORDS, vectors, "glove")))
    done("import", workspace / "words.txt", "-o", workspace / "words")
    settings = ["encoder.kind=taglm", "encoder.layers=0", "encoder.features_at=[0]", "encoder.character_hidden=4"]
    settings += [f'encoder.features=["{workspace / "run" / "best"}"]', "epochs=1", "head.pooling=biattention"]
    with threads(1):
        where = ["-o", workspace / "features", "--device", "cpu", "head.biattention_width=8"]
        done("finetune", workspace / "words", "-t", "classification", *task_files(workspace), *where, *settings)
    model = load(workspace / "features", device="cpu")
    (source,) = model.model.encoder.features.frozen_encoders()
    known, before = source.encoder.state_dict(), load(workspace / "run").model.encoder.state_dict()
    assert all(torch.equal(value, known[name]) for name, value in before.items() if name.startswith("lstms."))
    assert model.predict("eins zwei")["label"] in ("eins", "zwei")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "run", "--to", "onnx", "-o", "onnx"], "recurrent encoders cannot be exported to ONNX"),
        (["attention", "run", "eins zwei"], "this model has no attention between the tokens of a text"),
        (
            ["pretrain", "cove/paper", "-d", "shards", "-o", "p"],
            "encoder.fixed_embeddings=true needs word vectors: pass",
        ),
        (["pretrain", "cove/tiny", "-d", "shards", "-o", "p", "vectors=none.txt"], "none.txt"),
        (
            ["pretrain", "cove/tiny", "-d", "shards", "-o", "p", "vectors=words.txt", "start=run"],
            "vectors=words.txt and start=run: leave out one of them",
        ),
        (["pretrain", "cove/tiny", "-d", "shards", "-o", "p", "vectors=words.txt"], "write encoder.embedding_width=8"),
        (["average", "run", "-o", "shards"], "shards exists: choose another -o, or pass --overwrite to replace it\n"),
        (["export", "run", "--to", "onnx", "-o", "shards"], "shards exists: choose another -o\n"),
        (["extend", "run", "--vectors", "words.txt", "-o", "e"], "run has trained word vectors, to which others"),
        (
            ["pretrain", "cove/tiny", "-d", "shards", "-o", "p", "objectives.translation.tie_output=true"],
            "set objectives.translation.tie_output=false",
        ),
    ],
)
def test_errors_are_one_line(workspace: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(workspace)
    (workspace / "words.txt").write_bytes(b"".join(vector_chunks(["eins"], np.ones((1, 8), np.float32), "glove")))
    result = call(*words)
    assert result.returncode
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
