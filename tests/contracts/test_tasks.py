"""What every task keeps to. A new file in tasks/ needs a sample in tests/tasks/samples.py and is then tested here."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tasks.samples import SAMPLES, TEXTS

from bertsmith import config
from bertsmith.tasks import task as tasks
from bertsmith.tasks.task import Features, Task
from bertsmith.tokenizers import training, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer

LENGTH, SHORT = 256, 32


@cache
def tokenizer() -> Tokenizer:
    settings = wordpiece.Config(min_count=1)
    return settings.train(training.count_words(TEXTS, settings.word_splitter()), vocab_size=300)


@pytest.fixture(params=SAMPLES)
def task(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    settings, files = SAMPLES[request.param](tmp_path)
    return settings.build(files=files)


def perfect(task: Task, asked: list[Features]) -> list[NDArray[np.float32]]:
    """Logits as sure as can be of what is right."""
    return [_logits(task, one) * np.float32(20) if task.objective != "regress" else _logits(task, one) for one in asked]


def _logits(task: Task, asked: Features) -> NDArray[np.float32]:
    if task.objective == "regress":
        return np.array([asked.target], np.float32)
    if task.objective == "choose":
        return np.eye(len(asked.rows), dtype=np.float32)[asked.target]
    if task.objective == "span":
        found = np.zeros((len(asked.rows[0]), 2), np.float32)
        found[list(asked.target), [0, 1]] = 1
        return found
    return np.eye(len(task.head_config()["labels"]), dtype=np.float32)[asked.target]


def test_every_family_has_a_sample() -> None:
    assert {name.partition("/")[0] for name in SAMPLES} == set(config.kinds(tasks.FOLDER))


@pytest.mark.parametrize("name", SAMPLES)
def test_settings_survive_as_plain_values(name: str, tmp_path: Path) -> None:
    settings, _ = SAMPLES[name](tmp_path)
    plain = json.loads(json.dumps(config.to_dict(settings)))
    assert plain["kind"] == name.partition("/")[0]
    assert config.from_dict(type(settings), plain) == settings


def test_gold_answers_read_back_score_full_marks_and_their_contrary_does_not(task: Task) -> None:
    examples = task.examples("dev")
    asked = task.rows(examples, tokenizer(), max_length=LENGTH)
    answers = perfect(task, asked)
    predictions = task.decode(examples, asked, answers)
    scores = task.score(examples, predictions)
    assert scores[task.main_metric] == pytest.approx(1)
    interval = task.interval(examples, predictions)
    assert interval.value == pytest.approx(1)
    assert interval.low <= interval.value <= interval.high + 1e-9
    contrary = task.decode(examples, asked, [-answer for answer in answers])
    assert task.score(examples, contrary)[task.main_metric] < 0.8


def test_every_example_gets_one_prediction_whatever_the_order_of_what_is_asked(task: Task) -> None:
    examples = task.examples("dev")
    for split in ("train", "dev"):
        own = [example.id for example in task.examples(split)]
        assert len(set(own)) == len(own)
    asked = task.rows(examples, tokenizer(), max_length=LENGTH)
    answers = perfect(task, asked)
    predictions = task.decode(examples, asked, answers)
    assert len(predictions) == len(examples)
    assert {one.example_index for one in asked} == set(range(len(examples)))
    assert task.decode(examples, asked[::-1], answers[::-1]) == predictions
    json.dumps([dict(prediction.detail) for prediction in predictions], allow_nan=False)


def test_rows_fit_and_what_is_cut_is_said(task: Task) -> None:
    examples = task.examples("dev")
    whole, short = (task.rows(examples, tokenizer(), max_length=length) for length in (LENGTH, SHORT))
    for asked, length in ((whole, LENGTH), (short, SHORT)):
        for row in (row for one in asked for row in one.rows):
            assert len(row) <= length
            assert row.ids.min() >= 0
            assert row.ids.max() < tokenizer().vocab_size
    too_long = {one.example_index for one in whole for row in one.rows if len(row) > SHORT}
    assert too_long
    for number in too_long:
        parts = [one for one in short if one.example_index == number]
        assert len(parts) > 1 or any(any(row.truncated) for row in parts[0].rows)


def test_training_rows_have_targets_and_unknown_answers_are_asked_but_not_learned(task: Task) -> None:
    examples = task.examples("train")
    asked = task.rows(examples, tokenizer(), max_length=LENGTH, training=True)
    assert asked
    assert all(one.target is not None for one in asked)
    unknown = [dataclasses.replace(example, gold=None) for example in examples]
    assert task.rows(unknown, tokenizer(), max_length=LENGTH, training=True) == []
    open_questions = task.rows(unknown, tokenizer(), max_length=LENGTH)
    assert all(one.target is None for one in open_questions)
    known = task.rows(examples, tokenizer(), max_length=LENGTH)
    for one, other in zip(open_questions, known, strict=True):
        assert all(np.array_equal(a.ids, b.ids) for a, b in zip(one.rows, other.rows, strict=True))


def test_a_split_that_is_not_there_is_one_clear_line(task: Task) -> None:
    assert task.has_split("train")
    assert task.has_split("dev")
    assert not task.has_split("nonsense")
    with pytest.raises(ValueError, match="nonsense") as caught:
        task.examples("nonsense")
    assert "\n" not in str(caught.value)


def test_every_example_says_where_it_came_from(task: Task) -> None:
    for split in ("train", "dev"):
        for example in task.examples(split):
            file, _, place = example.source.partition(":")
            assert Path(file).is_file()
            assert place.strip()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_trained_models_labels_decide_their_order(name: str, tmp_path: Path) -> None:
    settings, files = SAMPLES[name](tmp_path)
    task = settings.build(files=files)
    head: dict[str, Any] = task.head_config()
    if task.objective != "classify":
        pytest.skip("classes are what has an order")
    turned = settings.build(files=files, labels=head["labels"][::-1])
    assert turned.head_config()["labels"] == head["labels"][::-1]
    examples = turned.examples("dev")
    asked = turned.rows(examples, tokenizer(), max_length=LENGTH)
    assert turned.score(examples, turned.decode(examples, asked, perfect(turned, asked)))[
        turned.main_metric
    ] == pytest.approx(1)
    with pytest.raises(ValueError, match=r"label"):
        settings.build(files=files, labels=("yes", "no", "perhaps")).examples("dev")
