"""Scores of labels equal scikit-learn's, for random and for degenerate predictions."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from bertsmith.errors import DataError
from bertsmith.metrics import classification

NUMBERS = st.integers(-2, 4)
WORDS = st.sampled_from(["", "a", "é", "e\u0301", "🙂", "acceptable", "모순"])


def pairs(kind: st.SearchStrategy[object]) -> st.SearchStrategy[list[tuple[object, object]]]:
    """Gold and predicted labels; now and then all of one class."""
    return st.lists(st.tuples(kind, kind), min_size=1, max_size=40) | st.tuples(
        st.lists(kind, min_size=1, max_size=40), kind
    ).map(lambda drawn: [(gold, drawn[1]) for gold in drawn[0]])


def agree(gold: list[object], predicted: list[object]) -> None:
    """All scores of one set of predictions, compared with scikit-learn's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = sorted({*gold, *predicted})
        table = metrics.confusion_matrix(gold, predicted, labels=known)
        precision, recall, f1, support = metrics.precision_recall_fscore_support(
            gold, predicted, labels=known, zero_division=0
        )
        expected = {
            "accuracy": metrics.accuracy_score(gold, predicted),
            "macro": metrics.f1_score(gold, predicted, average="macro", zero_division=0),
            "micro": metrics.f1_score(gold, predicted, average="micro", zero_division=0),
            "matthews": metrics.matthews_corrcoef(gold, predicted),
        }
    result = {
        "accuracy": classification.accuracy(gold, predicted),
        "macro": classification.macro_f1(gold, predicted),
        "micro": classification.micro_f1(gold, predicted),
        "matthews": classification.matthews(gold, predicted),
    }
    assert result == pytest.approx(expected, abs=1e-9)
    counted = classification.confusion_matrix(gold, predicted)
    assert list(counted.labels) == known
    assert (counted.counts == table).all()
    parts = classification.scores_by_label(gold, predicted)
    assert [part.precision for part in parts.values()] == pytest.approx(precision, abs=1e-9)
    assert [part.recall for part in parts.values()] == pytest.approx(recall, abs=1e-9)
    assert [part.f1 for part in parts.values()] == pytest.approx(f1, abs=1e-9)
    assert [part.gold for part in parts.values()] == list(support)


@settings(max_examples=60, deadline=None)
@given(pairs(NUMBERS) | pairs(WORDS))
def test_all_scores_equal_scikit_learn(drawn: list[tuple[object, object]]) -> None:
    agree([gold for gold, _ in drawn], [predicted for _, predicted in drawn])


@settings(max_examples=100, deadline=None)
@given(pairs(st.integers(0, 1)))
def test_binary_f1_equals_scikit_learn(drawn: list[tuple[int, int]]) -> None:
    gold, predicted = [a for a, _ in drawn], [b for _, b in drawn]
    expected = metrics.f1_score(gold, predicted, pos_label=1, zero_division=0)
    assert classification.f1(gold, predicted) == pytest.approx(expected, abs=1e-9)


def test_thousands_of_predictions() -> None:
    draw = random.Random(0)
    for size, kinds in ((5000, 2), (5000, 3), (3000, 50)):
        gold = [draw.randrange(kinds) for _ in range(size)]
        agree(gold, [label if draw.random() < 0.7 else draw.randrange(kinds + 1) for label in gold])


def test_many_confusion_matrices_are_scored_at_once() -> None:
    tables = np.random.default_rng(0).integers(0, 9, size=(20, 3, 3))
    for score in (
        classification.accuracy_from_confusion,
        classification.macro_f1_from_confusion,
        classification.matthews_from_confusion,
    ):
        assert score(tables) == pytest.approx([float(score(table)) for table in tables], abs=1e-12)
    tables[5, 1, :] = tables[5, :, 1] = 0  # a label that is absent from a resample is left out of its mean
    assert classification.macro_f1_from_confusion(tables)[5] == pytest.approx(
        float(classification.macro_f1_from_confusion(tables[5][::2, ::2])), abs=1e-12
    )
    one = classification.label_counts(classification.ConfusionMatrix((0, 1, 2), tables[4]), 1).f1
    assert classification.label_f1_from_confusion(tables, index=1)[4] == pytest.approx(one, abs=1e-12)


def test_degenerate_cases_have_defined_values() -> None:
    assert classification.matthews([0, 1, 1], [1, 1, 1]) == 0.0
    assert classification.matthews([1, 1], [1, 1]) == 0.0
    assert classification.f1([0, 0], [0, 0]) == 0.0
    assert classification.f1([1, 0], [0, 0]) == 0.0
    assert classification.micro_f1([0, 1, 2], [0, 2, 1], labels=[1, 2]) == 0.0
    assert classification.micro_f1(["O", "A", "A"], ["O", "A", "O"], labels=["A"]) == pytest.approx(2 / 3)


def test_arrays_and_named_labels() -> None:
    assert classification.accuracy(["a"], ["a\0"]) == 0.0  # numpy's strings cannot tell these two apart
    counted = classification.confusion_matrix(np.array([0, 1, 1]), np.array([0, 1, 0]), labels=[1, 0, 7])
    assert counted.counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "empty"),
        ([1, 2], [1], "2 gold labels but 1 predicted"),
        ([1, 2], ["1", "2"], "all numbers or all strings"),
        ([1.5], [1], "gold label 1 is 1.5"),
        ([1], [None], "predicted label 1 is None"),
    ],
)
def test_invalid_input_is_an_error(gold: list[object], predicted: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        classification.accuracy(gold, predicted)


def test_a_positive_label_that_does_not_occur_is_an_error() -> None:
    with pytest.raises(DataError, match="'yes' is not one of"):
        classification.f1(["Yes", "no"], ["no", "no"], positive="yes")
    with pytest.raises(DataError, match="7 is not one of"):
        classification.confusion_matrix([7], [0], labels=[0, 1])
