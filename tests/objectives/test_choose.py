"""Multiple choice: the softmax is over the choices of one question."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.errors import BertsmithError
from bertsmith.objectives import choose
from bertsmith.types import IGNORE_INDEX

QUESTIONS = [(0, 1), (2, 3, 4), (5, 6), (7,)]  # as `questions` creates them from eight texts


def test_loss_question_by_question() -> None:
    model = model_with(choose.Config())
    batch = packed()
    labels = batch.labels["choose"]
    loss = model(batch)
    total, correct = 0.0, 0
    for numbers in QUESTIONS:
        scores = [model.predict(alone(number), "choose").item() for number in numbers]
        (gold_choice,) = [index for index, number in enumerate(numbers) if labels[number] == 0]
        assert [index + int(labels[number]) for index, number in enumerate(numbers)] == [gold_choice] * len(numbers)
        total += math.log(sum(map(math.exp, scores))) - scores[gold_choice]
        correct += scores[gold_choice] == max(scores)
    assert loss.sums["choose"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["choose"]) == len(QUESTIONS)
    assert int(loss.correct["choose"]) == correct


def test_an_unlabelled_question_does_not_change_the_loss() -> None:
    model = model_with(choose.Config())
    batch = packed()
    before = model(batch)
    batch.labels["choose"][2:5] = IGNORE_INDEX
    after = model(batch)
    scores = torch.tensor([model.predict(alone(number), "choose").item() for number in QUESTIONS[1]])
    correct = int(choose_correctly(packed().labels["choose"][2:5]))
    lost = before.sums["choose"].item() - after.sums["choose"].item()
    assert lost == pytest.approx(float(-scores.log_softmax(0)[correct]), abs=1e-4)
    assert int(after.counts["choose"]) == len(QUESTIONS) - 1


def choose_correctly(labels: torch.Tensor) -> torch.Tensor:
    return (labels == 0).nonzero()[0]


def test_labels_of_a_question() -> None:
    assert choose.choice_labels(2, 4) == [2, 1, 0, -1]
    assert choose.choice_labels(0, 1) == [0]
    assert min(choose.choice_labels(0, choose.MAX_CHOICES)) > IGNORE_INDEX
    for correct, choices in ((4, 4), (-1, 4), (0, choose.MAX_CHOICES + 1)):
        with pytest.raises(BertsmithError, match=f"choice {correct} of {choices}"):
            choose.choice_labels(correct, choices)


def test_questions_cover_the_texts() -> None:
    assert [number for numbers in QUESTIONS for number in numbers] == list(range(len(LENGTHS)))
