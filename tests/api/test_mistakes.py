"""Typical mistakes in Python: each is one line that says what to write instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

import bertsmith as bs

ROWS = [("good iron", "good"), ("bad iron", "bad")] * 4
FRAME = pandas.DataFrame({"plot": ["a", "b"], "mood": [1, 2], "n": [3, 4]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Any:
    """The current folder, with corpus/, shards/, the pre-trained run/ and the fine-tuned reviews/."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "shards").symlink_to(shards)
    (folder / "corpus").mkdir()
    (folder / "data").mkdir()
    (folder / "corpus" / "text.txt").write_text("Some text.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        how: dict[str, Any] = {"batch_size": 8, "device": "cpu", "quiet": True}
        encoder = {"layers": 1, "width": 32, "heads": 2, "max_positions": 32}
        bs.pretrain("bert/tiny", "shards", "run", steps=2, max_length=32, encoder=encoder, **how)
        bs.finetune("run", "classification", train=ROWS, output="reviews", epochs=1, max_length=16, **how)
        yield folder


def finetune(**options: Any) -> Any:
    return bs.finetune(**{"model": "run", "task": "classification", "train": ROWS, "output": "other", **options})


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a folder without a model": (lambda: bs.load("corpus"), "corpus is not a model folder: it has no config.json"),
    "a misspelt recipe": (lambda: bs.pretrain("bert/bas", "shards", "new"), "did you mean bert/base?"),
    "text instead of shards": (
        lambda: bs.pretrain("bert/tiny", "corpus", "new"),
        "corpus is not a shard set, it has no index.json: make one with",
    ),
    "a misspelt setting": (
        lambda: bs.pretrain("bert/tiny", "shards", "new", stps=3),  # type: ignore[call-arg]
        'stps=3: recipe has no setting "stps"; did you mean steps=3?',
    ),
    "a setting without its table": (
        lambda: bs.pretrain("bert/tiny", "shards", "new", layers=3),  # type: ignore[call-arg]
        "did you mean encoder.layers=3?",
    ),
    "a number as a string": (
        lambda: bs.pretrain("bert/tiny", "shards", "new", steps="3"),  # type: ignore[arg-type]
        "steps=3 must be an integer, not a string: leave out the quotes",
    ),
    "epochs of pre-training": (
        lambda: bs.pretrain("bert/tiny", "shards", "new", epochs=2, batch_size=8),  # type: ignore[call-arg]
        "the length of a pre-training run is its steps: write steps=",
    ),
    "other files in the output": (lambda: finetune(output="."), "holds other files, such as corpus: choose another"),
    "shards as the output": (lambda: finetune(output="shards"), "choose another output"),
    "a misspelt task": (lambda: finetune(task="clasification"), "did you mean classification?"),
    "a frame with other columns": (
        lambda: finetune(train=FRAME),
        'train: no column for the text among plot, mood, n: set task_settings={"text": "COLUMN"}',
    ),
    "rows with too many values": (
        lambda: finetune(train=[("a", "b", "c")]),
        "row 1 of train has 3 values: expected (text, label), or a dict of columns",
    ),
    "a missing text": (
        lambda: finetune(train=[*ROWS, (None, "good")]),
        "row 9 of train: 'text' must be a text, found no value",
    ),
    "a misspelt file": (lambda: finetune(train="nosuch.csv"), "nosuch.csv does not exist"),
    "no training examples": (lambda: finetune(train=None), "pass train=FILE"),
    "rows for a benchmark": (lambda: finetune(task="glue/cola"), "reads the files of its benchmark: pass data=FOLDER"),
    "a number of examples as dev": (lambda: finetune(dev=10), "dev_fraction=10 must be at least 0 and below 1"),
    "another run in the folder": (
        lambda: finetune(train=ROWS[:4], output="reviews"),
        "reviews holds a run on other train examples: choose another output, or pass overwrite=True",
    ),
    "a device of another library": (lambda: bs.load("run", device="gpu"), "device=gpu is unknown"),
    "an unknown label": (
        lambda: bs.evaluate("reviews", [("good iron", "goood")]),
        "row 1: label 'goood' is not one of the known labels (bad, good); did you mean good?",
    ),
    "rows without labels": (lambda: bs.evaluate("reviews", ["good iron"]), "pass labelled examples, or use predict"),
    "no dev examples": (lambda: bs.evaluate("reviews"), "pass labelled examples as data"),
    "a model without a head": (lambda: bs.load("run").predict(["text"]), "fine-tune it with `bertsmith finetune"),
    "a number instead of a text": (lambda: bs.load("reviews").predict(["text", 1]), "text 1 is 1: it must be a string"),
    "a text instead of a list": (
        lambda: bs.prepare("some text", "new", tokenizer="shards/tokenizer"),
        "'some text' is not a file or folder: pass texts as a list, [text]",
    ),
    "a misspelt corpus": (
        lambda: bs.prepare(["corpus/txt.txt"], "new", tokenizer="shards/tokenizer"),
        "corpus/txt.txt does not exist; did you mean corpus/text.txt?",
    ),
    "a frame without the text column": (
        lambda: bs.prepare(FRAME, "new", tokenizer="shards/tokenizer"),
        "document 1 has no 'text' (its columns: plot, mood, n): set field=COLUMN",
    ),
    "a misspelt kind of tokenizer": (
        lambda: bs.train_tokenizer(["corpus"], "new", kind="wordpeice"),  # type: ignore[arg-type]
        "did you mean wordpiece?",
    ),
    "a folder that is not a run": (lambda: bs.open_run("corpus"), "corpus is not a run folder"),
    "saving over other files": (lambda: bs.load("run").save("corpus"), "corpus exists: choose another folder"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_helps(mistake: str, place: Path) -> None:
    make, expected = MISTAKES[mistake]
    with pytest.raises(bs.BertsmithError) as caught:
        make()
    message = str(caught.value)
    assert expected in message
    assert "\n" not in message
    assert not {"-o", "--train", "--dev", "--device"} & set(re.sub("`.*?`", "", message).split())  # except in commands
