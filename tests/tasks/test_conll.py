"""The known sets of named entities: their files, their prediction files, and the real data where it is available."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tasks.samples import SAMPLES, written

from bertsmith.tasks import conll
from bertsmith.tasks.task import Features
from bertsmith.tasks.token_classification import TokenClassificationTask
from bertsmith.tokenizers.tokenizer import Tokenizer, load

DATA = Path(os.environ.get("BERTSMITH_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
OPENING = "-DOCSTART- -X- O O\n\n"
CONLL = f"{OPENING}Ada NN I-NP I-PER\nmet VB O O\n\n{OPENING}Seoul NN I-NP I-LOC\nBusan NN I-NP B-LOC\n"
KLUE = "## 문장\n## klue-1\t<쇠:PS> 가\n쇠\tB-PS\n \tO\n가\tO\n\n## klue-2\t<A B:OG>\nA\tB-OG\n \tI-OG\nB\tI-OG\n"


def vocabulary(folder: Path, characters: str) -> Tokenizer:
    """A tokenizer of one piece for each character."""
    pieces = sorted(set(characters) - set(" \t\n"))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces, *(f"##{piece}" for piece in pieces)]
    written(folder / "vocab.txt", "".join(f"{token}\n" for token in tokens))
    written(folder / "tokenizer_config.json", '{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    return load(folder)


def perfect(task: TokenClassificationTask, labelled: list[Features]) -> list[NDArray[np.float32]]:
    return [np.eye(len(task.labels), dtype=np.float32)[one.target] for one in labelled]


def test_submission_files_are_the_input_files_with_an_additional_column(tmp_path: Path) -> None:
    task = conll.Config(name="conll2003").build(files={"test": written(tmp_path / "eng.testb", CONLL)})
    examples = task.examples("test")
    labelled = task.rows(examples, vocabulary(tmp_path, CONLL), max_length=16)
    predictions = task.decode(examples, labelled, perfect(task, labelled))
    expected = "".join(f"{line} {line.split(' ')[-1]}\n" if line else "\n" for line in CONLL.split("\n"))
    assert task.submission(examples, predictions) == {"conll-conll2003-predictions.txt": expected.encode()}
    assert task.detected == {"test: scheme": "IOB1"}
    assert [example.gold for example in examples] == [("B-PER", "O"), ("B-LOC", "B-LOC")]


def test_wnut_has_lines_of_one_tab_between_sentences(tmp_path: Path) -> None:
    path = written(tmp_path / "train.conll", "@ada\tB-person\n.\tO\n\t\nSeoul\tB-location\n\t\n")
    result = conll.Config(name="wnut17").build(files={"train": path}).examples("train")
    assert [(example.texts[0], example.source) for example in result] == [
        ("@ada .", f"{path}:1"),
        ("Seoul", f"{path}:4"),
    ]


def test_klue_is_tagged_by_character(tmp_path: Path) -> None:
    task = conll.Config(name="klue-ner").build(files={"dev": written(tmp_path / "dev.tsv", KLUE)})
    examples = task.examples("dev")
    assert [(example.id, example.texts[0]) for example in examples] == [("klue-1", "쇠 가"), ("klue-2", "A B")]
    labelled = task.rows(examples, vocabulary(tmp_path, KLUE), max_length=16)
    assert [len(one.target) for one in labelled] == [2, 2]  # white space has no piece
    predictions = task.decode(examples, labelled, perfect(task, labelled))
    assert [prediction.value for prediction in predictions] == [example.gold for example in examples]
    (entity,) = predictions[1].detail["entities"]
    assert (entity["start"], entity["end"], entity["text"], entity["kind"]) == (0, 3, "A B", "OG")
    assert predictions[1].detail["unread"] == []
    assert task.score(examples, predictions)["macro_f1"] == 1


def test_names_and_labels_are_checked(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean conll2003"):
        conll.Config(name="conll203")
    settings, files = SAMPLES["conll/conll2003"](tmp_path)
    labels = settings.build(files=files).head_config()["labels"]
    assert settings.build(files=files, labels=labels[::-1]).head_config()["labels"] == labels[::-1]
    with pytest.raises(ValueError, match="the model has the labels O, B-DNA"):
        settings.build(files=files, labels=("O", "B-DNA", "I-DNA"))
    with pytest.raises(ValueError, match="overlap=-1"):
        conll.Config(name="wnut17", overlap=-1)


def unpacked(archive: str, folder: Path) -> Path:
    if not (DATA / "tasks" / f"{archive}.tar.xz").is_file():
        pytest.skip(f"{archive} is not available")
    with tarfile.open(DATA / "tasks" / f"{archive}.tar.xz") as result:
        result.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize(
    ("archive", "name", "sentences", "words"),
    [
        ("conll2003", "conll2003", {"train": 14_041, "dev": 3250, "test": 3453}, 301_418),
        ("wnut17", "wnut17", {"train": 3394, "dev": 1009, "test": 1287}, 101_857),
        ("klue", "klue-ner", {"dev": 5000}, 285_929),
    ],
)
def test_sentence_counts_match_the_authors_and_gold_tags_score_perfectly(
    archive: str, name: str, sentences: dict[str, int], words: int, tmp_path: Path
) -> None:
    task = conll.Config(name=name).build(files={"data": unpacked(archive, tmp_path)})
    splits = {split: task.examples(split) for split in ("train", "dev", "test") if task.has_split(split)}
    assert {split: len(examples) for split, examples in splits.items()} == sentences
    assert sum(len(example.spans) for examples in splits.values() for example in examples) == words
    examples = splits["dev"]
    characters = "".join({character for example in examples for character in example.texts[0]})
    assert task.reachable(examples, vocabulary(tmp_path, characters), max_length=128) == 1


def test_documents_of_conll2003(tmp_path: Path) -> None:
    folder = unpacked("conll2003", tmp_path)
    written(tmp_path / "vocab.txt", (DATA / "vocab" / "bert-cased.txt").read_bytes())
    written(tmp_path / "tokenizer_config.json", '{"tokenizer_class": "BertTokenizer", "do_lower_case": false}')
    task = conll.Config(name="conll2003", context="document").build(files={"data": folder})
    examples = task.examples("dev")
    labelled = task.rows(examples, load(tmp_path), max_length=512)
    assert len(labelled) == 267  # 216 documents, some of them longer than a row
    assert sum(len(one.target) for one in labelled) == 51_362
    predictions = task.decode(examples, labelled, perfect(task, labelled))
    assert task.score(examples, predictions)["f1"] == 1
