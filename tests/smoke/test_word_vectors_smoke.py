"""Word vectors by the command line at the smallest size: text, shards, steps, resumed steps, neighbours, export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from smoke.smoke_fixtures import done, metals, resume, steps, workspace_of

from bertsmith import load

SIZES = [
    *("encoder.width=16", "encoder.unknown=characters", "encoder.ngram_buckets=100", "max_length=48"),
    *("batch_size=16", "micro_batch_size=8", "steps=16", "save_every=8", "eval_every=8", "eval_rows=16"),
    *("objectives.skip_gram.subsample=1e-1", "learning_rate=0.2", "keep_checkpoints=4"),
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("vectors")
    tokenizer = ["--kind", "words", "--set", "unknowns=classes"]
    with workspace_of(base, "word_vectors/tiny", *SIZES, tokenizer=tokenizer, between=" ") as result:
        yield result


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    losses = [step["loss"] for step in steps(workspace / "run")]
    assert losses[-1] < losses[0] - 0.05
    resume(workspace, "again")
    assert [step["loss"] for step in steps(workspace / "again")] == losses[8:]
    one, second = (workspace / name / "last" / "model.safetensors" for name in ("again", "run"))
    assert one.read_bytes() == second.read_bytes()


def test_neighbours_and_export(workspace: Path) -> None:
    result = done("neighbours", workspace / "run" / "best", "smith", "smithy", "-k", "2")
    assert [len(one["neighbours"]) for one in result["words"]] == [2, 2]
    facts = done("export", workspace / "run" / "best", "--to", "word2vec", "-o", workspace / "v.txt")
    done("import", workspace / "v.txt", "-o", workspace / "imported")
    again = done("neighbours", workspace / "imported", "smith", "-k", "2")
    assert [one["word"] for one in again["words"][0]["neighbours"]] == [
        one["word"] for one in result["words"][0]["neighbours"]
    ]
    assert facts["words"] > 10


def test_the_vectors_can_be_fine_tuned(workspace: Path) -> None:
    settings = ["epochs=8", "batch_size=16", "learning_rate=3e-2", "max_length=32"]
    model, output = workspace / "run" / "best", workspace / "tuned"
    result = done("finetune", model, *metals(workspace), "-o", output, "--device", "cpu", *settings)
    assert result[f"score/{result['main']}"] > 0.9, result
    predictor = load(output / "best")
    assert predictor.predict(["iron the smith strikes iron and iron"])[0]["label"] == "iron"
    assert predictor.tokenizer.spells, "the spelling of unknown words reaches the encoder"
    first, second = predictor.embed_all(["white-hot", "ice-cold"]).vectors
    assert (first[1] != second[1]).any(), "unknown words of one class"
