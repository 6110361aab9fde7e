"""Models whose labels are the tags of another scheme than IOB2: the same entities, rows and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tasks.samples import tabbed, written

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.sequence_labelling import SCHEMES, convert_tags
from bertsmith.tasks import conll, tagging
from bertsmith.tasks.token_classification import TokenClassificationTask
from bertsmith.tasks.word_predictions import predict_words
from bertsmith.tokenizers import training, wordpiece
from bertsmith.tokenizers.tokenizer import Tokenizer

WORDS = ("Ada", "Lovelace", "Grace", "in", "Seoul", ",", "Busan", "is", "New", "York", "City")
GOLD = ("B-PER", "I-PER", "B-PER", "O", "B-LOC", "O", "B-LOC", "O", "B-LOC", "I-LOC", "I-LOC")
LABELS = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BEIS", "BILOU": "BILU"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    settings = wordpiece.Config(min_count=1)
    return settings.train(training.count_words([" ".join(WORDS)], settings.word_splitter()), vocab_size=120)


def column_file(folder: Path, scheme: Any, name: str = "train.bio") -> Path:
    return tabbed(folder / name, *zip(WORDS, convert_tags(GOLD, to=scheme), strict=True))


def logits_of(task: TokenClassificationTask, tags: list[str]) -> np.ndarray:
    return 9 * np.eye(len(task.labels), dtype=np.float32)[[task.labels.index(tag) for tag in tags]]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("given", ["scheme", "file"])
def test_a_model_is_trained_with_the_tags_of_its_scheme(
    scheme: Any, given: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = column_file(tmp_path, scheme if given == "file" else "IOB1")
    settings = tagging.Config(label_scheme=scheme if given == "scheme" else "file")
    task = settings.build(files={"train": path, "dev": path})
    examples = task.examples("dev")
    assert task.labels == ("O", *(f"{letter}-{kind}" for kind in ("LOC", "PER") for letter in LABELS[scheme]))
    assert examples[0].gold == GOLD
    tags = convert_tags(GOLD, to=scheme)
    (one,) = task.rows(examples, tokenizer, max_length=64)
    assert [task.labels[number] for number in one.target] == tags
    predictions = task.decode(examples, [one], [logits_of(task, tags)])
    assert predictions[0].value == GOLD
    assert task.score(examples, predictions)["f1"] == 1
    assert task.reachable(examples, tokenizer, max_length=64) == 1
    assert sorted(task.gold_labels(examples)) == sorted(tags)
    weights = dict(zip(task.labels, task.balanced_weights(examples), strict=True))
    assert weights["O"] == pytest.approx(len(tags) / (len(set(tags)) * tags.count("O")))
    expected = {"kind": "tag", "labels": list(task.labels)}
    assert task.head_config() == (expected | {"crf_scheme": "IOB1"} if scheme == "IOB1" else expected)


@pytest.mark.parametrize("scheme", ["IOBES", "BILOU"])
def test_the_labels_of_a_trained_model_determine_its_scheme(scheme: Any, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = column_file(tmp_path, "IOB2")
    trained = tagging.Config(label_scheme=scheme).build(files={"train": path})
    task = tagging.Config().build(files={"dev": path}, labels=trained.labels[::-1])
    examples = task.examples("dev")
    (one,) = task.rows(examples, tokenizer, max_length=64)
    (prediction,) = task.decode(examples, [one], [logits_of(task, convert_tags(GOLD, to=scheme))])
    assert (prediction.value, task.labels) == (GOLD, trained.labels[::-1])
    with pytest.raises(DataError, match=rf"are not {scheme} tags \(I-PER is missing\)"):
        tagging.Config().build(files={"dev": path}, labels=[one for one in trained.labels if one != "I-PER"])


def test_tags_that_are_invalid_in_the_models_scheme_are_no_entities(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As in the command ner, and as seqeval reads IOBES; a CRF predicts no such tags."""
    task = tagging.Config(label_scheme="IOBES").build(files={"train": column_file(tmp_path, "IOB2")})
    examples = task.examples("train")
    features = task.rows(examples, tokenizer, max_length=64)
    wrong = ["B-PER", "O", "S-PER", "I-LOC", "E-LOC", "O", "B-LOC", "E-PER", "B-LOC", "I-LOC", "E-LOC"]
    (prediction,) = task.decode(examples, features, [logits_of(task, wrong)])
    found = [(one["kind"], one["text"]) for one in prediction.detail["entities"]]
    assert found == [("PER", "Grace"), ("LOC", "New York City")]


