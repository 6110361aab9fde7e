"""Regression: squared error, and texts without a label."""

from __future__ import annotations

import math

import pytest
import torch
from objectives.head_fixtures import LENGTHS, alone, model_with, packed

from bertsmith.errors import BertsmithError
from bertsmith.objectives import regress
from bertsmith.training.step import Scores


def test_loss_text_by_text() -> None:
    model = model_with(regress.Config())
    batch = packed()
    labels = batch.labels["regress"]
    assert labels[len(LENGTHS) :].isnan().all(), "empty slots"
    labels[3] = math.nan
    loss = model(batch)
    numbers = [number for number in range(len(LENGTHS)) if number != 3]
    total = sum((model.predict(alone(number), "regress").item() - labels[number].item()) ** 2 for number in numbers)
    assert loss.sums["regress"].item() == pytest.approx(total, rel=1e-5)
    assert int(loss.counts["regress"]) == int(model.counts(batch)["regress"]) == len(numbers)
    loss.mean().backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


def test_regression_has_no_accuracy() -> None:
    loss = model_with(regress.Config())(packed())
    assert loss.correct == {}
    scores = Scores.of({"sum/regress": 6.0, "count/regress": 3.0}, loss.weights)
    assert scores.losses == {"regress": 2.0}
    assert scores.accuracies == {}


def test_integer_labels_are_refused() -> None:
    """IGNORE_INDEX would be a valid number, so missing labels are NaN."""
    batch = packed()
    batch = batch.replace(labels={"regress": torch.ones(len(batch.cls_positions), dtype=torch.int64)})
    with pytest.raises(BertsmithError, match="must be floating-point numbers"):
        model_with(regress.Config())(batch)
