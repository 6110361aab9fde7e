"""`bench/ulmfit.py` and `bench/cove.py` from text to a table at a tiny size, on the CPU."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import call
from threads import threads

from bench import cove, ulmfit
from bertsmith.errors import StoppedError

pytestmark = pytest.mark.slow
WORDS = ["smith", "iron", "hammer", "anvil", "copper", "furnace", "water", "glows", "strikes", "cools", "heats", "red"]
LABELS = {"pos": "fine", "neg": "dull"}  # a word that every text of a label has


def of_all(stage: str, *settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", f"{stage}:{setting}")]


def sentences(draw: random.Random, count: int) -> list[str]:
    return [" ".join(draw.choices(WORDS, k=8)) for _ in range(count)]


def reviews(draw: random.Random, count: int) -> str:
    rows = []
    for _ in range(count):
        label = draw.choice(list(LABELS))
        text = f"{' '.join(draw.choices(WORDS, k=6))}<br /><br />{LABELS[label]} {draw.choice(WORDS)}"
        rows.append(json.dumps({"text": text, "label": label}))
    return "".join(f"{row}\n" for row in rows)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder, draw = tmp_path_factory.mktemp("data"), random.Random(0)
    with gzip.open(folder / "en-wiki-1.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(sentences(draw, 20)) for _ in range(40)))
    (folder / "en-wiki-2.txt").write_text("\n".join(sentences(draw, 20)))
    for name, count in (("train", 60), ("test", 40), ("unsup", 60)):
        (folder / f"{name}.jsonl").write_text(reviews(draw, count))
    (folder / "multi30k").mkdir()
    for split, count in (("train", 60), ("val", 4)):
        texts = sentences(draw, count)
        (folder / "multi30k" / f"{split}.en").write_text("\n".join(texts))
        (folder / "multi30k" / f"{split}.de").write_text("\n".join(text.upper() for text in texts))
    (folder / "SST-2").mkdir()
    for name in ("train", "dev"):
        rows = [f"{text}\t{int('red' in text)}\n" for text in sentences(draw, 40)]
        (folder / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    with threads(1):
        yield folder


def test_ulmfit_from_text_to_the_errors_of_both_directions(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ulmfit, "FEW_TEST", 10)
    monkeypatch.setattr(ulmfit, "FEW_DEV", 4)
    small = ["minutes=0", "steps=30", "eval_every=15", "save_every=15", "batch_size=8", "max_length=16"]
    shape = ["encoder.layers=2", "encoder.width=16", "encoder.hidden=24"]
    settings = [
        *of_all("tokenizer", "--vocab-size", "60"),
        *of_all("general", *small, *shape, "learning_rate=1e-2"),
        *of_all("target", *small),
        *of_all("classify", "epochs=4", "evals_per_epoch=0", "batch_size=16", "max_length=32", "dev_fraction=0.2"),
        *of_all("classify", "learning_rate=0.03", "encoder.dropout_scale=0.1"),
        *of_all("labels", "--sizes", "4,8", "--seeds", "1", "--min-steps", "2", "epochs=1", "max_length=32"),
    ]
    arguments = ["imdb", str(data), str(tmp_path), "--device", "cpu", *settings]
    assert ulmfit.main([*arguments, "--stop-after", "0.5"]) == StoppedError.exit_code
    assert ulmfit.main(arguments) == 0
    assert ulmfit.main([*arguments, "--direction", "backward", "--only", "general", "target", "classify"]) == 0
    texts = [json.loads(line)["text"] for line in (tmp_path / "texts.jsonl").read_text().splitlines()]
    assert len(texts) == 160
    assert not [text for text in texts if "<br" in text]
    capsys.readouterr()
    assert ulmfit.main([*arguments, "--only", "target", "classify", "table"]) == 0
    printed = capsys.readouterr().out
    assert "$ bertsmith" not in printed, "finished stages are skipped"
    errors = {line.split("|")[1].strip(): float(line.split("|")[2]) for line in printed.splitlines()[2:5]}
    assert list(errors) == ["forward", "backward", "mean of both"]
    assert "| Labels | target | from-scratch |" in printed
    models = [tmp_path / f"classifier-{direction}" for direction in ulmfit.DIRECTIONS]
    ensemble = ["evaluate", *models, "--file", tmp_path / "test.jsonl", "--split", "test", "--device", "cpu", "--json"]
    accuracy = json.loads(call(*ensemble).stdout)["scores"]["accuracy"]
    assert errors["mean of both"] == pytest.approx(100 * (1 - accuracy), abs=0.006)


def test_word_vectors_and_cove_from_text_to_a_table(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu")
    settings = [
        *of_all("vectors", "minutes=0", "steps=4", "encoder.width=8", "batch_size=4", "max_length=32"),
        *of_all("translation", "encoder.embedding_width=8", "encoder.width=16", "steps=4", "save_every=2"),
        *of_all("translation", "batch_size=4", "max_length=32"),
        *of_all("tasks", "glue/sst-2:epochs=1", "classification:epochs=1", "classification:limit=20"),
        *of_all("tasks", "glue/sst-2:head.biattention_width=4", "classification:head.biattention_width=4"),
    ]
    tasks = ["--tasks", "glue/sst-2", "classification", "--seeds", "1"]
    assert cove.main([str(data), str(tmp_path), "--device", "cpu", *tasks, *settings]) == 0
    table = json.loads((tmp_path / "tasks" / "ablations.json").read_text())
    rows = {row["name"]: row["cells"] for row in table["rows"]}
    assert list(rows) == ["no model", "cove", "cove+embeddings"]
    assert all(list(cells) == ["glue/sst-2", "classification"] for cells in rows.values())
    assert (tmp_path / "val.de").read_text().count("\n") == 4
