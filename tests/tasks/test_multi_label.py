"""Multi-label classification: every way to write labels, scores equal to scikit-learn's, thresholds, and one run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from command_line import call
from finetune_fixtures import tiny_model, tuning_of
from sklearn import metrics as sklearn_metrics
from tasks.samples import written
from threads import threads

import bertsmith
from bertsmith.errors import DataError, DataWarning
from bertsmith.evaluation.evaluation import evaluate
from bertsmith.metrics.classification import best_threshold
from bertsmith.model_io.model_folder import open_model
from bertsmith.tasks import classification, multi_label
from bertsmith.tasks.multi_label import MultiLabelTask
from bertsmith.tasks.task import Example, Prediction
from bertsmith.training.finetune import finetune

GOLD = [("a", "long"), (), ("a",), ("long",)]
ROWS = [{"text": f"text {number}", "labels": list(labels)} for number, labels in enumerate(GOLD)]
ZEROS = "id,comment_text,a,long\n" + "".join(
    f"{n},t {n},{int('a' in g)},{int('long' in g)}\n" for n, g in enumerate(GOLD)
)


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def build(path: Path, split: str = "train", known: tuple[str, ...] = (), **settings: Any) -> MultiLabelTask:
    return multi_label.Config(**settings).build(files={split: path}, labels=known)


def parquet(path: Path) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    return path


def test_labels_are_lists_texts_with_a_separator_or_columns_of_0_and_1(tmp_path: Path) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    piped = "text,labels\n" + "".join(f"t {n},{'|'.join(labels)}\n" for n, labels in enumerate(GOLD))
    python = "text,labels\n" + "".join(f't {n},"{list(labels)}"\n' for n, labels in enumerate(GOLD))
    tasks = [
        build(written(tmp_path / "a.jsonl", lines)),
        build(parquet(tmp_path / "a.parquet")),
        build(written(tmp_path / "b.csv", piped), separator="|"),
        build(written(tmp_path / "c.csv", python)),
        build(written(tmp_path / "d.csv", ZEROS)),
        build(written(tmp_path / "e.csv", ZEROS), labels="a,long", text="comment_text"),
    ]
    for task in tasks:
        assert [set(example.gold) for example in task.examples("train")] == list(map(set, GOLD)), task.detected
        assert task.labels == ("a", "long")
    assert tasks[4].detected == {"text": "comment_text", "labels": "a, long"}
    test = build(written(tmp_path / "t.csv", "id,comment_text\n1,x\n"), "test", ("a", "long"))
    assert [example.gold for example in test.examples("test")] == [None]
    known = build(written(tmp_path / "g.csv", ZEROS), "dev", ("long", "a"))
    assert known.examples("dev")[0].gold == ("long", "a")
    assert known.target(known.examples("dev")[2]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("text,labels\nx,A\ny,LONG\nz,A|LONG\n", {}, "several labels in a cell, such as 'A|LONG': set task.separator="),
        ("text,labels\nx,['a' 'b']\n", {}, """:2: 'labels' is ['a' 'b']: write a list as ["first", "second"]"""),
        ("text,a,b\nx,1,0\ny,2,0\n", {"labels": "a,b"}, ":3: 'a' must be 0 or 1, found '2'"),
        ("text,a,b\nx,1,0\n", {"labels": "a,c"}, "no column 'c' among text, a, b"),
        ("text,labels\nx,a\ny,a\n", {}, "needs two labels, found a"),
    ],
)
def test_other_labels_are_refused(text: str, settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", text)
    assert message in refusal(lambda: build(path, **settings).examples("train"))


def test_several_labels_in_one_do_not_become_a_class(tmp_path: Path) -> None:
    lists = classification.Config().build(files={"train": parquet(tmp_path / "lists.parquet")})
    assert "'labels' must be one label, found a list: for several labels use the task multi_label" in refusal(
        lambda: lists.labels
    )

    def read(*labels: str) -> tuple[str, ...]:
        rows = "".join(json.dumps({"text": f"t {n}", "label": label}) + "\n" for n, label in enumerate(labels))
        return classification.Config().build(files={"train": written(tmp_path / "t.jsonl", rows)}).labels

    for separator in "|;,":
        output = refusal(lambda separator=separator: read("A", "LONG", f"A{separator}LONG"))  # type: ignore[misc]
        assert f"labels such as 'A{separator}LONG' look like several labels in one" in output
        assert f'use the task multi_label with task.separator="{separator}"' in output
    assert "use the task multi_label," in refusal(lambda: read("['A']", "['A', 'LONG']"))
    assert read("Korea, Republic of", "France", "Korea, North") == ("France", "Korea, North", "Korea, Republic of")
    assert len(read("Smith, John", "Smith, Jane", "Doe, John", "Doe, Jane")) == 4
    with pytest.warns(DataWarning, match="the labels 'Good' and 'good' differ only in case or white space"):
        read("Good", "good", "bad")


def made_up(count: int, labels: tuple[str, ...], seed: int) -> tuple[MultiLabelTask, list[Example], list[Prediction]]:
    draw = np.random.default_rng(seed)
    gold, predicted = (draw.random((2, count, len(labels))) < 0.3).astype(bool)
    gold[:, -1] = predicted[:, -1] = gold[:, -2] = False  # one label never occurs, one is only predicted
    task = MultiLabelTask("made-up", labels=labels)
    named = [[tuple(np.array(labels)[row]) for row in side] for side in (gold, predicted)]
    examples = [Example(str(n), ("t",), one, "f:1") for n, one in enumerate(named[0])]
    return task, examples, [Prediction(one, 0.5) for one in named[1]]


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    labels = ("a", "b", "c", "only predicted", "never")
    task, examples, predictions = made_up(60, labels, seed)
    sides = [
        [task.target(Example("", (), one)) for one in side]
        for side in ([e.gold for e in examples], [p.value for p in predictions])
    ]
    scores = task.score(examples, predictions)
    for name, theirs, how in (
        ("micro_f1", sklearn_metrics.f1_score, "micro"),
        ("macro_f1", sklearn_metrics.f1_score, "macro"),
        ("precision", sklearn_metrics.precision_score, "micro"),
        ("recall", sklearn_metrics.recall_score, "micro"),
    ):
        assert scores[name] == pytest.approx(theirs(*sides, average=how, zero_division=0)), name
    assert scores["accuracy"] == pytest.approx(sklearn_metrics.accuracy_score(*sides))
    each = sklearn_metrics.precision_recall_fscore_support(*sides, zero_division=0)
    for number, (label, one) in enumerate(task.label_matches(examples, predictions).items()):
        found = (one.precision, one.recall, one.f1, one.gold)
        assert (label, found) == (labels[number], pytest.approx(tuple(side[number] for side in each)))
    for metric in ("micro_f1", "macro_f1", "accuracy"):
        task.main_metric = metric
        interval = task.interval(examples, predictions)
        assert interval.value == pytest.approx(scores[metric])
        assert interval.low < interval.value < interval.high


def test_the_threshold_has_the_best_f1_and_is_the_nearest_to_one_half() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        shares, gold = draw.random(12).round(1), draw.random(12) < 0.4
        found = best_threshold(shares, gold)
        ends = [0.0, *sorted({*shares}), 1.0]
        cuts = [0.5, *((low + high) / 2 for low, high in itertools.pairwise(ends))]
        scores = [sklearn_metrics.f1_score(gold, shares > cut, zero_division=0) for cut in cuts]
        best = [cut for cut, score in zip(cuts, scores, strict=True) if score > max(scores) - 1e-9]
        assert found in best
        assert abs(found - 0.5) == min(abs(cut - 0.5) for cut in best)
    assert best_threshold(np.array([0.2, 0.9]), np.array([False, False])) == 0.5
    assert best_threshold(np.array([0.1, 0.2, 0.4]), np.array([False, True, True])) == pytest.approx(0.15)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("multi-label")
    with threads(2):
        tuning = tuning_of("multi_label", tiny_model(base), base, "head.positive_weights=balanced", count=128)
        results = finetune(tuning, base / "run", device="cpu", quiet=True)
    assert results["score/micro_f1"] > 0.8, results
    (base / "scores.json").write_text(json.dumps(results))
    return base


def test_thresholds_of_dev_are_saved_and_used_by_every_prediction(run: Path) -> None:
    trained, _, _ = open_model(run / "run" / "best")
    head: Any = trained.objectives["multi_label"]
    assert len(head.config.thresholds) == 4
    values = json.loads((run / "run" / "best" / "config.json").read_text())
    assert values["problem_type"] == "multi_label_classification"
    assert values["label_thresholds"] == list(head.config.thresholds)
    result = evaluate(run / "run", "multi_label", {"dev": run / "dev.jsonl"}, device="cpu")
    saved = json.loads((run / "scores.json").read_text())
    best = max(
        event["score/micro_f1"]
        for event in map(json.loads, (run / "run" / "events.jsonl").open())
        if "score/micro_f1" in event
    )
    assert result.scores["micro_f1"] == pytest.approx(best)
    assert best >= saved["score/micro_f1"]
    assert [one.label for one in result.by_label] == ["blue", "gold", "iron", "red"]
    assert result.confusion is None
    assert all(set(case.gold.split(", ")) != set(case.prediction.split(", ")) for case in result.errors)
    predictor = bertsmith.load(run / "run" / "best", device="cpu")
    head = predictor.model.objectives["multi_label"]
    object.__setattr__(head.config, "thresholds", (0.0, 0.0, 1.0, 0.0))
    (one,) = predictor.predict(["the smith has red iron and a thing"])
    assert {each["label"] for each in one if each["predicted"]} == {"blue", "gold", "red"}


def test_commands_on_multi_label_models(run: Path) -> None:
    output = call("evaluate", run / "run", "--dev", run / "dev.jsonl", "--device", "cpu", "-o", run / "page").stdout
    assert "micro f1" in output
    assert "label" in output
    assert "Per-class scores" in (run / "page" / "evaluation.html").read_text()
    words = ("predict", run / "run", "--file", run / "dev.jsonl", "--device", "cpu")
    rows = [json.loads(line) for line in call(*words).stdout.splitlines()]
    assert {type(row["value"]) for row in rows} == {list}
    call(*words, "-o", run / "out.csv")
    assert (run / "out.csv").read_text().splitlines()[0].startswith("id,value,score,probability blue")
