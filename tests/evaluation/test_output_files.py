"""Evaluation folders are read back as written; errors name what is invalid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from evaluation.evaluation_fixtures import made_evaluation, mixed

from bertsmith.errors import BertsmithError, DataError
from bertsmith.evaluation.output_files import NUMBERS, PAGE, read_cases, read_numbers, write_evaluation
from bertsmith.evaluation.page import page, page_data, page_main
from bertsmith.tasks import regression
from bertsmith.tasks.task import Prediction


def test_a_classification_evaluation_is_read_back(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    write_evaluation(found, tmp_path / "written")
    numbers, data = read_numbers(tmp_path / "written"), read_cases(tmp_path / "written")
    assert numbers == replace(found, errors=(), cases=(), predictions=([], []), submission={})
    assert data == page_data(found)
    assert page_main(numbers, data) in page(found)


def test_a_regression_evaluation_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("text,score\nred,1\nblue,2\nwhite,6\n", encoding="utf-8")
    task = regression.Config().build(files={"dev": path})
    found = made_evaluation(task, task.examples("dev"), [Prediction(value) for value in (1.5, 2.0, 3.0)])
    write_evaluation(found, tmp_path / "written")
    assert read_numbers(tmp_path / "written").scores == found.scores
    assert read_cases(tmp_path / "written")["probabilities"] is False


def test_invalid_evaluation_folders_are_errors(tmp_path: Path) -> None:
    write_evaluation(mixed(tmp_path), tmp_path)
    for text, words in (
        ("{", "is not an evaluation"),
        ("[]", "expected a JSON object"),
        ('{"model": []}', "must be a string"),
    ):
        (tmp_path / NUMBERS).write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=words):
            read_numbers(tmp_path)
    (tmp_path / PAGE).write_text("<p>nothing</p>", encoding="utf-8")
    with pytest.raises(DataError, match="write it again"):
        read_cases(tmp_path)
    (tmp_path / PAGE).unlink()
    with pytest.raises(BertsmithError, match="does not exist"):
        read_cases(tmp_path)
