"""Entity scores equal those of seqeval and of conlleval, overall, by type, lenient and strict."""

from __future__ import annotations

import random
import warnings

import pytest
from seqeval import metrics
from seqeval import scheme as oracle

from bertsmith.errors import DataError
from bertsmith.metrics import sequence_labelling
from bertsmith.metrics.classification import MatchCounts, f1_from_counts
from bertsmith.metrics.sequence_labelling import Scheme

# seed: the output of conlleval.pl (version 2004-01-26) for the 400 sentences of `tagged(seed, "BI", sentences=400)`:
# correct, found and gold entities, accuracy, F1, F1 by type
CONLLEVAL = {
    1: ((203, 1440, 985), 24.36, 16.74, {"NEW": 0.0, "PER": 23.54}),
    3: ((600, 1332, 1078), 65.18, 49.79, {"NEW": 0.0, "PER": 59.23}),
    5: ((1557, 1759, 1732), 91.39, 89.20, {"LOC": 91.41, "NEW": 0.0, "PER": 91.16, "X-Y": 89.5}),
    8: ((921, 1100, 1038), 92.35, 86.16, {"NEW": 0.0, "PER": 89.94}),
    11: ((1521, 1521, 1521), 100.00, 100.00, {"LOC": 100.0, "PER": 100.0}),
}


def tagged(seed: int, letters: str, *, sentences: int = 40) -> tuple[list[list[str]], list[list[str]]]:
    """Gold and predicted tags in any order, valid or not; some types are only predicted, some never."""
    draw = random.Random(seed)
    kinds = ["PER", "LOC", "X-Y"][: draw.randint(1, 3)]
    pool = ["O", "O"] + [f"{letter}-{kind}" for letter in letters for kind in kinds]
    more = [*pool, *(f"{letter}-NEW" for letter in letters)]
    right = draw.choice([0.0, 0.5, 0.9, 1.0])
    gold = [[draw.choice(pool) for _ in range(draw.randint(1, 12))] for _ in range(sentences)]
    return gold, [[tag if draw.random() < right else draw.choice(more) for tag in tags] for tags in gold]


def check(gold: list[list[str]], predicted: list[list[str]], *, scheme: Scheme | None) -> None:
    """Everything that seqeval reports, compared."""
    result = sequence_labelling.score_entities(gold, predicted, scheme=scheme)
    named = {"mode": "strict", "scheme": getattr(oracle, scheme)} if scheme else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = metrics.classification_report(gold, predicted, output_dict=True, zero_division=0, **named)
        f1 = metrics.f1_score(gold, predicted, zero_division=0, **named)
        accuracy = metrics.accuracy_score(gold, predicted)
    assert result.overall.f1 == pytest.approx(f1, abs=1e-9)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-9)
    assert result.macro_f1 == pytest.approx(report["macro avg"]["f1-score"], abs=1e-9)
    assert result.overall.precision == pytest.approx(report["micro avg"]["precision"], abs=1e-9)
    assert result.overall.recall == pytest.approx(report["micro avg"]["recall"], abs=1e-9)
    for kind, part in result.by_type.items():
        assert [part.precision, part.recall, part.f1, part.gold] == pytest.approx(list(report[kind].values()), abs=1e-9)
    assert set(report) - set(result.by_type) == {"micro avg", "macro avg", "weighted avg"}
    sums = sequence_labelling.entity_counts(gold, predicted, scheme=scheme).sum(axis=0)
    assert MatchCounts(*sums.tolist()) == result.overall
    assert float(f1_from_counts(sums)) == pytest.approx(f1, abs=1e-9)


@pytest.mark.parametrize("letters", ["BI", "BIES"])
def test_lenient_scores_equal_seqeval(letters: str) -> None:
    for seed in range(30):
        check(*tagged(seed, letters), scheme=None)


@pytest.mark.parametrize(("scheme", "letters"), [("IOB1", "BI"), ("IOB2", "BI"), ("IOBES", "BIES"), ("BILOU", "BILU")])
def test_strict_scores_equal_seqeval(scheme: Scheme, letters: str) -> None:
    for seed in range(30):
        check(*tagged(seed, letters), scheme=scheme)


@pytest.mark.parametrize("seed", CONLLEVAL)
def test_lenient_scores_equal_the_recorded_ones_of_conlleval(seed: int) -> None:
    result = sequence_labelling.score_entities(*tagged(seed, "BI", sentences=400))
    overall, accuracy, f1, by_type = CONLLEVAL[seed]
    assert result.overall == MatchCounts(*overall)
    assert round(100 * result.accuracy, 2) == accuracy
    assert round(100 * result.overall.f1, 2) == f1
    assert {kind: round(100 * part.f1, 2) for kind, part in result.by_type.items()} == by_type


def test_no_entities_score_zero() -> None:
    result = sequence_labelling.score_entities([["O", "O"]], [["O", "O"]])
    assert (result.overall.f1, result.macro_f1, result.accuracy) == (0.0, 0.0, 1.0)
    assert sequence_labelling.score_entities([["O"]], [["B-A"]]).overall == MatchCounts(correct=0, predicted=1, gold=0)
    assert sequence_labelling.score_entities([[]], [[]]).accuracy == 0.0


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([], [], "empty"),
        ([["O"]], [], "1 gold sentences but 0"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "sentence 2 has 2 gold tags but 1"),
        ([["O"], ["O", "O"]], [["O"], ["O", "X"]], "predicted sentence 2: word 2 has the tag 'X'"),
    ],
)
def test_invalid_input_is_an_error(gold: list[list[str]], predicted: list[list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        sequence_labelling.score_entities(gold, predicted)
