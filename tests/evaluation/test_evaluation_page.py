"""The page of an evaluation: complete, escaped, small, without requests."""

from __future__ import annotations

import json
import re
from pathlib import Path

from browser_fixtures import Reader, embedded
from evaluation.evaluation_fixtures import EVIL, LABELS, labelled, made_evaluation, mixed, predicted

from bertsmith.evaluation.output_files import write_evaluation
from bertsmith.evaluation.page import MAX_LABELS, page


def test_cells_lead_to_their_examples(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    assert found.confusion is not None
    data = embedded(page(found))
    for row, gold in enumerate(LABELS):
        for column, answer in enumerate(LABELS):
            cases = [data["cases"][number] for number in data["cells"].get(f"{row},{column}", [])]
            assert len(cases) == found.confusion.counts[row][column]
            assert all(case[1:3] == [gold, answer] for case in cases)
    assert len(data["errors"]) == data["error_count"] == found.error_count
    assert all(not data["cases"][number][6] for number in data["errors"])


def test_nothing_is_fetched_and_nothing_becomes_markup(tmp_path: Path) -> None:
    text = page(mixed(tmp_path))
    read = Reader(text)
    tags = [tag for tag, _ in read.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "b" not in tags
    for tag, attributes in read.elements:
        assert not attributes.keys() & {"src", "href", "data", "action", "srcset", "style"}, tag
        assert not any(name.startswith("on") for name in attributes), tag
    assert not re.search(r"https?:|@import|url\(", text, flags=re.IGNORECASE)
    assert "default-src 'none'" in text
    assert any(
        label.startswith(f"{EVIL} predicted as") for _, found in read.elements if (label := found.get("aria-label"))
    )


def test_a_notebook_shows_scores_and_confusion_matrix(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    assert found["accuracy"] == found.scores["accuracy"]
    scores = "accuracy=0.8208 [0.7674, 0.8642], macro_f1=0.8032, matthews=0.7493"
    assert repr(found) == f"Evaluation(classification dev, 240 examples, {scores})"
    text = found._repr_html_()
    for words in (
        "Precision</th>",
        "Support</th>",
        ">predicted</th>",
        ">true</th>",
        "95% interval",
        "Confusion matrix",
    ):
        assert words in text
    assert found.confusion is not None
    assert all(f">{count}</td>" in text for row in found.confusion.counts for count in row if count)
    harmless(text)


def harmless(text: str) -> None:
    """No script, no request, and nothing of the data becomes markup."""
    read = Reader(text)
    assert not {tag for tag, _ in read.elements} & {"script", "img", "b", "iframe", "link"}
    assert not any(name.startswith("on") for _, attributes in read.elements for name in attributes)
    assert not re.search(r"https?:|@import|url\(", text, flags=re.IGNORECASE)


def test_headings_are_conventional_and_scores_come_before_errors(tmp_path: Path) -> None:
    text = page(mixed(tmp_path))
    headings = [
        "Scores",
        "Per-class scores",
        "Confusion matrix",
        "Scores by length",
        "Calibration (reliability diagram)",
    ]
    places = [text.index(f"<h2>{heading}</h2>") for heading in headings]
    assert places == sorted(places)
    assert text.index("<h2>Per-class scores") < text.index('id="examples"') < text.index("<h2>Calibration")


def test_many_labels_and_examples_make_a_small_page(tmp_path: Path) -> None:
    known = [f"label {number}" for number in range(60)]
    rows = [("word " * 100, known[number % 50 if number % 7 else 0]) for number in range(9000)]
    task = labelled(rows, tmp_path, known)
    examples = task.examples("dev")
    found = made_evaluation(task, examples, [predicted(known, known[n % 3], 0.5) for n in range(len(examples))])
    text = page(found)
    assert len(text) < 4_000_000
    assert text.count('scope="row"') == MAX_LABELS
    assert "The 20 rarest labels are left out." in text
    assert "The 40 rarest labels are left out." in found._repr_html_()


def test_files_replace_older_ones(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    first = write_evaluation(found, tmp_path / "a" / "b")
    assert [path.name for path in first] == ["evaluation.json", "evaluation.html", "predictions.jsonl"]
    before = [path.read_bytes() for path in first]
    assert write_evaluation(found, tmp_path / "a" / "b") == first
    assert [path.read_bytes() for path in first] == before
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(path.name for path in first)
    numbers = json.loads(before[0])
    assert numbers["confusion"]["rows"] == list(LABELS)
    assert numbers["errors"][0].keys() == {"id", "texts", "gold", "prediction", "confidence", "source", "cell"}
