"""Options on how a model folder is opened: which head, no heads, the tokenizer of another folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import call
from model_io.folder_fixtures import change_config, foreign

from bertsmith.objectives import classify

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


@pytest.fixture(scope="module")
def intents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a class that is not known, and its tokenizer in another folder."""
    path = foreign(tmp_path_factory.mktemp("opening") / "model", classify.Config(labels=("book", "cancel", "ask")))
    change_config(path, architectures=["BertForIntents"])
    path.with_name("words").mkdir()
    for name in TOKENIZER:
        (path / name).rename(path.with_name("words") / name)
    return path


def test_a_folder_without_a_tokenizer_names_the_option(intents: Path) -> None:
    done = call("classify", intents, "the cat")
    assert (done.returncode, done.stderr.count("\n")) == (65, 1)
    assert "--tokenizer DIR" in done.stderr


@pytest.mark.parametrize("command", [("classify",), ("embed",), ("show",), ("attention",)], ids=lambda words: words[0])
def test_a_class_that_is_not_known_opens_with_a_note(command: tuple[str, ...], intents: Path) -> None:
    text = [] if command == ("show",) else ["the cat"]
    done = call(*command, intents, *text, "--tokenizer", intents.with_name("words"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("bertsmith: note: ")
    assert "'BertForIntents' is not known: classifier.* is read as the head classify; --head NAME" in done.stderr


def test_a_head_by_name_and_no_heads(intents: Path, tmp_path: Path) -> None:
    words = ("--tokenizer", intents.with_name("words"))
    tagger = call("show", intents, *words, "--head", "tag", "--json")
    assert (json.loads(tagger.stdout)["objectives"], tagger.stderr) == (["tag"], "")
    bare = call("classify", intents, "the cat", *words, "--ignore-heads")
    assert (bare.returncode, bare.stderr.count("\n")) == (2, 1)
    assert "(heads: none)" in bare.stderr
    done = call("import", intents, "-o", tmp_path / "whole", *words, "--head", "classify")
    assert done.returncode == 0, done.stderr
    again = call("classify", tmp_path / "whole", "the cat", "--json")
    assert (again.returncode, again.stderr) == (0, "")
    labels = json.loads(again.stdout)["predictions"][0]["results"]
    assert labels[0]["label"] in ("book", "cancel", "ask")


def test_fine_tuning_takes_the_tokenizer_of_another_folder(intents: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "the cat\ta\na mat\tb\n" * 4)
    words = ("finetune", intents, "-t", "classification", "--train", tmp_path / "train.tsv", "-o", tmp_path / "run")
    settings = ("epochs=1", "batch_size=4", "max_length=16", "--device", "cpu", "-q")
    done = call(*words, *settings)
    assert (done.returncode, "--tokenizer DIR" in done.stderr) == (65, True)
    done = call(*words, *settings, "--tokenizer", intents.with_name("words"))
    assert done.returncode == 0, done.stderr
    assert call("classify", tmp_path / "run" / "last", "the cat").returncode == 0
