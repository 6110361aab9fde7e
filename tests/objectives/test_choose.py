"""Choices that compete within their question, and only there."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.errors import BertsmithError
from bertsmith.objectives import choose
from bertsmith.types import IGNORE_INDEX

QUESTIONS = [(0, 1), (2, 3, 4), (5, 6), (7,)]  # as `questions` makes them of eight texts


def test_loss_question_by_question() -> None:
    model = model_with(choose.Config())
    batch = packed()
    labels = batch.labels["choose"]
    loss = model(batch)
    total, right = 0.0, 0
    for numbers in QUESTIONS:
        scores = [model.predict(alone(number), "choose").item() for number in numbers]
        (answer,) = [place for place, number in enumerate(numbers) if labels[number] == 0]
        assert [place + int(labels[number]) for place, number in enumerate(numbers)] == [answer] * len(numbers)
        total += math.log(sum(map(math.exp, scores))) - scores[answer]
        right += scores[answer] == max(scores)
    assert loss.sums["choose"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["choose"]) == len(QUESTIONS)
    assert int(loss.correct["choose"]) == right


def test_an_unlabelled_question_does_not_change_the_loss() -> None:
    model = model_with(choose.Config())
    batch = packed()
    before = model(batch)
    batch.labels["choose"][2:5] = IGNORE_INDEX
    after = model(batch)
    scores = torch.tensor([model.predict(alone(number), "choose").item() for number in QUESTIONS[1]])
    right = int(choose_right(packed().labels["choose"][2:5]))
    lost = before.sums["choose"].item() - after.sums["choose"].item()
    assert lost == pytest.approx(float(-scores.log_softmax(0)[right]), abs=1e-4)
    assert int(after.counts["choose"]) == len(QUESTIONS) - 1


def choose_right(labels: torch.Tensor) -> torch.Tensor:
    return (labels == 0).nonzero()[0]


def test_labels_of_a_question() -> None:
    assert choose.choice_labels(2, 4) == [2, 1, 0, -1]
    assert choose.choice_labels(0, 1) == [0]
    assert min(choose.choice_labels(0, choose.MAX_CHOICES)) > IGNORE_INDEX
    for right, choices in ((4, 4), (-1, 4), (0, choose.MAX_CHOICES + 1)):
        with pytest.raises(BertsmithError, match=f"choice {right} of {choices}"):
            choose.choice_labels(right, choices)


def test_questions_cover_the_texts() -> None:
    assert [number for numbers in QUESTIONS for number in numbers] == list(range(len(LENGTHS)))
