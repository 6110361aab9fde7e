"""Tasks over user files: columns are detected, labels are in order, and errors name the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from tasks.samples import LONG, TEXTS, lines_of_json, written

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, DataError, DataWarning
from bertsmith.tasks import choice, classification, pairs, regression
from bertsmith.tasks.task import Example, Prediction, TaskConfig, truncated_examples
from bertsmith.tasks.text_tasks import sort_labels
from bertsmith.tokenizers import training, wordpiece
from bertsmith.types import Encoded


def refusal(act: Callable[[], Any], kind: type[BertsmithError] = DataError) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def examples_of(settings: TaskConfig, **files: Path) -> list[Example]:
    return settings.build(files=files).examples(next(iter(files)))


@pytest.mark.parametrize(
    ("header", "text", "label"),
    [
        ("text,label", "text", "label"),
        ("id,Review,Stars", "Review", "Stars"),
        ("id,document,label", "document", "label"),
        ("sentence,gold_label,annotator", "sentence", "gold_label"),
        ("label,whatever", "whatever", "label"),
        ("id,whatever,class", "whatever", "class"),
        ("text,verdict", "text", "verdict"),
    ],
)
def test_columns_are_detected_and_shown(header: str, text: str, label: str, tmp_path: Path) -> None:
    names = header.split(",")
    rows = [",".join({text: f"text {n}", label: "ab"[n % 2]}.get(name, str(n)) for name in names) for n in range(4)]
    task = classification.Config().build(files={"train": written(tmp_path / "a.csv", "\n".join([header, *rows]))})
    assert [example.texts for example in task.examples("train")] == [(f"text {n}",) for n in range(4)]
    assert task.head_config() == {"kind": "classify", "labels": ["a", "b"], "texts": 1}
    assert dict(task.detected) == {"text": text, "label": label}


def test_undetectable_columns_are_an_error_that_names_the_setting(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "alpha,beta,gamma\nx,y,1\n")
    output = refusal(lambda: examples_of(classification.Config(), train=path))
    assert "no column for the text among alpha, beta, gamma: set task.text=COLUMN" in output
    assert "task.header=false" in output
    output = refusal(lambda: examples_of(classification.Config(text="alpa", label="gamma"), train=path))
    assert "no column 'alpa' among alpha, beta, gamma; did you mean task.text=alpha?" in output
    named = classification.Config(text="beta", label="gamma")
    assert named.build(files={"test": path}, labels=("0", "1")).examples("test")[0].texts == ("y",)
    bare = classification.Config(header=False, text="column2", label="column1")
    first, *_ = examples_of(bare, train=written(tmp_path / "b.csv", "pos,fine\nneg,bad\n"))
    assert (first.texts, first.gold, first.source.rpartition(":")[2]) == (("fine",), "pos", "1")


SENTENCES = ["the smith has iron", "it is gold, they say.", "fine"]


def texts_of(settings: TaskConfig, path: Path) -> list[tuple[str, ...]]:
    return [example.texts for example in settings.build(files={"test": path}, labels=("a", "b")).examples("test")]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.txt", "{}", SENTENCES),  # one text per line
        ("a.txt", "text\n{}", ["text", *SENTENCES]),
        ("a.tsv", "text\n{}", SENTENCES),
        ("a.tsv", "Review\n{}", SENTENCES),
        ("a.txt", "id\ttext\n1\tfine", ["fine"]),
        ("a.txt", "document\tlabel\nfine\ta\nbad\ta", ["fine", "bad"]),
        ("a.tsv", "I like it very much indeed\n{}", ["I like it very much indeed", *SENTENCES]),
        ("a.tsv", "fine.\n{}", ["fine.", *SENTENCES]),
        ("a.tsv", "fine\n{}", ["fine", *SENTENCES]),  # again in a later line
        ("a.csv", '"fine, I think."\nbad', ["fine, I think.", "bad"]),
        ("a.txt", "만족합니다\n별로예요", ["만족합니다", "별로예요"]),
        ("a.txt", "one", ["one"]),
    ],
)
@pytest.mark.filterwarnings("ignore::bertsmith.errors.DataWarning")
def test_no_text_is_taken_for_a_header(name: str, text: str, expected: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / name, text.format("\n".join(SENTENCES)) + "\n")
    assert texts_of(classification.Config(), path) == [(one,) for one in expected]


def test_notes_say_what_was_assumed_about_the_first_line(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match=r"a.txt:1: 'text' is read as a text: set task.header=true if line 1 is a"):
        texts_of(classification.Config(), written(tmp_path / "a.txt", "text\nfine\n"))
    assert texts_of(classification.Config(header=True), tmp_path / "a.txt") == [("fine",)]
    with pytest.warns(DataWarning, match=r"a.csv:1: 'It is fine.' is read as a text"):
        texts_of(classification.Config(), written(tmp_path / "a.csv", "It is fine.\nbad\n"))
    with pytest.warns(DataWarning, match=r"b.txt: 2 blank lines are skipped"):
        texts_of(classification.Config(), written(tmp_path / "b.txt", "fine\n\nbad\n\nso so\n\n"))


def test_a_first_line_that_may_be_a_header_or_not_is_an_error_whose_advice_works(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "superb\nbad\n")
    output = refusal(lambda: texts_of(classification.Config(), path))
    assert "a.csv:1: 'superb' is a text or the name of a column: set task.header=false or task.header=true" in output
    assert texts_of(classification.Config(header=False), path) == [("superb",), ("bad",)]
    assert texts_of(classification.Config(header=True), path) == [("bad",)]
    path = written(tmp_path / "train.tsv", "pos\tvery fine\nneg\tbad\npos\tfine\n")
    for split in ("train", "dev", "test"):
        output = refusal(lambda split=split: examples_of(classification.Config(), **{split: path}))
        assert "train.tsv:1: 'pos' looks like data, not like the name of a column: set task.header=true if" in output
        assert output.endswith(
            "or task.header=false and the columns, which are then column1, column2, …, such as task.text=column2"
        )
    output = refusal(lambda: examples_of(classification.Config(header=False), train=path))
    assert "among column1, column2 (the first row is pos, very fine): set task.text=COLUMN" in output
    alone = written(tmp_path / "one.txt", "fine\nbad\n")
    output = refusal(lambda: examples_of(classification.Config(), train=alone))
    assert "one.txt has only one column (fine), but text and label are needed" in output
    settings = classification.Config(header=False, text="column2", label="column1")
    assert [example.gold for example in examples_of(settings, train=path)] == ["pos", "neg", "pos"]
    assert texts_of(settings, written(tmp_path / "new.tsv", "fine\nbad\n")) == [("fine",), ("bad",)]  # texts alone
    number = written(tmp_path / "n.csv", "1,good\n0,bad\n")
    assert "n.csv:1: '1' looks like data" in refusal(lambda: examples_of(classification.Config(), train=number))


def test_a_header_in_the_middle_of_a_file_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\nfine,pos\ntext,label\nbad,neg\n")
    output = refusal(lambda: examples_of(classification.Config(), train=path))
    assert "the header (text, label) is repeated in a later line: remove it" in output


def test_files_of_texts_have_the_order_of_the_roles(tmp_path: Path) -> None:
    named = classification.Config(text="review", label="stars")
    assert texts_of(named, written(tmp_path / "a.txt", "fine\nbad\n")) == [("fine",), ("bad",)]
    two = written(tmp_path / "b.txt", "Is it iron?\tIt is.\nIs it gold?\tNo.\n")
    with pytest.warns(DataWarning, match="'Is it iron\\?' is read as a text"):
        assert texts_of(pairs.Config(), two)[0] == ("Is it iron?", "It is.")
    with pytest.warns(DataWarning, match="is read as a text"):
        assert texts_of(regression.Config(), two)[0] == ("Is it iron?", "It is.")
    swapped = pairs.Config(header=False, first="column2", second="column1")
    assert texts_of(swapped, two)[0] == ("It is.", "Is it iron?")


def test_files_in_other_encodings(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "text,label\n훌륭해요,긍정\n별로예요,부정\n".encode("cp949"))
    output = refusal(lambda: examples_of(classification.Config(), train=path))
    assert "a.csv:2: byte 0xc8 is not UTF-8: set task.encoding=cp949, task.encoding=latin-1 or what it is" in output
    assert examples_of(classification.Config(encoding="cp949"), train=path)[0].texts == ("훌륭해요",)
    assert "is not an encoding" in refusal(
        lambda: examples_of(classification.Config(encoding="nonsense"), train=path), ConfigError
    )
    wide = written(tmp_path / "b.csv", "text,label\n훌륭해요,긍정\n별로예요,부정\n".encode("utf-16"))
    assert "set task.encoding=utf-16" in refusal(lambda: examples_of(classification.Config(), train=wide))
    assert examples_of(classification.Config(encoding="utf-16"), train=wide)[0].texts == ("훌륭해요",)


def test_dev_has_the_columns_of_train(tmp_path: Path) -> None:
    files = {
        "train": written(tmp_path / "train.csv", "review,stars\ngood,1\nbad,0\n"),
        "dev": written(tmp_path / "dev.csv", "text,label\ngood,1\n"),
    }
    assert "dev.csv: no column 'review'" in refusal(lambda: classification.Config().build(files=files).examples("dev"))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "-1", "2"], ("-1", "2", "9", "10")),
        (["b", "10", "9"], ("10", "9", "b")),
        (["positive", "negative"], ("negative", "positive")),
        (["긍정", "부정"], ("긍정", "부정")),
    ],
)
def test_labels_in_order(labels: list[str], expected: tuple[str, ...]) -> None:
    assert sort_labels(labels) == expected


def test_labels_of_data_frames_become_plain_names(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"], "label": [1.0, 0.0, 10.0]}), path)
    assert classification.Config().build(files={"train": path}).head_config()["labels"] == ["0", "1", "10"]
    flags = lines_of_json(tmp_path / "a.jsonl", {"text": "a", "label": True}, {"text": "b", "label": False})
    assert classification.Config().build(files={"train": flags}).head_config()["labels"] == ["false", "true"]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": [1.0, None]}), path)
    assert "a.parquet:2: no label" in refusal(lambda: examples_of(classification.Config(), train=path))


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ("a,pos\nb,neg\n", "c,neutral\n", "dev.csv:2: label 'neutral' is not one of the known labels (neg, pos)"),
        (
            "a,pos\nb,neg\n",
            "c,pos\nd,Pos\n",
            "dev.csv:3: label 'Pos' is not one of the known labels (neg, pos); did",
        ),
        ("a,pos\nb,neg\n", "c,\n", "dev.csv:2: no label, but every row of dev needs one"),
        ("a,pos\nb,pos\n", "c,pos\n", "train.csv: every row has the label 'pos'"),
        ("".join(f"a,{n / 7}\n" for n in range(30)), "c,1\n", "30 different labels in 30 rows"),
        ("a\n", "c,1\n", "train.csv:2: 1 cells, but the header has 2"),
    ],
)
def test_invalid_labels_are_errors_with_their_line(train: str, dev: str, message: str, tmp_path: Path) -> None:
    files = {
        "train": written(tmp_path / "train.csv", "text,label\n" + train),
        "dev": written(tmp_path / "dev.csv", "text,label\n" + dev),
    }
    assert message in refusal(lambda: classification.Config().build(files=files).examples("dev"))


def test_a_trained_models_labels_need_no_train_file(tmp_path: Path) -> None:
    path = written(tmp_path / "dev.csv", "text,label\na,pos\n")
    task = classification.Config().build(files={"dev": path}, labels=("pos", "neg"))
    assert task.target(task.examples("dev")[0]) == 0
    output = refusal(lambda: classification.Config().build(files={"dev": path}).head_config())
    assert "labels come from a train file or a trained model" in output
    assert "pass --train" in output
    assert classification.Config().build(files={}, labels=("a", "b")).head_config()["labels"] == ["a", "b"]


def test_texts_without_labels_get_predictions_but_no_scores(tmp_path: Path) -> None:
    path = written(tmp_path / "test.csv", "text\nhello\n,\n".replace(",", '""'))
    task = classification.Config().build(files={"test": path}, labels=("a", "b"))
    examples = task.examples("test")
    assert [(example.texts, example.gold) for example in examples] == [(("hello",), None), (("",), None)]
    output = refusal(lambda: task.score(examples, []))
    assert "test.csv:2: no label, so the split cannot be scored" in output
    only = written(tmp_path / "only.jsonl", json.dumps({"utterances": "hi"}) + "\n")
    assert classification.Config().build(files={"test": only}).examples("test")[0].texts == ("hi",)


def test_f1_needs_its_label(tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", "text,label\na,x\nb,y\nc,z\n")
    unnamed = classification.Config().build(files={"train": path})
    unnamed.use_metrics({}, "f1")
    output = refusal(unnamed.head_config, ConfigError)
    assert "main_metric=f1 needs one of the 3 labels: set task.positive=" in output
    output = refusal(
        lambda: classification.Config(positive="Z").build(files={"train": path}).head_config(), ConfigError
    )
    assert "positive=Z is not one of the labels (x, y, z)" in output
    task = classification.Config(positive="z").build(files={"train": path})
    task.use_metrics({}, "f1")
    examples = task.examples("train")
    answers = [np.eye(3, dtype=np.float32)[number] for number in (2, 1, 2)]
    labelled = [type("Asked", (), {"example_index": number}) for number in range(3)]
    predictions = task.decode(examples, labelled, answers)  # type: ignore[arg-type]
    assert task.score(examples, predictions)["f1"] == pytest.approx(2 / 3)
    assert task.interval(examples, predictions).value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("header", "first", "second"),
    [
        ("sentence1,sentence2,label", "sentence1", "sentence2"),
        ("id,Premise,Hypothesis,label", "Premise", "Hypothesis"),
        ("label,question1,question2", "question1", "question2"),
        ("question,sentence,label", "question", "sentence"),
    ],
)
def test_pairs_of_columns_are_detected_together(header: str, first: str, second: str, tmp_path: Path) -> None:
    cells = {first: "one", second: "two", "label": "yes"}
    row = ",".join(cells.get(name, "0") for name in header.split(","))
    task = pairs.Config().build(files={"test": written(tmp_path / "a.csv", f"{header}\n{row}\n")}, labels=("no", "yes"))
    assert task.examples("test")[0].texts == ("one", "two")
    assert dict(task.detected) == {"first": first, "second": second, "label": "label"}


def test_a_pair_with_one_given_column_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "a,b,c,label\n1,2,3,x\n")
    output = refusal(lambda: examples_of(pairs.Config(first="a"), train=path))
    assert "no column for the second" in output
    whole = pairs.Config(first="c", second="a").build(files={"test": path}, labels=("x", "y"))
    assert whole.examples("test")[0].texts == ("3", "1")


def test_regression_takes_one_text_or_two(tmp_path: Path) -> None:
    one = written(tmp_path / "one.csv", "review,stars\nfine,4.5\nbad,-1e0\n")
    assert [(e.texts, e.gold) for e in examples_of(regression.Config(), train=one)] == [
        (("fine",), 4.5),
        (("bad",), -1.0),
    ]
    two = written(tmp_path / "two.tsv", "score\tsentence1\tsentence2\n2.5\ta\tb\n")
    assert examples_of(regression.Config(), train=two)[0].texts == ("a", "b")
    assert examples_of(regression.Config(text="sentence2"), train=two)[0].texts == ("b",)
    wrong = written(tmp_path / "wrong.csv", "text,score\na,1\nb,much\n")
    assert "wrong.csv:3: 'score' must be a number, found 'much'" in refusal(
        lambda: examples_of(regression.Config(), train=wrong)
    )
    infinite = written(tmp_path / "infinite.csv", "text,score\na,inf\n")
    assert "'score' must be a number, found 'inf'" in refusal(lambda: examples_of(regression.Config(), train=infinite))
    with pytest.raises(ConfigError, match="set one or the other"):
        regression.Config(text="a", first="b")


def test_files_of_a_folder_are_found_by_name(tmp_path: Path) -> None:
    for name in ("train.csv", "valid.csv", "test.tsv"):
        written(tmp_path / name, "text,label\na,x\nb,y\n".replace(",", "\t" if name.endswith("tsv") else ","))
    task = classification.Config().build(files={"data": tmp_path})
    assert [len(task.examples(split)) for split in ("train", "dev", "test")] == [2, 2, 2]
    (tmp_path / "empty").mkdir()
    output = refusal(lambda: classification.Config().build(files={"data": tmp_path / "empty"}))
    assert "has no file of classification: expected train.csv" in output
    assert "is not a folder" in refusal(lambda: classification.Config().build(files={"data": tmp_path / "train.csv"}))
    assert "no split 'tain'" in refusal(lambda: classification.Config().build(files={"tain": tmp_path / "train.csv"}))


def questions(folder: Path, *rights: Any, choices: Any = ("red", "green", "blue")) -> Path:
    items = [{"question": f"q{n}", "choices": list(choices), "answer": right} for n, right in enumerate(rights)]
    return lines_of_json(folder / "a.jsonl", *items)


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        ([0, 2, 1], [0, 2, 1]),
        ([1, 3, 2], [0, 2, 1]),
        (["1", "2"], [1, 2]),
        (["A", "c"], [0, 2]),
        (["blue", "red "], [2, 0]),
    ],
)
def test_the_right_choice_by_number_letter_or_text(rights: list[Any], expected: list[int], tmp_path: Path) -> None:
    assert [e.gold for e in examples_of(choice.Config(), train=questions(tmp_path, *rights))] == expected


def test_label_format_of_train_applies_to_all_files_and_can_be_set(tmp_path: Path) -> None:
    train, dev = questions(tmp_path / "x", 1, 3), questions(tmp_path / "y", 1, 2)
    task = choice.Config().build(files={"train": train, "dev": dev})
    assert [example.gold for example in (*task.examples("train"), *task.examples("dev"))] == [0, 2, 0, 1]
    assert task.detected == {
        **{"question": "question", "label": "answer", "choices": "choices"},
        **{"label_format": "number", "first_index": "1"},
    }
    assert [e.gold for e in examples_of(choice.Config(first_index=1), train=dev)] == [0, 1]
    numbers = questions(tmp_path / "z", 2, 1, choices=("2", "1"))
    assert [e.gold for e in examples_of(choice.Config(), train=numbers)] == [0, 1]
    assert [e.gold for e in examples_of(choice.Config(label_format="number", first_index=1), train=numbers)] == [1, 0]


@pytest.mark.parametrize(
    ("rights", "choices", "message"),
    [
        (
            [0, 3],
            ("a", "b", "c"),
            "has both 0 and the number of choices: set task.first_index=0 or task.first_index=1",
        ),
        ([0, 7], ("a", "b", "c"), "a.jsonl:2: '7' is not a number, counted from 0, of one of the 3 choices"),
        (["A", "E"], ("x", "y", "z"), "a.jsonl:2: 'E' is not a letter of one of the 3 choices"),
        (["red", "pink"], ("red", "green"), "a.jsonl:2: the label 'pink' is not one of the choices (red, green)"),
        (["red", "red"], ("red", "red"), "a.jsonl:1: the label 'red' occurs twice among the choices"),
        ([0], ("a",), "a.jsonl:1: 1 choices: a question needs 2 to 100"),
        ([0], [str(n) + "!" for n in range(101)], "101 choices"),
        ([0], ["a", None], "a.jsonl:1: 'choices' must be a text, found no value"),
    ],
)
def test_invalid_choices_are_errors_with_their_line(
    rights: list[Any], choices: Any, message: str, tmp_path: Path
) -> None:
    path = questions(tmp_path, *rights, choices=choices)
    assert message in refusal(lambda: examples_of(choice.Config(), train=path))


def test_choices_in_columns(tmp_path: Path) -> None:
    text = "question,A,B,C,D,answer\nq,one,two,three,four,D\nr,yes,no,,,A\n"
    first, second = examples_of(choice.Config(), train=written(tmp_path / "a.csv", text))
    assert (first.texts, first.gold) == (("q", "one", "two", "three", "four"), 3)
    assert (second.texts, second.gold) == (("r", "yes", "no"), 0)
    gap = written(tmp_path / "b.csv", "question,A,B,C,answer\nq,one,,three,A\n")
    assert "b.csv:2: 'B' is empty, but a later choice is not" in refusal(
        lambda: examples_of(choice.Config(), train=gap)
    )
    other = written(tmp_path / "c.csv", "ask,this,that,right\nq,one,two,two\n")
    assert "no columns for the choices" in refusal(lambda: examples_of(choice.Config(), train=other))
    wrong = choice.Config(question="ask", choices=("this", "thta"))
    output = refusal(lambda: examples_of(wrong, train=other))
    assert "no column 'thta' among ask, this, that, right; did you mean that?" in output
    named = choice.Config(question="ask", choices=("this", "that"))
    assert examples_of(named, train=other)[0].gold == 1
    listed = lines_of_json(
        tmp_path / "d.jsonl", {"question": "q", "choices": {"label": ["A", "B"], "text": ["x", "y"]}}
    )
    assert examples_of(choice.Config(), test=listed)[0].texts == ("q", "x", "y")


def test_settings_are_parsed_from_the_command_line() -> None:
    typed = config.override(classification.Config(), ["positive=1", "header=false", "text=column2"])
    assert typed == classification.Config(positive="1", header=False, text="column2")
    counted = config.override(choice.Config(), ["first_index=1", 'choices=["A", "B"]'])
    assert counted == choice.Config(first_index=1, choices=("A", "B"))
    with pytest.raises(ConfigError, match=r"first_index=2 must be one of auto, 0, 1"):
        config.override(choice.Config(), ["first_index=2"])


def test_each_text_is_encoded_once_and_truncated_examples_are_counted(tmp_path: Path) -> None:
    settings = wordpiece.Config(min_count=1)
    tokenizer = settings.train(training.count_words([LONG, *TEXTS], settings.word_splitter()), vocab_size=300)
    seen: list[str] = []

    class Watched(type(tokenizer)):  # type: ignore[misc]
        def encode_batch(self, texts: Sequence[str]) -> list[Encoded]:
            seen.extend(texts)
            result: list[Encoded] = super().encode_batch(texts)
            return result

    tokenizer.__class__ = Watched
    path = lines_of_json(
        tmp_path / "a.jsonl",
        {"question": "iron", "choices": ["the smith", LONG], "answer": 0},
        {"question": "iron", "choices": ["iron", "the smith"], "answer": 1},
    )
    task = choice.Config(label_format="number").build(files={"train": path})
    labelled = task.rows(task.examples("train"), tokenizer, max_length=16)
    assert sorted(seen) == sorted({"iron", "the smith", LONG})
    assert [len(one.rows) for one in labelled] == [2, 2]
    assert len(truncated_examples(labelled)) == 1
    assert labelled[0].rows[1].truncated[1] > 0
    assert (
        task.decode(task.examples("train"), labelled, [np.array([1, 2]), np.array([1, 2])])[0].detail["choice"] == LONG
    )


def test_of_two_labels_the_second_one_has_the_f1(tmp_path: Path) -> None:
    path = written(tmp_path / "train.csv", "text,label\na,no\nb,no\nc,no\nd,yes\n")
    for settings, expected in ((classification.Config(), 2 / 5), (classification.Config(positive="no"), 0.0)):
        task = settings.build(files={"train": path})
        examples = task.examples("train")
        assert task.score(examples, [Prediction("yes")] * 4)["f1"] == pytest.approx(expected)
