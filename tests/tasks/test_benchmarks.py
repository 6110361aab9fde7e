"""SWAG, CODAH, CommonsenseQA and the Korean sets, in the formats of their authors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tasks.samples import PAIRS, SAMPLES, TEXTS, lines_of_json, tabbed, written

from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks import codah, commonsenseqa, korean, swag
from bertsmith.tasks.task import Prediction, Task


def built(name: str, folder: Path) -> Task:
    settings, files = SAMPLES[name](folder)
    return settings.build(files=files)


def test_swag_moves_the_beginning_of_the_second_sentence(tmp_path: Path) -> None:
    first = built("swag", tmp_path).examples("dev")[0]
    assert first.texts == (TEXTS[0], "He heats iron", "He sits, and waits", "He falls", "He glows")
    other = swag.Config(beginning="first").build(files={"data": tmp_path}).examples("dev")[0]
    assert other.texts == (f"{TEXTS[0]} He", "heats iron", "sits, and waits", "falls", "glows")
    assert [example.gold for example in built("swag", tmp_path).examples("train")] == [0, 1, 2, 3, 0, 1]


def test_swag_file_errors_name_the_line(tmp_path: Path) -> None:
    head = "sent1,sent2,ending0,ending1,ending2,ending3"
    test = written(tmp_path / "test.csv", f"{head}\nA,B,c,d,e,f\n")
    assert swag.Config().build(files={"test": test}).examples("test")[0].gold is None
    with pytest.raises(DataError, match=r"test.csv: no column 'label'"):
        swag.Config().build(files={"dev": test}).examples("dev")
    five = written(tmp_path / "train.csv", f"{head},label\nA,B,c,d,e,f,4\n")
    with pytest.raises(DataError, match=r"train.csv:2: label '4' is not the number of an ending, 0 to 3"):
        swag.Config().build(files={"train": five}).examples("train")


def test_codah_has_five_folds(tmp_path: Path) -> None:
    task = built("codah", tmp_path)
    first = task.examples("test")[0]
    assert (first.texts, first.gold) == ((TEXTS[0], "heats iron", 'sits "down"', "falls", "glows"), 3)
    with pytest.raises(ConfigError, match="fold=5 must be 0 to 4"):
        codah.Config(fold=5)
    with pytest.raises(DataError, match="fold_2"):
        codah.Config(fold=2).build(files={"data": tmp_path})
    path = tabbed(tmp_path / "wrong.tsv", ("o", "p", "a", "b", "c", "d", "4"))
    with pytest.raises(DataError, match=r"wrong.tsv:1: the last cell, '4', is not the number of a choice"):
        codah.Config().build(files={"dev": path}).examples("dev")
    more = tabbed(tmp_path / "more.tsv", ("o", "p", "a", "b", "c", "d", "e", "4"))
    with pytest.raises(DataError, match=r"more.tsv:1: 8 cells, but expected 7"):
        codah.Config().build(files={"dev": more}).examples("dev")


def test_commonsenseqa(tmp_path: Path) -> None:
    task = built("commonsenseqa", tmp_path)
    assert [example.gold for example in task.examples("dev")] == [0, 1, 2, 3, 4, 0]
    assert task.examples("dev")[1].texts == (TEXTS[1], *TEXTS[:5])
    question = {"stem": "s", "choices": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}]}
    path = lines_of_json(tmp_path / "test.jsonl", {"id": "1", "question": question})
    assert commonsenseqa.Config().build(files={"test": path}).examples("test")[0].gold is None
    path = lines_of_json(tmp_path / "a.jsonl", {"id": "1", "question": question, "answerKey": "C"})
    with pytest.raises(DataError, match=r"a.jsonl:1: answerKey 'C' is not one of the choices A, B"):
        commonsenseqa.Config().build(files={"dev": path}).examples("dev")
    path = lines_of_json(tmp_path / "b.jsonl", {"id": "1", "question": "s", "answerKey": "C"})
    with pytest.raises(DataError, match=r"b.jsonl:1: 'question' must be an object"):
        commonsenseqa.Config().build(files={"dev": path}).examples("dev")


def test_nsmc_keeps_empty_documents(tmp_path: Path) -> None:
    examples = built("korean/nsmc", tmp_path).examples("test")
    assert [example.texts for example in examples] == [(text,) for text in (*TEXTS, "")]


def test_kornli_joins_its_two_training_files_and_counts_skipped_rows(tmp_path: Path) -> None:
    task = built("korean/kornli", tmp_path)
    path = tmp_path / "snli_1.0_train.ko.tsv"
    written(path, path.read_text(encoding="utf-8") + "한\t개\t더\t많다\n")
    examples = task.examples("train")
    assert len(examples) == 2 * len(PAIRS)
    assert examples[0].texts == (f'"{PAIRS[0][0]}', PAIRS[0][1])
    assert [examples[0].id, examples[-1].id] == ["multinli/0", f"snli_1/{len(PAIRS) - 1}"]
    assert task.detected == {
        "train: skipped rows": "1 of snli_1.0_train.ko.tsv, whose number of cells differs from the header"
    }


def test_korsts_and_klue_sts_are_scored_as_their_authors_do(tmp_path: Path) -> None:
    sts, klue = built("korean/korsts", tmp_path / "a"), built("korean/klue-sts", tmp_path / "b")
    assert (sts.main_metric, klue.main_metric) == ("spearman", "pearson")
    examples = klue.examples("dev")
    assert [example.gold for example in examples] == [0.1, 1.1, 2.1, 3.1, 4.1, 5.1]
    scores = klue.score(examples, [Prediction(value) for value in (0.0, 1.0, 3.0, 3.0, 4.0, 5.0)])
    assert scores["f1"] == pytest.approx(6 / 7)  # from 3 on two sentences mean the same: three right, one too many


def test_wrong_korean_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'klue-nlj' is not a task of korean: .*; did you mean klue-nli\?"):
        korean.Config(name="klue-nlj")
    item = {"guid": "a", "sentence1": "b", "sentence2": "c", "labels": {"label": 1}}
    path = written(tmp_path / "dev.json", json.dumps([item], indent=1))
    with pytest.raises(DataError, match=r"dev.json:2: 'labels' must be an object with a 'real-label'"):
        korean.Config(name="klue-sts").build(files={"dev": path}).examples("dev")
    path = tabbed(tmp_path / "ratings.txt", ("id", "document", "label"), ("1", "좋다", "2"))
    with pytest.raises(DataError, match=r"ratings.txt:2: label '2' is not one of the known labels \(0, 1\)"):
        korean.Config(name="nsmc").build(files={"train": path}).examples("train")
