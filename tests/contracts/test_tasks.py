"""The contract of every task. A new file in tasks/ needs a sample in tests/tasks/samples.py."""

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


def perfect(task: Task, features: list[Features]) -> list[NDArray[np.float32]]:
    """Confident logits of the targets."""
    return [
        _logits(part, one) * np.float32(20) if part.objective != "regress" else _logits(part, one)
        for one in features
        for part in [task.heads.get(one.head, task)]
    ]


def _logits(task: Task, features: Features) -> NDArray[np.float32]:
    if task.objective == "regress":
        return np.array([features.target], np.float32)
    if task.objective == "multi_label":
        return np.array(features.target, np.float32) * 2 - 1
    if task.objective == "choose":
        return np.eye(len(features.rows), dtype=np.float32)[features.target]
    if task.objective == "span":
        result = np.zeros((len(features.rows[0]), 2), np.float32)
        result[list(features.target), [0, 1]] = 1
        return result
    return np.eye(len(task.head_config()["labels"]), dtype=np.float32)[features.target]


def test_every_family_has_a_sample() -> None:
    assert {name.partition("/")[0] for name in SAMPLES} == set(config.kinds(tasks.FOLDER))


@pytest.mark.parametrize("name", SAMPLES)
def test_settings_survive_json(name: str, tmp_path: Path) -> None:
    settings, _ = SAMPLES[name](tmp_path)
    plain = json.loads(json.dumps(config.to_dict(settings)))
    assert plain["kind"] == name.partition("/")[0]
    assert config.from_dict(type(settings), plain) == settings


def test_gold_targets_score_perfectly_and_negated_logits_do_not(task: Task) -> None:
    examples = task.examples("dev")
    features = task.rows(examples, tokenizer(), max_length=LENGTH)
    answers = perfect(task, features)
    predictions = task.decode(examples, features, answers)
    scores = task.score(examples, predictions)
    assert scores[task.main_metric] == pytest.approx(1)
    interval = task.interval(examples, predictions)
    assert interval.value == pytest.approx(1)
    assert interval.low <= interval.value <= interval.high + 1e-9
    contrary = task.decode(examples, features, [-answer for answer in answers])
    assert task.score(examples, contrary)[task.main_metric] < 0.8


def test_every_example_gets_one_prediction_in_any_order_of_features(task: Task) -> None:
    examples = task.examples("dev")
    for split in ("train", "dev"):
        own = [example.id for example in task.examples(split)]
        assert len(set(own)) == len(own)
    features = task.rows(examples, tokenizer(), max_length=LENGTH)
    answers = perfect(task, features)
    predictions = task.decode(examples, features, answers)
    assert len(predictions) == len(examples)
    assert {one.example_index for one in features} == set(range(len(examples)))
    assert task.decode(examples, features[::-1], answers[::-1]) == predictions
    json.dumps([dict(prediction.detail) for prediction in predictions], allow_nan=False)


def test_rows_fit_and_truncation_is_recorded(task: Task) -> None:
    examples = task.examples("dev")
    whole, short = (task.rows(examples, tokenizer(), max_length=length) for length in (LENGTH, SHORT))
    for features, length in ((whole, LENGTH), (short, SHORT)):
        for row in (row for one in features for row in one.rows):
            assert len(row) <= length
            assert row.ids.min() >= 0
            assert row.ids.max() < tokenizer().vocab_size
    too_long = {one.example_index for one in whole for row in one.rows if len(row) > SHORT}
    assert too_long
    for number in too_long:
        parts = [one for one in short if one.example_index == number]
        assert len(parts) > 1 or any(any(row.truncated) for row in parts[0].rows)


def test_training_rows_have_targets_and_unlabelled_examples_are_not_trained_on(task: Task) -> None:
    examples = task.examples("train")
    features = task.rows(examples, tokenizer(), max_length=LENGTH, training=True)
    assert features
    assert all(one.target is not None for one in features)
    unknown = [dataclasses.replace(example, gold=None) for example in examples]
    assert task.rows(unknown, tokenizer(), max_length=LENGTH, training=True) == []
    unlabelled = task.rows(unknown, tokenizer(), max_length=LENGTH)
    assert all(one.target is None for one in unlabelled)
    known = task.rows(examples, tokenizer(), max_length=LENGTH)
    for one, other in zip(unlabelled, known, strict=True):
        assert all(np.array_equal(a.ids, b.ids) for a, b in zip(one.rows, other.rows, strict=True))


def test_a_missing_split_is_a_one_line_error(task: Task) -> None:
    assert task.has_split("train")
    assert task.has_split("dev")
    assert not task.has_split("nonsense")
    with pytest.raises(ValueError, match="nonsense") as caught:
        task.examples("nonsense")
    assert "\n" not in str(caught.value)


def test_every_example_has_its_source(task: Task) -> None:
    for split in ("train", "dev"):
        for example in task.examples(split):
            file, _, position = example.source.partition(":")
            assert Path(file).is_file()
            assert position.strip()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_trained_models_labels_set_the_class_order(name: str, tmp_path: Path) -> None:
    settings, files = SAMPLES[name](tmp_path)
    task = settings.build(files=files)
    head: dict[str, Any] = task.head_config()
    if task.objective != "classify":
        pytest.skip("only classes have an order")
    reordered = settings.build(files=files, labels=head["labels"][::-1])
    assert reordered.head_config()["labels"] == head["labels"][::-1]
    examples = reordered.examples("dev")
    features = reordered.rows(examples, tokenizer(), max_length=LENGTH)
    assert reordered.score(examples, reordered.decode(examples, features, perfect(reordered, features)))[
        reordered.main_metric
    ] == pytest.approx(1)
    with pytest.raises(ValueError, match=r"label"):
        settings.build(files=files, labels=("yes", "no", "perhaps")).examples("dev")
