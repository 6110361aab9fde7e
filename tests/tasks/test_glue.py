"""GLUE's files: headers, columns, quotes, two dev sets, MRPC's own files; and submission files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.samples import GLUE, PAIRS, SAMPLES, TEXTS, tabbed, written

from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks import glue
from bertsmith.tasks.task import Features, Prediction, Task


def predicted(*values: Any) -> list[Prediction]:
    return [Prediction(value) for value in values]


def built(name: str, folder: Path) -> Task:
    settings, files = SAMPLES[f"glue/{name}"](folder)
    return settings.build(files=files)


@pytest.mark.parametrize(
    ("name", "objective", "labels", "main", "scores"),
    [
        ("cola", "classify", ["0", "1"], "matthews", {"matthews", "accuracy"}),
        ("sst-2", "classify", ["0", "1"], "accuracy", {"accuracy"}),
        ("mrpc", "classify", ["0", "1"], "f1", {"f1", "accuracy"}),
        ("qqp", "classify", ["0", "1"], "f1", {"f1", "accuracy"}),
        ("sts-b", "regress", None, "spearman", {"pearson", "spearman", "mean_squared_error"}),
        ("mnli", "classify", ["contradiction", "entailment", "neutral"], "accuracy", {"accuracy", "accuracy_mm"}),
        ("qnli", "classify", ["entailment", "not_entailment"], "accuracy", {"accuracy"}),
        ("rte", "classify", ["entailment", "not_entailment"], "accuracy", {"accuracy"}),
        ("wnli", "classify", ["0", "1"], "accuracy", {"accuracy"}),
    ],
)
def test_every_task_has_its_labels_and_scores(
    name: str, objective: str, labels: list[str] | None, main: str, scores: set[str], tmp_path: Path
) -> None:
    task = built(name, tmp_path)
    assert (task.objective, task.head_config().get("labels"), task.main_metric) == (objective, labels, main)
    examples = task.examples("dev")
    assert set(task.score(examples, predicted(*(example.gold for example in examples)))) == scores
    texts = [example.texts for example in examples][: len(TEXTS)]
    if name == "mrpc":
        assert texts == [(f'" {first}', second) for first, second in PAIRS]
    else:
        assert texts == ([(text,) for text in TEXTS] if name in {"cola", "sst-2"} else list(PAIRS))


def test_cola_has_no_header_in_train_and_dev_but_one_in_test(tmp_path: Path) -> None:
    task = built("cola", tmp_path)
    assert [example.source.rpartition(":")[2] for example in task.examples("dev")] == list("123456")
    assert [example.gold for example in task.examples("dev")] == list("010101")
    path = tabbed(tmp_path / "test.tsv", ("index", "sentence"), (0, "A car."), (1, "Car a."))
    examples = glue.Config(name="CoLA").build(files={"test": path}).examples("test")
    assert [(example.id, example.texts, example.gold) for example in examples] == [
        ("0", ("A car.",), None),
        ("1", ("Car a.",), None),
    ]


@pytest.mark.parametrize("spelling", ["sst-2", "SST-2", "sst2"])
@pytest.mark.parametrize("folder", ["SST-2", "sst2", ""])
def test_names_and_folders_as_people_spell_them(spelling: str, folder: str, tmp_path: Path) -> None:
    tabbed(tmp_path / folder / "dev.tsv", *GLUE["sst-2"][1])
    task = glue.Config(name=spelling).build(files={"data": tmp_path})
    assert task.name == "glue/sst-2"
    assert len(task.examples("dev")) == len(TEXTS)
    assert not task.has_split("train")


def test_unknown_glue_tasks_files_and_labels_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'colla' is not a task of glue: cola, .*; did you mean cola\?"):
        glue.Config(name="colla")
    with pytest.raises(
        DataError, match=r"has no file of glue/rte: expected train.tsv, dev.tsv, test.tsv \(or in its subfolder RTE"
    ):
        glue.Config(name="rte").build(files={"data": tmp_path})
    path = tabbed(tmp_path / "dev.tsv", ("index", "sentence1", "sentence2", "label"), (0, "a", "b", "entails"))
    with pytest.raises(DataError, match=r"dev.tsv:2: label 'entails' is not one .*did you mean"):
        glue.Config(name="rte").build(files={"dev": path}).examples("dev")
    with pytest.raises(DataError, match=r"the model has the labels pos, neg, but glue/rte has entailment, not"):
        glue.Config(name="rte").build(files={"dev": path}, labels=("pos", "neg"))
    wrong = tabbed(tmp_path / "train.tsv", ("index", "sentence", "label"), (0, "a", "entailment"))
    with pytest.raises(DataError, match=r"train.tsv: no column 'sentence1' among index, sentence, label; did you mean"):
        glue.Config(name="rte").build(files={"train": wrong}).examples("train")


def test_mrpc_from_the_files_of_its_authors(tmp_path: Path) -> None:
    rows = GLUE["mrpc"][1]
    folder = tmp_path / "MRPC"
    tabbed(folder / glue.MRPC_ALL, *rows)
    tabbed(folder / "train.tsv", *rows[:2])
    with pytest.raises(DataError, match="contains train and dev"):
        glue.Config(name="mrpc").build(files={"train": folder / glue.MRPC_ALL}).examples("train")
    assert len(glue.Config(name="mrpc").build(files={"data": tmp_path}).examples("train")) == 1
    tabbed(folder / glue.MRPC_DEV, (4, 14), (1, 11))
    task = glue.Config(name="mrpc").build(files={"data": tmp_path})
    sources = {
        split: [example.source.rpartition(":")[2] for example in task.examples(split)] for split in ("train", "dev")
    }
    assert sources == {"train": ["2", "4", "5", "7"], "dev": ["3", "6"]}
    actual = glue.Config(name="mrpc").build(files={"data": tmp_path, "dev": tabbed(tmp_path / "dev.tsv", *rows)})
    assert len(actual.examples("dev")) == len(PAIRS)


def test_broken_rows_of_qqp_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = list(GLUE["qqp"][1])
    rows.insert(2, ("7", "8", "9", "a question that goes"))
    rows.insert(3, ("on here", "other", "0"))
    task = glue.Config(name="qqp").build(files={"train": tabbed(tmp_path / "train.tsv", *rows)})
    assert len(task.examples("train")) == len(PAIRS)
    assert task.detected == {"train: skipped rows": "2, whose number of cells differs from the header"}


def test_mnli_has_two_dev_sets_and_the_matched_one_is_the_main_metric(tmp_path: Path) -> None:
    task = built("mnli", tmp_path)
    examples = task.examples("dev")
    count = len(PAIRS)
    assert [example.id for example in examples] == [
        *(f"m/{number}" for number in range(count)),
        *(f"mm/{number}" for number in range(count)),
    ]
    golds = [example.gold for example in examples]
    others = ["neutral"] * count
    assert task.score(examples, predicted(*golds[:count], *others)) == {
        "accuracy": 1,
        "accuracy_mm": pytest.approx(1 / 3),
    }
    assert task.score(examples, predicted(*others, *golds[count:])) == {
        "accuracy": pytest.approx(1 / 3),
        "accuracy_mm": 1,
    }
    assert task.interval(examples, predicted(*others, *golds[count:])).value == pytest.approx(1 / 3)
    alone = glue.Config(name="mnli").build(files={"dev": tmp_path / "MNLI" / "dev_mismatched.tsv"})
    result = alone.examples("dev")
    assert alone.score(result, predicted(*golds[count:])) == {"accuracy": 1}
    assert alone.interval(result, predicted(*golds[count:])).value == 1


def test_the_diagnostic_set_with_and_without_labels(tmp_path: Path) -> None:
    bare = tabbed(tmp_path / "diagnostic" / "diagnostic.tsv", ("index", "sentence1", "sentence2"), (0, "a", "b"))
    task = glue.Config(name="ax").build(files={"data": tmp_path})
    assert [(example.texts, example.gold) for example in task.examples("test")] == [(("a", "b"), None)]
    head = ("Lexical Semantics", "Predicate-Argument Structure", "Logic", "Knowledge", "Domain")
    tabbed(
        bare.with_name("diagnostic-full.tsv"), (*head, "Premise", "Hypothesis", "Label"), (*head, "a", "b", "neutral")
    )
    task = glue.Config(name="ax").build(files={"data": tmp_path})
    assert task.main_metric == "matthews"
    assert [(example.texts, example.gold) for example in task.examples("test")] == [(("a", "b"), "neutral")]


def test_glue_submission_files(tmp_path: Path) -> None:
    test = tabbed(tmp_path / "test.tsv", ("index", "sentence1", "sentence2"), (0, "a", "b"), (7, "c", "d"))
    task = glue.Config(name="rte").build(files={"test": test})
    examples = task.examples("test")
    labelled = [Features(rows=(), example_index=number) for number in range(2)]
    logits = [np.array([2, 1], np.float32), np.array([-1, 1], np.float32)]
    predictions = task.decode(examples, labelled, logits)
    assert predictions[0].score == pytest.approx(1 / (1 + np.exp(-1)))
    assert task.submission(examples, predictions) == {
        "RTE.tsv": b"index\tprediction\n0\tentailment\n7\tnot_entailment\n"
    }
    numbers = glue.Config(name="sts-b").build(files={"test": test})
    assert numbers.submission(examples, predicted(-0.2, 5.3)) == {
        "STS-B.tsv": b"index\tprediction\n0\t0.000\n7\t5.000\n"
    }
    both = built("mnli", tmp_path / "both")
    answers = predicted(*(example.gold for example in both.examples("dev")))
    files = both.submission(both.examples("dev"), answers)
    assert set(files) == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    assert files["MNLI-mm.tsv"].splitlines()[1:3] == [b"0\tcontradiction", b"1\tentailment"]


def test_a_dev_row_without_a_label_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path / "dev.tsv", "sentence\tlabel\nfine\t1\nunclear\t\n")
    with pytest.raises(DataError, match=r"dev.tsv:3: no label, but every row of dev needs one"):
        glue.Config(name="sst-2").build(files={"dev": path}).examples("dev")
