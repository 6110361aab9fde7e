"""A run folder is accepted wherever a model folder is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call
from frozen_fixtures import word_folder
from inference.predictor_fixtures import KINDS, random_model, tokenizer

import bertsmith
from bertsmith.errors import DataError
from bertsmith.model_io.model_folder import read_encoder, save_model
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.model_io.summary import model_facts
from bertsmith.objectives import classify


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    save_model(random_model(classify.Config(labels=KINDS)), tokenizer(), folder / "last")
    (folder / "recipe.json").write_text("{}", encoding="utf-8")
    return folder


def test_the_model_of_a_run_is_the_best_or_else_the_last(tmp_path: Path) -> None:
    for name in ("last", "best"):
        (tmp_path / name).mkdir()
        assert find_model_folder(tmp_path) == tmp_path / name
        assert find_model_folder(tmp_path / name) == tmp_path / name
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert find_model_folder(tmp_path) == tmp_path


def test_a_run_without_a_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is a run without a model: resume it"):
        bertsmith.load(tmp_path)
    for words in (("show", tmp_path), ("tokenizer", "show", tmp_path), ("finetune", tmp_path, "-t", "qa", "-o", "o")):
        done = call(*words)
        assert (done.returncode, done.stderr.count("\n")) == (65, 1)
        assert "is a run without a model" in done.stderr


def test_memory_is_estimated_for_a_default_length(tmp_path: Path) -> None:
    word_folder(tmp_path)
    memory = model_facts(tmp_path)["memory"]
    assert (memory["batch"], memory["length"]) == (32, 512)  # word vectors have no limit that was learned
    longer = model_facts(tmp_path, length=5120)["memory"]
    assert longer["length"] == 5120
    assert longer["inference_bytes"] > 5 * memory["inference_bytes"]


def test_functions_take_runs(run: Path) -> None:
    assert bertsmith.load(run, device="cpu").facts.folder == run / "last"
    assert bertsmith.load(run / "last", device="cpu", tokenizer=run).predict("iron")
    assert read_encoder(run) == read_encoder(run / "last")


@pytest.mark.parametrize(
    "words",
    [
        ("show", "{run}", "--json"),
        ("classify", "{run}", "iron", "--json"),
        ("embed", "{run}", "iron", "--json"),
        ("attention", "{run}", "iron", "--json"),
        ("tokenizer", "show", "{run}", "iron", "--json"),
        ("prepare", "{text}", "-t", "{run}", "-o", "{new}", "--workers", "1", "--dry-run", "--json"),
        ("tokenizer", "stats", "{run}", "{text}", "--workers", "1", "--json"),
        ("import", "{run}", "-o", "{new}", "--json"),
        ("export", "{run}", "-o", "{new}", "--to", "sentence-transformers", "--json"),
    ],
)
def test_commands_take_runs(run: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "text.txt").write_text("the smith has iron", encoding="utf-8")
    done = call(*(word.format(run=run, text=tmp_path / "text.txt", new=tmp_path / "new") for word in words))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)
