"""Tables of an evaluation, compared with the metrics and with values computed by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from evaluation.evaluation_fixtures import labelled, made_evaluation, mixed, predicted

from bertsmith.evaluation.tables import baseline, by_label, calibration, confusion
from bertsmith.metrics import classification, sequence_labelling
from bertsmith.tasks import choice, qa, regression, tagging
from bertsmith.tasks.task import Prediction

KINDS = ("LOC", "PER")
TAGS = ("O", *(f"{letter}-{kind}" for kind in KINDS for letter in "BI"))


def lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_labels_by_hand(tmp_path: Path) -> None:
    known = ("a", "b")
    task = labelled([("one", "a"), ("two two", "a"), ("three", "b"), ("four " * 20, "a")], tmp_path, known)
    examples = task.examples("dev")
    answers = [
        predicted(known, "a", 0.95),
        predicted(known, "b", 0.85),
        predicted(known, "b", 0.65),
        predicted(known, "b", 0.55),
    ]
    found = made_evaluation(task, examples, answers)
    assert found.confusion is not None
    assert found.confusion.rows == found.confusion.columns == known
    assert found.confusion.counts == ((1, 2), (0, 1))
    assert found.scores["accuracy"] == 0.5
    assert [(one.description, one.scores["accuracy"]) for one in [found.baseline]] == [("always a", 0.75)]
    assert [case.confidence for case in found.errors] == [0.85, 0.55]
    assert (found.errors[0].gold, found.errors[0].prediction) == ("a", "b")
    assert found.errors[0].source.endswith("dev.jsonl:2")
    assert [(one.shortest, one.longest, one.examples, one.truncated, one.score) for one in found.by_length] == [
        (1, 16, 3, 1, pytest.approx(2 / 3)),
        (17, 32, 1, 0, 0.0),
    ]
    assert found.calibration is not None
    by_hand = (abs(0.95 - 1) + abs(0.85 - 0) + abs(0.65 - 1) + abs(0.55 - 0)) / 4
    assert found.calibration.ece == pytest.approx(by_hand)
    assert found.interval is not None
    assert found.interval.low < 0.5 < found.interval.high


def test_label_scores_match_the_metrics(tmp_path: Path) -> None:
    found = mixed(tmp_path)
    examples, predictions = found.predictions
    gold, answers = [example.gold for example in examples], [one.value for one in predictions]
    counted = classification.scores_by_label(gold, answers)
    for one in found.by_label:
        part = counted[one.label]
        assert (one.precision, one.recall, one.f1) == (part.precision, part.recall, part.f1)
        assert (one.support, one.predicted) == (part.gold, part.predicted)
    assert found.calibration is not None
    assert sum(one.count for one in found.calibration.bins) == len(examples)
    assert sum(one.examples for one in found.by_length) == len(examples)
    assert found.error_count == sum(a != b for a, b in zip(gold, answers, strict=True))


def test_calibration_bins_include_their_upper_bound(tmp_path: Path) -> None:
    known = ("a", "b")
    task = labelled([("x", "a")] * 3, tmp_path, known)
    answers = [predicted(known, "a", share) for share in (0.5, 0.6, 1.0)]
    found = calibration(task.cases(task.examples("dev"), answers))
    assert found is not None
    assert [(one.low, one.high, one.count) for one in found.bins] == [(0.4, 0.5, 1), (0.5, 0.6, 1), (0.9, 1.0, 1)]


def tagged(value: list[str], words: list[str]) -> Prediction:
    begins = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
    found = [
        {"kind": kind, "start": begins[begin], "end": begins[end - 1] + len(words[end - 1]), "score": 0.25}
        for kind, begin, end in sequence_labelling.tags_to_entities(value)
    ]
    return Prediction(tuple(value), 0.75, {"entities": found, "unread": []})


def test_entities_by_hand(tmp_path: Path) -> None:
    words = ["Ada", "Lovelace", "in", "London", "saw", "Bath"]
    gold = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-LOC"]
    answer = ["B-PER", "O", "B-LOC", "B-PER", "O", "O"]
    path = lines(tmp_path / "dev.jsonl", [{"tokens": words, "tags": gold}])
    task = tagging.Config().build(files={"dev": path}, labels=TAGS)
    examples = task.examples("dev")
    found = made_evaluation(task, examples, [tagged(answer, words)])
    assert found.confusion is not None
    assert found.confusion.columns == ("LOC", "PER", "other bounds", "nothing")
    assert dict(zip(found.confusion.rows, found.confusion.counts, strict=True)) == {
        "LOC": (0, 1, 0, 1),  # London is a person, Bath is nothing
        "PER": (0, 0, 1, 0),  # Ada without Lovelace
        "other bounds": (0, 1, 0, 0),
        "nothing": (1, 0, 0, 0),
    }
    told = [(case.gold, case.prediction, case.confidence, case.source.rpartition(", ")[2]) for case in found.errors]
    assert told == [
        ("LOC: Bath", "nothing", 0.75, "word 6"),
        ("PER: Ada Lovelace", "PER: Ada", 0.25, "word 1"),
        ("LOC: London", "PER: London", 0.25, "word 4"),
        ("nothing", "LOC: in", 0.25, "word 3"),
    ]
    assert found.calibration is not None
    assert found.calibration.bins[0].count == 3  # each found entity once
    assert found.calibration.ece == 0.25


@pytest.mark.parametrize("seed", range(4))
def test_entity_scores_match_the_metrics(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    drawn = [[draw.choice(TAGS) for _ in range(draw.randrange(1, 12))] for _ in range(60)]
    golds = [sequence_labelling.convert_tags(sentence, to="IOB2") for sentence in drawn]
    words = [[f"w{place}" for place in range(len(gold))] for gold in golds]
    rows: list[dict[str, object]] = [{"tokens": a, "tags": b} for a, b in zip(words, golds, strict=True)]
    task = tagging.Config().build(files={"dev": lines(tmp_path / "dev.jsonl", rows)}, labels=TAGS)
    answers = [[tag if draw.random() < 0.7 else draw.choice(TAGS) for tag in gold] for gold in golds]
    predictions = [tagged(a, b) for a, b in zip(answers, words, strict=True)]
    cases = task.cases(task.examples("dev"), predictions)
    counted = sequence_labelling.score_entities(golds, answers).by_type
    for one in by_label(task, confusion(task, cases), task.examples("dev"), predictions):
        part = counted[one.label]
        assert (one.support, one.predicted, one.f1) == (part.gold, part.predicted, part.f1)
    assert sum(case.correct for case in cases) == sum(part.correct for part in counted.values())


def test_answers_that_may_be_none(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"question": "who", "context": "Ada Lovelace wrote it", "answer": "Ada Lovelace"},
        {"question": "where", "context": "Ada Lovelace wrote it", "answer": ""},
        {"question": "what", "context": "Ada Lovelace wrote it", "answer": "it"},
        {"question": "when", "context": "Ada Lovelace wrote it", "answer": ""},
    ]
    task = qa.Config(rules="2.0").build(files={"dev": lines(tmp_path / "dev.jsonl", rows)})
    examples = task.examples("dev")
    texts = ["ada lovelace", "Ada", "wrote", ""]
    rest = {"probability": 0.5, "start_logit": 0.0, "end_logit": 0.0}
    predictions = [Prediction(text, 0.5, {"answers": [{"text": text, **rest}], "null_odds": 0.0}) for text in texts]
    found = made_evaluation(task, examples, predictions)
    assert found.confusion is not None
    assert found.confusion.counts == ((1, 1, 0), (0, 1, 1))
    assert found.scores["exact"] == 0.5
    assert found.baseline.scores["f1"] == 0.5  # half of the questions have no answer
    assert {(case.gold, case.prediction) for case in found.errors} == {("no answer", "Ada"), ("it", "wrote")}


def test_numbers_and_choices(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": "a", "score": 1.0},
        {"text": "b", "score": 2.0},
        {"text": "c", "score": 6},
    ]
    task = regression.Config().build(files={"dev": lines(tmp_path / "dev.jsonl", rows)})
    found = made_evaluation(task, task.examples("dev"), [Prediction(1.5), Prediction(2.0), Prediction(3.0)])
    assert [(case.gold, case.prediction, case.confidence) for case in found.errors] == [
        ("6", "3.000", 3.0),
        ("1", "1.500", 0.5),
    ]
    assert found.baseline.description == "always the mean, 3"
    assert found.baseline.scores["mean_squared_error"] == pytest.approx(14 / 3)
    assert (found.confusion, found.calibration, found.by_label) == (None, None, ())

    rows = [{"question": "q", "choices": ["x", "y", "z"], "label": right} for right in (0, 0, 2)]
    chosen = choice.Config().build(files={"dev": lines(tmp_path / "dev.jsonl", rows)})
    assert baseline(chosen, chosen.examples("dev")).scores == {"accuracy": pytest.approx(2 / 3)}
    found = made_evaluation(chosen, chosen.examples("dev"), [Prediction(place, 0.5) for place in (0, 1, 2)])
    assert [(case.gold, case.prediction) for case in found.errors] == [("0: x", "1: y")]