def test_known_datasets_have_other_schemes_too(tmp_path: Path) -> None:
    path = written(tmp_path / "eng.train", "Ada NNP I-NP I-PER\nmet VB O O\nSeoul NN I-NP I-LOC\nBusan NN I-NP B-LOC\n")
    files = {"train": path}
    letters = {
        scheme: [f"{one}-{kind}" for kind in ("LOC", "MISC", "ORG", "PER") for one in LABELS[scheme]]
        for scheme in SCHEMES
    }
    for scheme in SCHEMES:
        task = conll.Config(name="conll2003", label_scheme=scheme).build(files=files)
        assert task.labels == ("O", *letters[scheme])
        assert task.examples("train")[0].gold == ("B-PER", "O", "B-LOC", "B-LOC")
        again = conll.Config(name="conll2003").build(files=files, labels=task.labels)
        assert again.labels == task.labels
    of_file = conll.Config(name="conll2003", label_scheme="file").build(files=files)
    assert (of_file.labels, of_file.label_scheme) == (("O", "B-LOC", "I-LOC", "B-PER", "I-PER"), "IOB1")


def test_plain_labels_have_no_scheme(tmp_path: Path) -> None:
    path = written(tmp_path / "train.conll", "Ada NNP\nmet VBD\n")
    with pytest.raises(ConfigError, match="label_scheme=IOBES is for entity tags, not for plain labels"):
        tagging.Config(label_scheme="IOBES").build(files={"train": path}).examples("train")
    assert tagging.Config(label_scheme="file").build(files={"train": path}).labels == ("NNP", "VBD")


def test_a_decoder_reads_all_words_of_a_sentence_whatever_windows_they_are_in(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    lines = [f"{word}\tO" for word in WORDS] * 4
    path = written(tmp_path / "train.bio", "Ada\tB-PER\n\n" + "\n".join(lines) + "\n\nSeoul\tO\n")
    task = tagging.Config(overlap=4).build(files={"train": path})
    examples = task.examples("train")
    features = task.rows(examples, tokenizer, max_length=16)
    assert len(features) > 5
    draw = np.random.default_rng(0)
    logits = [draw.normal(size=(len(one.indices), 3)).astype(np.float32) for one in features]
    given: list[Any] = []

    def decoder(sequences: Any) -> Any:
        given.extend(sequences)
        return [(np.full(len(one), 2), np.tile([0.5, 0.25, 0.25], (len(one), 1))) for one in sequences]

    order = draw.permutation(len(features))
    shuffled = [features[n] for n in order], [logits[n] for n in order]
    spans = [example.spans for example in examples]
    predicted = predict_words(spans, *shuffled, decoder)
    assert [len(one) for one in given] == [1, len(lines), 1]
    middle = np.concatenate([values for one, values in zip(features, logits, strict=True) if one.example_index == 1])
    assert np.array_equal(given[1], middle)
    assert {(one.number, one.score) for some in predicted for one in some} == {(2, 0.25)}
    best = [[one.number for one in some] for some in predict_words(spans, *shuffled)]
    assert best[1] == middle.argmax(1).tolist()


def test_rows_of_several_sentences_mark_where_they_begin(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "-DOCSTART- O\n\nAda B-PER\nLovelace I-PER\n\nGrace B-PER\n\nSeoul B-LOC\nis O\n"
    files = {"train": written(tmp_path / "train.conll", text)}
    task = tagging.Config(context="document").build(files=files)
    (row,) = task.rows(task.examples("train"), tokenizer, max_length=64)
    assert row.sentence_starts.tolist() == row.indices[[0, 2, 3]].tolist()
    parts = task.rows(task.examples("train"), tokenizer, max_length=5)
    assert len(parts) > 1
    assert all(one.sentence_starts is not None for one in parts)
    task = tagging.Config().build(files=files)
    assert [one.sentence_starts for one in task.rows(task.examples("train"), tokenizer, max_length=64)] == [None] * 3
