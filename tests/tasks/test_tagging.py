"""Tags in user files: column files and tables, schemes, and errors for invalid files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import f1_score
from tasks.samples import lines_of_json, tabbed, written

from bertsmith import config
from bertsmith.errors import DataError, DataWarning
from bertsmith.metrics.sequence_labelling import SCHEMES, convert_tags
from bertsmith.tasks import tagging
from bertsmith.tasks.task import Prediction
from bertsmith.tasks.token_classification import TokenClassificationTask

GOLD = ("B-PER", "I-PER", "B-PER", "O", "B-LOC", "O", "I-LOC")
WORDS = ("Ada", "Lovelace", "Grace", "in", "Seoul", ",", "Busan")


def task(path: Path, **settings: Any) -> TokenClassificationTask:
    return tagging.Config(**settings).build(files={"train": path})


def error_message(path: Path, split: str = "train", **settings: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
        tagging.Config(**settings).build(files={split: path}, labels=("O", "B-PER", "I-PER")).examples(split)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("given", ["detect", "own"])
def test_every_scheme_is_read_as_iob2(scheme: Any, given: str, tmp_path: Path) -> None:
    tags = convert_tags(GOLD, to=scheme)
    path = tabbed(tmp_path / "train.bio", *zip(WORDS, tags, strict=True))
    result = task(path, scheme=scheme if given == "own" else "detect")
    (example,) = result.examples("train")
    assert example.gold == tuple(convert_tags(GOLD, to="IOB2"))
    assert result.detected["train: scheme"] == scheme
    assert result.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def test_mixed_schemes_are_errors_unless_lenient(tmp_path: Path) -> None:
    path = written(tmp_path / "train.conll", "Ada B-PER\n\nmet O\nSeoul I-PER\n")
    text = error_message(path)
    assert f"{path}:4: I-PER does not continue an entity" in text
    assert f"{path}:1: B-PER does not follow an entity" in text
    lenient = task(path, scheme="lenient")
    assert [example.gold for example in lenient.examples("train")] == [("B-PER",), ("O", "B-PER")]
    assert lenient.detected["train: scheme"] == "IOB2, except 1 tags"
    assert f"{path}:4: I-PER does not continue an entity, so the file is not IOB2" in error_message(path, scheme="IOB2")


def test_columns_are_counted_from_one(tmp_path: Path) -> None:
    path = written(tmp_path / "train.txt", "\ufeff1 Ada B-PER NN\r\n2 met O VB\r\n\r\n# note\r\n1 Seoul B-LOC NN\r\n")
    result = task(path, words="2", tags="3", comment="#").examples("train")
    assert [example.texts[0] for example in result] == ["Ada met", "Seoul"]
    assert [example.gold for example in result] == [("B-PER", "O"), ("B-LOC",)]
    assert [example.source for example in result] == [f"{path}:1", f"{path}:5"]


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        ("", {}, "has no sentences"),
        ("\n\n", {}, "has no sentences"),
        ("Ada B-PER\nmet\n", {}, ":2: 1 columns, but the first line has 2"),
        ("Ada\nmet\n", {}, ":1: only one column"),
        ("Ada B-PER\nmet X-PER\n", {}, ":2: 'X-PER' is not a tag"),
        ("Ada NN PER\n", {}, ":1: 'PER' is not a tag: expected O, or B,"),
        ("Ada B-PER\n\nSeoul B-LOC\n", {}, ":3: 'B-LOC' (in IOB2) is not one of the known labels"),
        ("Ada B-PRE\n", {}, "did you mean B-PER?"),
        ("Ada B-PER\n", {"tags": "3"}, ":1: no column 3 among 2"),
        ("Ada B-PER\n", {"tags": "ner"}, "tags=ner: columns of"),
        ("Ada B-PER\n", {"words": "0"}, "words=0: columns of"),
        (b"Ada B-PER\n\xff O\n", {}, ":2: byte 0xff is not UTF-8"),
    ],
)
def test_invalid_column_files_are_one_line_errors(
    content: str | bytes, settings: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "dev.conll", content)
    text = error_message(path, "dev", **settings)
    assert expected in text
    assert str(path) in text


def test_a_train_file_without_entities_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "train.conll", "Ada O\n")
    with pytest.raises(ValueError, match="no entity can be learned"):
        task(path).examples("train")
    with pytest.raises(ValueError, match=r"nothing\.conll does not exist"):
        task(tmp_path / "nothing.conll").examples("train")


def test_a_type_missing_in_train_is_an_error_in_dev(tmp_path: Path) -> None:
    files = {
        "train": written(tmp_path / "train.conll", "Ada B-PER\n"),
        "dev": written(tmp_path / "dev.conll", "in O\nSeoul B-LOC\n"),
    }
    with pytest.raises(ValueError, match=r"dev\.conll:2: 'B-LOC' .* is not one of the known labels"):
        tagging.Config().build(files=files).examples("dev")


def test_a_test_file_may_lack_tags(tmp_path: Path) -> None:
    written(tmp_path / "train.conll", "Ada B-PER\n")
    written(tmp_path / "test.conll", "Ada\nmet\n\nGrace\n")
    result = tagging.Config().build(files={"data": tmp_path})
    assert [(example.texts[0], example.gold) for example in result.examples("test")] == [
        ("Ada met", None),
        ("Grace", None),
    ]
    assert not result.has_split("dev")


POS = "-DOCSTART- -X- O O\n\nAda NNP I-NP I-PER\nmet VBD I-VP O\nGrace NNP I-NP I-PER\n. . O O\n\nShe PRP I-NP O\n"


def test_parts_of_speech_are_plain_labels(tmp_path: Path) -> None:
    path = written(tmp_path / "train.txt", POS)
    settings = config.override(tagging.Config(), ["tags=2"])
    result = settings.build(files={"train": path, "dev": path})
    examples = result.examples("dev")
    assert result.labels == (".", "NNP", "PRP", "VBD")
    assert (result.main_metric, result.detected["dev: scheme"]) == ("accuracy", "plain")
    assert [example.gold for example in examples] == [("NNP", "VBD", "NNP", "."), ("PRP",)]
    predictions = [Prediction(("NNP", "NNP", "NNP", "."), 0.8, {"scores": [0.9, 0.6, 0.9, 0.8]}), Prediction(("PRP",))]
    scores = result.score(examples, predictions)
    flat = [["NNP", "VBD", "NNP", ".", "PRP"], ["NNP", "NNP", "NNP", ".", "PRP"]]
    assert scores["accuracy"] == 0.8
    assert scores["macro_f1"] == pytest.approx(f1_score(*flat, average="macro", zero_division=0))
    assert result.interval(examples, predictions).value == pytest.approx(0.8)
    (wrong,) = [case for case in result.cases(examples, predictions) if not case.correct]
    assert (wrong.gold, wrong.prediction, wrong.cell) == ("VBD: met", "NNP: met", ("VBD", "NNP"))
    assert (wrong.source, wrong.confidence) == (f"{path}:4", 0.6)
    assert result.baseline(examples)[0] == "always NNP"
    (name,) = result.submission(examples, predictions)
    assert b"met VBD I-VP O NNP\n" in result.submission(examples, predictions)[name]
    entities = tagging.Config().build(files={"train": path})
    assert (entities.labels, entities.main_metric) == (("O", "B-PER", "I-PER"), "f1")
    trained = settings.build(files={"dev": path}, labels=("NNP", ".", "VBD", "PRP"))
    assert (trained.examples("dev")[0].gold, trained.main_metric) == (("NNP", "VBD", "NNP", "."), "accuracy")
    dev = written(tmp_path / "dev.txt", POS * 4 + "\nOh UH O O\n")
    with pytest.warns(
        DataWarning,
        match="dev.txt: the model cannot predict UH, which train does not have, so every such word is an error",
    ):
        unseen = settings.build(files={"train": path, "dev": dev}).examples("dev")
    assert unseen[-1].gold == ("UH",)
    assert "'NNP' is not one of the known labels" in refused_labels(path, settings, ("NN", "PRP"))


def refused_labels(path: Path, settings: Any, labels: tuple[str, ...]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
        settings.build(files={"dev": path}, labels=labels).examples("dev")
    return str(caught.value)


def test_types_without_letters_are_noted_and_tags_may_be_read_as_plain(tmp_path: Path) -> None:
    bare = task(written(tmp_path / "train.conll", "Ada PER\nmet O\n"))
    with pytest.warns(DataWarning, match=r"words are scored and not entities \(task.scheme=plain\)"):
        assert bare.labels == ("O", "PER")
    plain = task(written(tmp_path / "dev.conll", "Ada B-PER\nmet O\n"), scheme="plain")
    assert (plain.labels, plain.main_metric) == (("B-PER", "O"), "accuracy")


def test_labels_of_a_model_must_be_tags(tmp_path: Path) -> None:
    path = written(tmp_path / "train.conll", "Ada B-PER\n")
    files = {"train": path}
    assert tagging.Config().build(files=files, labels=("I-PER", "O", "B-PER")).head_config()["labels"] == [
        "I-PER",
        "O",
        "B-PER",
    ]
    for labels in (("O", "S-PER"), ("B-PER", "I-PER")):
        with pytest.raises(ValueError, match=r"not IOB(2|ES) tags \((B-PER|O) is missing\)"):
            tagging.Config().build(files=files, labels=labels)
    with pytest.raises(ValueError, match="pass --train"):
        tagging.Config().build(files={}).head_config()


def test_words_and_tags_as_lists(tmp_path: Path) -> None:
    item = {
        "id": "x",
        "tokens": list(WORDS),
        "ner_tags": convert_tags(GOLD, to="IOB1"),
        "raw": "Ada Lovelace, Grace in  Seoul, Busan",
    }
    path = lines_of_json(tmp_path / "train.jsonl", item)
    result = task(path)
    (example,) = result.examples("train")
    assert (example.id, example.texts[0]) == ("x", " ".join(WORDS))
    assert example.gold == tuple(convert_tags(GOLD, to="IOB2"))
    assert result.detected == {"train: columns": "words = tokens, tags = ner_tags", "train: scheme": "IOB1"}
    (own,) = task(path, text="raw").examples("train")
    assert own.texts[0] == item["raw"]
    assert [own.texts[0][begin:end] for begin, end in own.spans] == list(WORDS)


def test_texts_and_entities_by_character(tmp_path: Path) -> None:
    text = "e\u0301 Ada 👩‍🔧 in Seoul-based 쇠."
    start = text.index("Ada")
    entities: list[Any] = [[start, start + 3, "PER"], {"start": 0, "end": 3, "type": "LOC", "text": "e\u0301 "}]
    path = written(tmp_path / "train.json", json.dumps([{"text": text, "entities": entities}]))
    (example,) = task(path).examples("train")
    assert [text[begin:end] for begin, end in example.spans] == [
        "e\u0301",
        "Ada",
        "👩‍🔧",
        "in",
        "Seoul-based",
        "쇠",
        ".",
    ]
    assert example.gold == ("B-LOC", "B-PER", "O", "O", "O", "O", "O")


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            {"text": "Ada met", "entities": [[0, 9, "PER"]]},
            ":1: entity 1 spans characters 0 to 9, but the text has 7",
        ),
        ({"text": "Ada met", "entities": [[3, 3, "PER"]]}, "entity 1 spans characters 3 to 3"),
        ({"text": "Ada met", "entities": [[3, 4, "PER"]]}, "entity 1 is only white space"),
        ({"text": "Ada met", "entities": [{"start": 0, "end": 3, "label": "PER", "text": "Bob"}]}, "is 'Bob', but"),
        ({"text": "Ada met", "entities": [[0, 3, "PER"], [0, 7, "PER"]]}, "PER 'Ada' and PER 'Ada met' overlap"),
        ({"text": "Ada-based", "entities": [[0, 3, "PER"]]}, "ends inside 'Ada-based': set task.unit=part"),
        ({"text": "대장장이는", "entities": [[0, 4, "PER"]]}, "ends inside '대장장이는': set task.unit=character"),
        ({"text": "Ada", "entities": ["PER"]}, "entity 1 is PER: expected"),
        ({"text": "Ada", "entities": {"start": 0}}, "must be a list of entities"),
        ({"text": "Ada", "entities": None}, ":1: no tags"),
        ({"text": None, "entities": []}, ":1: 'text' must be a text, found no value"),
        ({"tokens": ["Ada"], "tags": ["B-PER", "O"]}, ":1: 1 words but 2 tags"),
        ({"tokens": ["Ada"], "tags": [3]}, ":1: item 1 of 'tags' must be a tag such as B-PER, found '3'"),
        ({"tokens": ["Ada"], "tags": "B-PER"}, ":1: 'tags' must be a list"),
        (
            {"tokens": ["Ada"], "tags": ["B"], "x": 1, "y": 2},
            ", word 1: 'B-_' (in IOB2) is not one of the known labels",
        ),
        ({"words": ["Ada"], "a": ["B-PER"], "b": 1}, "no column for the tags among words, a, b"),
    ],
)
def test_invalid_tables_are_one_line_errors(item: dict[str, Any], expected: str, tmp_path: Path) -> None:
    path = lines_of_json(tmp_path / "dev.jsonl", item)
    text = error_message(path, "dev")
    assert expected in text
    assert str(path) in text


def test_units_below_words_let_entities_end_anywhere(tmp_path: Path) -> None:
    path = lines_of_json(tmp_path / "train.jsonl", {"text": "대장장이는 쇠", "entities": [[0, 4, "PER"]]})
    (example,) = task(path, unit="character").examples("train")
    assert example.gold == ("B-PER", "I-PER", "I-PER", "I-PER", "O", "O", "O")
    path = lines_of_json(tmp_path / "train.jsonl", {"text": "Ada-based", "entities": [[0, 3, "PER"]]})
    (example,) = task(path, unit="part").examples("train")
    assert example.gold == ("B-PER", "O", "O")


def test_words_that_are_not_in_the_text_are_named(tmp_path: Path) -> None:
    path = lines_of_json(tmp_path / "dev.jsonl", {"tokens": ["Ada", "Bob"], "tags": ["O", "O"], "raw": "Ada met"})
    assert ":1: word 2, 'Bob', is not in the text" in error_message(path, "dev", text="raw")


def test_a_txt_file_without_tags_has_one_text_per_line(tmp_path: Path) -> None:
    lines = written(tmp_path / "new.txt", "the smith has iron\n\nit is gold\n")
    task = tagging.Config().build(files={"test": lines}, labels=("O", "B-M", "I-M"))
    found = [(example.texts[0], example.gold, example.source.rpartition(":")[2]) for example in task.examples("test")]
    assert found == [("the smith has iron", None, "1"), ("it is gold", None, "3")]
    words = written(tmp_path / "words.txt", "the O\niron B-M\n\nit O\n")
    task = tagging.Config().build(files={"test": words}, labels=("O", "B-M", "I-M"))
    assert [example.texts[0] for example in task.examples("test")] == ["the iron", "it"]
    same = written(tmp_path / "same.txt", "two words\nof each\n")
    task = tagging.Config().build(files={"test": same}, labels=("O", "B-M", "I-M"))
    with pytest.raises(
        DataError, match=r"'words' is not a tag: .* write texts without tags as \.jsonl with the key text"
    ):
        task.examples("test")


def test_column_numbers_and_encodings_of_column_files(tmp_path: Path) -> None:
    path = tmp_path / "train.conll"
    path.write_bytes("쇠 B-M x\n는 O x\n".encode("cp949"))
    with pytest.raises(DataError, match=r"train.conll:1: byte 0xbc is not UTF-8: set task.encoding=cp949"):
        tagging.Config().build(files={"train": path}).examples("train")
    settings = config.override(tagging.Config(), ["encoding=cp949", "tags=2", "words=1"])
    assert settings.build(files={"train": path}).examples("train")[0].gold == ("B-M", "O")
    with pytest.raises(DataError, match=r"no column 9 among 3: set task.tags=NUMBER"):
        config.override(settings, ["tags=9"]).build(files={"train": path}).examples("train")
