"""SQuAD's files: questions and answers, errors for invalid files, scores, submission files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks import squad
from bertsmith.tasks.question_answering import QuestionAnsweringTask, with_no_answer_threshold
from bertsmith.tasks.task import Features
from bertsmith.tokenizers import training, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer

PASSAGE = "The smith heats the iron. The iron glows 👩\u200d🔧 in the cafe\u0301 of Seoul, 서울의 대장간."


@cache
def tokenizer() -> Tokenizer:
    settings = wordpiece.Config(min_count=1)
    return settings.train(training.count_words([PASSAGE] * 2, settings.word_splitter()), vocab_size=200)


def question(number: str, *texts: str, **more: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": PASSAGE.index(text)} for text in texts]
    return {"id": number, "question": "What is it?", "answers": answers, **more}


def written(folder: Path, *questions: Any, passage: str = PASSAGE, name: str = "dev.json") -> Path:
    path = folder / name
    data = [{"title": "Iron", "paragraphs": [{"context": passage, "qas": list(questions)}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return path


def task_of(path: Path, name: Any = "2.0", split: str = "dev", **settings: Any) -> QuestionAnsweringTask:
    return squad.Config(name=name, **settings).build(files={split: path})


def peaked_logits(one: Features, first: int, last: int, height: float = 9) -> np.ndarray:
    logits = np.zeros((len(one.rows[0]), 2), np.float32)
    logits[[first, last], [0, 1]] = height
    return logits


def test_questions_answers_and_spans(tmp_path: Path) -> None:
    path = written(tmp_path, question("a", "the iron", "iron"), question("b", is_impossible=True), question("c"))
    first, second, third = task_of(path).examples("dev")
    assert first.texts == ("What is it?", PASSAGE)
    assert first.gold == ("the iron", "iron")
    assert first.spans == ((16, 24),)
    assert (second.gold, second.spans, third.gold) == ((), (), ())
    assert str(path) in first.source
    assert "paragraph 0" in first.source
    assert "question a" in first.source


def test_plausible_answers_of_impossible_questions_are_ignored(tmp_path: Path) -> None:
    path = written(
        tmp_path, question("a", "iron", is_impossible=True), question("b", plausible_answers=[{"text": "iron"}])
    )
    assert [example.gold for example in task_of(path).examples("dev")] == [(), ()]


def test_a_test_file_may_lack_answers_but_cannot_be_scored(tmp_path: Path) -> None:
    path = written(tmp_path, {"id": "a", "question": "What?"})
    task = task_of(path, split="test")
    examples = task.examples("test")
    rows = task.rows(examples, tokenizer(), max_length=64)
    assert [one.target for one in rows] == [None]
    predictions = task.decode(examples, rows, [peaked_logits(rows[0], 5, 6)])
    assert predictions[0].value in PASSAGE
    with pytest.raises(DataError, match=r"question a.*no gold answer"):
        task.score(examples, predictions)
    with pytest.raises(DataError, match="'answers' is missing"):
        task_of(path).examples("dev")


def test_files_are_found_in_a_folder_under_their_official_names(tmp_path: Path) -> None:
    written(tmp_path, question("a", "iron"), name="train-v2.0.json")
    written(tmp_path, question("b", "iron"), name="dev-v2.0.json")
    task = squad.Config(name="2.0").build(files={"data": tmp_path})
    assert [example.id for example in task.examples("train")] == ["a"]
    assert [example.id for example in task.examples("dev")] == ["b"]
    with pytest.raises(DataError, match=r"train-v1\.1\.json"):
        squad.Config(name="1.1").build(files={"data": tmp_path})


def broken(change: str) -> Any:
    changed = question("a", "iron")
    match change:
        case "offset":
            changed["answers"][0]["answer_start"] = 5
        case "text":
            changed["answers"][0]["text"] = "gold"
        case "id":
            del changed["id"]
        case "question":
            changed["qestion"] = changed.pop("question")
        case "type":
            changed["answers"][0]["answer_start"] = "5"
        case "object":
            return "What?"
    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("offset", r"paragraph 0, question a: the answer 'iron' should begin at character 5, .* it begins at 20"),
        ("text", r"question a: the answer 'gold' .* is not in the passage"),
        ("id", r"paragraph 0: 'id' is missing among question, answers"),
        ("question", r"'question' is missing among .*did you mean qestion\?"),
        ("type", r"invalid 'answer_start': '5' \(str\)"),
        ("object", r"expected an object with 'id', found 'What\?'"),
    ],
)
def test_an_invalid_question_is_a_one_line_error(change: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, broken(change))
    with pytest.raises(DataError, match=message) as caught:
        task_of(path).examples("dev")
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b'{"data": [\n{]}', r"dev\.json:2: not JSON"),
        (b'{"data": "\xff"}', r"dev\.json:1: byte 0xff is not UTF-8"),
        (b"[]", "not a SQuAD file.*found list"),
        (b'{"rows": []}', "not a SQuAD file.*an object with rows"),
        (b'{"data": []}', "no question"),
        (b'{"data": [{"title": "x"}]}', r"article 0 \(x\): 'paragraphs' is missing"),
        (b'{"data": [{"paragraphs": [{"qas": []}]}]}', "article 0, paragraph 0: 'context' is missing"),
    ],
)
def test_a_file_in_another_format_is_a_one_line_error(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        task_of(path).examples("dev")
    assert "\n" not in str(caught.value)


def test_missing_files_duplicate_ids_and_unanswerable_questions_in_1_1_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        task_of(tmp_path / "nothing.json").examples("dev")
    with pytest.raises(DataError, match="question a: the id is not unique"):
        task_of(written(tmp_path, question("a", "iron"), question("a", "iron"))).examples("dev")
    with pytest.raises(DataError, match=r"question a has no answer: .*squad/2\.0"):
        task_of(written(tmp_path, question("a")), "1.1").examples("dev")
    with pytest.raises(ConfigError, match="stride"):
        squad.Config(stride=0)


def test_misplaced_answers_can_be_skipped_in_training_and_still_be_scored(tmp_path: Path) -> None:
    path = written(tmp_path, broken("offset"), question("b", "smith"))
    task = task_of(path, "1.1", misplaced="skip")
    examples = task.examples("dev")
    assert [example.spans for example in examples] == [(), ((4, 9),)]
    assert {one.example_index for one in task.rows(examples, tokenizer(), max_length=64, training=True)} == {1}
    rows = task.rows(examples, tokenizer(), max_length=64)
    predictions = task.decode(examples, rows, [peaked_logits(one, *(rows[-1].target)) for one in rows])
    assert [prediction.value for prediction in predictions] == ["smith", "smith"]
    assert task.score(examples, predictions) == {"exact_match": 0.5, "f1": 0.5}


def test_no_answer_is_predicted_above_the_threshold_and_not_at_it(tmp_path: Path) -> None:
    path = written(tmp_path, question("a", "smith"), question("b"))
    task = task_of(path)
    examples = task.examples("dev")
    rows = task.rows(examples, tokenizer(), max_length=64)
    logits = [peaked_logits(rows[0], *rows[0].target, 3), peaked_logits(rows[1], *rows[0].target, 3)]
    logits[0][0], logits[1][0] = 3.0, 3.5
    predictions = task.decode(examples, rows, logits)
    assert [prediction.detail["null_odds"] for prediction in predictions] == [0.0, 1.0]
    assert [prediction.value for prediction in predictions] == ["smith", ""]
    assert [prediction.detail["start"] for prediction in predictions] == [4, None]
    assert task.score(examples, predictions)["f1"] == 1
    assert [one.value for one in with_no_answer_threshold(predictions, 1.0)] == ["smith", "smith"]
    assert [one.value for one in with_no_answer_threshold(predictions, -0.5)] == ["", ""]
    assert with_no_answer_threshold(with_no_answer_threshold(predictions, 9.0), 0.0) == predictions
    assert task.threshold(examples, predictions) == 0.0
    daring = task_of(path, no_answer=2.0).decode(examples, rows, logits)
    assert [prediction.value for prediction in daring] == ["smith", "smith"]
    scores = task.score(examples, daring)
    assert (scores["exact"], scores["best_exact"], scores["NoAns_f1"]) == (0.5, 1.0, 0.0)


def test_the_best_threshold_is_found_on_dev(tmp_path: Path) -> None:
    path = written(tmp_path, question("a", "smith"), question("b", "smith"), question("c"))
    task = task_of(path)
    examples = task.examples("dev")
    rows = task.rows(examples, tokenizer(), max_length=64)
    logits = [peaked_logits(one, *rows[0].target, 3) for one in rows]
    for values, null in zip(logits, (4.0, 4.5, 5.0), strict=True):
        values[0] = null
    shy = task.decode(examples, rows, logits)
    assert [prediction.value for prediction in shy] == ["", "", ""]
    assert task.threshold(examples, shy) == 3.0
    output = with_no_answer_threshold(shy, task.threshold(examples, shy))
    assert [prediction.value for prediction in output] == ["smith", "smith", ""]
    assert task.score(examples, output)["f1"] == task.score(examples, shy)["best_f1"] == 1


@pytest.mark.parametrize("name", ["1.1", "2.0", "korquad"])
def test_squad_submission_files(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, question("a", "서울의"), question("b", "cafe\u0301"))
    task = task_of(path, name)
    examples = task.examples("dev")
    rows = task.rows(examples, tokenizer(), max_length=64)
    predictions = task.decode(examples, rows, [peaked_logits(one, *one.target) for one in rows])
    files = {file: json.loads(content) for file, content in task.submission(examples, predictions).items()}
    assert files["predictions.json"] == {"a": "서울의", "b": "cafe\u0301"}
    assert "서울의".encode() in task.submission(examples, predictions)["predictions.json"]
    assert [list(answers[0]) for answers in files["nbest_predictions.json"].values()] == [
        ["text", "probability", "start_logit", "end_logit"]
    ] * 2
    assert sum(answer["probability"] for answer in files["nbest_predictions.json"]["a"]) == pytest.approx(1)
    assert ("null_odds.json" in files) == (name == "2.0")
    detail = predictions[1].detail
    assert PASSAGE[detail["start"] : detail["end"]] == "cafe\u0301"
    assert predictions[1].score == detail["answers"][0]["probability"] > 0.9
    assert task.score(examples, predictions)["f1"] == 1
