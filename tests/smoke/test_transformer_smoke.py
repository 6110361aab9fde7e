"""The Transformer by the command line: parallel text, shards, training, resumed training, average, translations."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from smoke.smoke_fixtures import done, steps, succeed
from threads import threads

from bertsmith import load, recipes
from bertsmith.training.averaging import average_weights
from bertsmith.training.checkpoints import Checkpoint

WORDS = "null eins zwei drei vier fünf".split()  # noqa: SIM905
TINY = ["encoder.layers=1", "encoder.width=32", "encoder.heads=4", "encoder.feed_forward=64", "encoder.dropout=0"]


def reversed_digits(base: Path, pairs: int = 600) -> tuple[Path, Path]:
    """Lines of number words, and their digits in reverse order."""
    draw = random.Random(0)
    numbers = [[draw.randrange(len(WORDS)) for _ in range(draw.randint(1, 3))] for _ in range(pairs)]
    source, target = base / "a.de", base / "a.digits"
    source.write_text("".join(" ".join(WORDS[one] for one in row) + "\n" for row in numbers), encoding="utf-8")
    target.write_text("".join(" ".join(map(str, reversed(row))) + "\n" for row in numbers), encoding="utf-8")
    return source, target


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("transformer")
    source, target = reversed_digits(base)
    parts = [source, target, "--parallel", "--workers", 1]
    training = [*TINY, "batch_size=16", "max_length=24", "learning_rate=1e-2", "warmup=0.2", "eval_rows=8"]
    with threads(1):
        done("tokenizer", "train", *parts, "-o", base / "t", "--kind", "byte_bpe", "--vocab-size", 300)
        done("prepare", *parts, "-t", base / "t", "-o", base / "shards", "--held-out", 0.05)
        where = ["-d", base / "shards", "-o", base / "run", "--device", "cpu"]
        done("pretrain", "transformer/tiny", *where, *training, "steps=120", "save_every=20", "eval_every=60")
        yield base


def test_the_tiny_recipe_reads_no_more_tokens_than_that_of_cove() -> None:
    """Both are for a CPU; the paper's run has 2.6 billion tokens on each side."""
    sizes = []
    for name in ("transformer/tiny", "cove/tiny"):
        recipe = recipes.find(name)
        sizes.append(recipe.steps * recipe.batch_size * recipe.max_length)
        assert recipe.eval_every < recipe.steps / 2
    assert sizes[0] <= sizes[1] < 5_000_000


def test_a_toy_translation_is_learned(workspace: Path) -> None:
    log = steps(workspace / "run")
    assert log[-1]["loss/translation"] < log[0]["loss/translation"] / 3
    assert log[0]["tokens"] > 2 * log[0]["rows"] * 24 * 0.5, "tokens of both sides count"
    found = load(workspace / "run").translate(["drei", "eins zwei", "vier null fünf"])
    assert [one["text"] for one in found] == ["3", "2 1", "5 0 4"]


def test_translations_are_written_line_by_line(workspace: Path) -> None:
    (workspace / "new.de").write_text("drei\n\neins zwei\n", encoding="utf-8")
    result = done(
        "translate", workspace / "run", workspace / "new.de", "-o", workspace / "new.digits", "--device", "cpu"
    )
    assert (result["texts"], result["truncated"]) == (3, 0)
    assert (workspace / "new.digits").read_text() == "3\n\n2 1\n"
    assert succeed("translate", workspace / "run", "eins zwei", "--device", "cpu").stdout == "2 1\n"


def test_a_table_without_references_is_translated_without_scores(workspace: Path) -> None:
    (workspace / "sources.tsv").write_text("id\tsource\n1\tdrei\n2\teins zwei\n", encoding="utf-8")
    result = done("translate", workspace / "run", workspace / "sources.tsv", "--device", "cpu")
    assert [one["text"] for one in result["translations"]] == ["3", "2 1"]
    assert "bleu" not in result


def test_the_average_of_checkpoints_is_a_model(workspace: Path) -> None:
    result = done("average", workspace / "run", "--last", 3, "-o", workspace / "average")
    assert result["steps"] == [80, 100, 120]
    folders = sorted((workspace / "run" / "checkpoints").iterdir())[-3:]
    name = "encoder.blocks.0.attention.qkv.weight"
    states = [Checkpoint(folder).state().weights[name] for folder in folders]
    mean = average_weights([Checkpoint(folder) for folder in folders])[name]
    assert (mean - sum(states) / 3).abs().max() < 1e-7
    model = load(workspace / "average", device="cpu")
    assert (model.model.state_dict()[name] - mean).abs().max() == 0
    assert model.translate("eins zwei")["text"] == "2 1"
    assert "step 80, step 100, step 120" in (workspace / "average" / "README.md").read_text()


