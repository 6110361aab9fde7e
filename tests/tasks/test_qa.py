"""Questions in user files: detection of columns, formats of answers, errors for invalid rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertsmith.errors import DataError
from bertsmith.tasks import qa
from bertsmith.tasks.task import Example

PASSAGE = "Iron rings, and iron glows."


def lines(folder: Path, *items: Any) -> Path:
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def examples(path: Path, split: str = "train", **settings: Any) -> list[Example]:
    return qa.Config(**settings).build(files={split: path}).examples(split)


@pytest.mark.parametrize(
    ("answer", "more", "golds", "where"),
    [
        ("iron", {}, ("iron",), (16, 20)),
        ("iron", {"answer_start": 16}, ("iron",), (16, 20)),
        ("Iron", {"start": None}, ("Iron",), (0, 4)),
        ([" rings", "glows"], {}, (" rings", "glows"), (5, 10)),
        (["rings", "glows"], {"answer_start": [5, 21]}, ("rings", "glows"), (5, 10)),
        ({"text": ["iron"], "answer_start": [16]}, {}, ("iron",), (16, 20)),
        ([{"text": "iron", "answer_start": 16}], {}, ("iron",), (16, 20)),
    ],
)
def test_answers_may_be_written_in_several_ways(
    answer: Any, more: dict[str, Any], golds: tuple[str, ...], where: tuple[int, int], tmp_path: Path
) -> None:
    path = lines(tmp_path, {"id": "x", "question": "What?", "context": PASSAGE, "answers": answer, **more})
    (example,) = examples(path)
    assert (example.id, example.texts, example.gold, example.spans) == ("x", ("What?", PASSAGE), golds, (where,))
    assert example.source == f"{path}:1"


def test_csv_with_columns_of_other_names(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(f'frage,absatz,antwort,ab\nWas?,"{PASSAGE}",iron,16\n', encoding="utf-8")
    task = qa.Config(question="frage", context="absatz", answer="antwort", start="ab").build(files={"train": path})
    (example,) = task.examples("train")
    assert example.spans == ((16, 20),)
    assert task.detected == {"question": "frage", "context": "absatz", "answer": "antwort", "start": "ab"}


def test_empty_answers_mean_no_answer_with_rules_2_0(tmp_path: Path) -> None:
    path = lines(
        tmp_path,
        {"question": "What?", "context": PASSAGE, "answer": ""},
        {"question": "What?", "context": PASSAGE, "answer": None},
        {"question": "What?", "context": PASSAGE, "answer": []},
    )
    assert [example.gold for example in examples(path, rules="2.0")] == [()] * 3
    with pytest.raises(DataError, match=r"train\.jsonl:1: no answer in 'answer'.*rules=2\.0"):
        examples(path)


def test_a_test_file_needs_no_answers(tmp_path: Path) -> None:
    path = lines(tmp_path, {"question": "What?", "context": PASSAGE})
    assert [example.gold for example in examples(path, "test")] == [None]
    with pytest.raises(DataError, match="answer"):
        examples(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "gold"}, r":2: the answer 'gold' is not in its passage"),
        ({"answer": "iron", "start": 3}, r":2: the answer 'iron' should begin at character 3, .*begins at 16"),
        ({"answer": "iron", "start": "x"}, r":2: 'start' must be a number"),
        ({"answer": "iron", "start": 1.5}, r":2: .* must be an integer, found 1\.5"),
        ({"answer": ["iron"], "start": [1, 2]}, r":2: 1 answers but 2 start offsets"),
        ({"answer": [None]}, r":2: 'answer' must be a text"),
    ],
)
def test_an_invalid_row_is_a_one_line_error(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {"question": "What?", "context": PASSAGE, "answer": "iron", "start": None}
    path = lines(tmp_path, good, {"question": "What?", "context": PASSAGE, **row})
    with pytest.raises(DataError, match=message) as caught:
        examples(path)
    assert "\n" not in str(caught.value)


def test_misplaced_answers_can_be_skipped_in_training(tmp_path: Path) -> None:
    path = lines(tmp_path, {"question": "What?", "context": PASSAGE, "answer": "gold"})
    (example,) = examples(path, misplaced="skip")
    assert (example.gold, example.spans) == (("gold",), ())
