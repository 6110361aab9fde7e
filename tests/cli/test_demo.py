"""The demo's task: sentences, and sentences with shuffled words."""

from __future__ import annotations

import json
from pathlib import Path

from bertsmith.cli import demo
from bertsmith.cli.demo import DEV_EXAMPLES, TRAIN_EXAMPLES


def test_half_of_the_examples_have_shuffled_words(tmp_path: Path) -> None:
    count = TRAIN_EXAMPLES + DEV_EXAMPLES + 100
    lines = [f"Line {number} of it has words that stand in order." for number in range(count)]
    text = "\n".join(["Too short.", "This one of more words than six has no end", *lines, *lines[:50]])
    files = demo._write_task(tmp_path / "task", text)
    rows = {name: [json.loads(line) for line in path.read_text("utf-8").splitlines()] for name, path in files.items()}
    assert {name: len(some) for name, some in rows.items()} == {"train": TRAIN_EXAMPLES, "dev": DEV_EXAMPLES}
    for some in rows.values():
        assert [row["label"] for row in some].count("sentence") * 2 == len(some)
    examples, words = [row for some in rows.values() for row in some], {_sorted(line): line for line in lines}
    assert len({_sorted(row["text"]) for row in examples}) == len(examples)  # no line twice, whatever its order
    for row in examples:
        line = words[_sorted(row["text"])]
        assert row["text"].startswith("Line ")
        assert row["text"].endswith(".")
        assert (row["text"] == line) is (row["label"] == "sentence")
    again = demo._write_task(tmp_path / "again", text)
    assert [path.read_bytes() for path in again.values()] == [path.read_bytes() for path in files.values()]


def _sorted(text: str) -> str:
    return " ".join(sorted(text.removesuffix(".").split()))