def test_bleu_and_chrf_with_their_signatures(workspace: Path) -> None:
    pytest.importorskip("sacrebleu")
    result = done(
        "translate",
        workspace / "run",
        workspace / "a.de",
        "--reference",
        workspace / "a.digits",
        "--limit",
        20,
        "--device",
        "cpu",
    )
    assert result["chrf"] > 50
    assert result["bleu_lowercase"] >= result["bleu"]
    assert "case:lc" in result["bleu_lowercase_signature"]
    assert "|tok:13a|" in result["bleu_signature"]


def test_a_resumed_run_ends_with_the_same_bits(workspace: Path) -> None:
    folders = sorted((workspace / "run" / "checkpoints").iterdir())
    where = ["-d", workspace / "shards", "-o", workspace / "again", "--device", "cpu", "--resume", folders[0]]
    done("pretrain", workspace / "run" / "recipe.json", *where)
    first, again = steps(workspace / "run"), steps(workspace / "again")
    assert [step["loss"] for step in again] == [step["loss"] for step in first[-len(again) :]]
    one, other = (workspace / name / "last" / "model.safetensors" for name in ("run", "again"))
    assert one.read_bytes() == other.read_bytes()


def test_a_korean_english_table_of_ones_own(tmp_path: Path) -> None:
    """Memorised in a few steps: every command on a user's own TSV."""
    pairs = {"쇠가 뜨겁다": "iron is hot", "불이 탄다": "the fire burns", "대장장이가 노래한다": "the smith sings"}
    rows = "".join(f"{one}\t{other}\n" for one, other in pairs.items()) * 12
    (tmp_path / "pairs.tsv").write_text(f"ko\ten\n{rows}", encoding="utf-8")
    table = [tmp_path / "pairs.tsv", "--parallel", "--fields", "ko,en", "--workers", 1]
    with threads(1):
        done("tokenizer", "train", *table, "-o", tmp_path / "t", "--kind", "unigram", "--vocab-size", 100)
        done("prepare", *table, "-t", tmp_path / "t", "-o", tmp_path / "shards", "--held-out", 0)
        where = ["-d", tmp_path / "shards", "-o", tmp_path / "run", "--device", "cpu"]
        settings = [*TINY, "batch_size=4", "max_length=32", "learning_rate=1e-2", "warmup=0.2", "steps=60"]
        done("pretrain", "transformer/tiny", *where, *settings)
        found = load(tmp_path / "run").translate(list(pairs))
    assert [one["text"] for one in found] == list(pairs.values())


def test_source_and_target_with_a_vocabulary_each(workspace: Path, tmp_path: Path) -> None:
    """Two tokenizers, two token tables, and one model folder that translates."""
    source, target = workspace / "a.de", workspace / "a.digits"
    for text, size in ((source, 300), (target, 290)):
        done("tokenizer", "train", text, "-o", tmp_path / text.name, "--kind", "byte_bpe", "--vocab-size", size)
    pairs = [source, target, "--parallel", "--workers", 1, "-t", tmp_path / source.name]
    done("prepare", *pairs, "--target-tokenizer", tmp_path / target.name, "-o", tmp_path / "shards", "--held-out", 0)
    where = ["-d", tmp_path / "shards", "--device", "cpu"]
    refused = call("pretrain", "transformer/tiny", *where, "-o", tmp_path / "none", *TINY, "warmup=0.5", "steps=2")
    assert "source and target have a vocabulary each: set share_embeddings=false" in refused.stderr
    training = [*TINY, "batch_size=16", "max_length=24", "learning_rate=1e-2", "warmup=0.2", "save_every=60"]
    separate = ["encoder.share_embeddings=false", *training, "steps=120", "eval_every=0"]
    with threads(1):
        done("pretrain", "transformer/tiny", *where, "-o", tmp_path / "run", *separate)
    model = load(tmp_path / "run", device="cpu")
    assert "Ġdrei" in model.tokenizer.tokens()
    assert "Ġdrei" not in model.tokenizer.target.tokens()
    found = model.translate(["drei", "eins zwei", "vier null fünf"], attention=True)
    assert [one["text"] for one in found] == ["3", "2 1", "5 0 4"]
    assert found[1]["attention"].target_tokens[:2] == ("2", "1")


def test_the_json_of_several_translations(workspace: Path) -> None:
    out = succeed("translate", workspace / "run", "zwei", "--n-best", 2, "--json", "--device", "cpu").stdout
    (one,) = json.loads(out)["translations"]
    assert [set(each) for each in one] == [{"text", "score", "logprob", "finish_reason"}] * 2
    assert one[0]["score"] >= one[1]["score"]
