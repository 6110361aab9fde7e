"""Token classifiers of other makers: labels of words, and entities in every tagging scheme, as in their libraries."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from seqeval.scheme import BILOU, IOB1, IOBES, Entities

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from bertsmith.metrics.sequence_labelling import entity_labels

transformers = pytest.importorskip("transformers")

from model_io import zoo  # noqa: E402
from model_io.zoo import Case  # noqa: E402

TOKEN = "ForTokenClassification"
STRICT = {"IOB1": IOB1, "BIOES": IOBES, "BILOU": BILOU}


def folder_of(case: Case, tmp_path: Path) -> Path:
    zoo.write(case, tmp_path / str(case))
    return tmp_path / str(case)


def opened(case: Case, tmp_path: Path) -> Predictor:
    found: Predictor = bertsmith.load(folder_of(case, tmp_path), device="cpu")
    return found


def texts_of(case: Case, count: int = 60) -> list[str]:
    """Random texts of the vocabulary's words, with punctuation, of up to 30 words."""
    draw = random.Random(str(case))
    words = [word for word in zoo.VOCABULARIES[case.language].split() if not word.startswith("##")]
    return [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(count)]


def their_pipeline(folder: Path, strategy: str) -> Any:
    return transformers.pipeline(
        "token-classification", model=str(folder), aggregation_strategy=strategy, device="cpu", ignore_labels=["O"]
    )


@pytest.mark.parametrize("language", zoo.LANGUAGES)
@pytest.mark.parametrize("labels", ["IOB2", "bare", "no-O"])
def test_entities_equal_transformers(language: str, labels: str, tmp_path: Path) -> None:
    case = Case("bert", language, "json-only", head=TOKEN, labels=labels)
    predictor, theirs = opened(case, tmp_path), their_pipeline(tmp_path / str(case), "first")
    count = 0
    for text in [*texts_of(case, 30), *(text for text in case.texts if "[MASK]" not in text)]:
        found, expected = predictor.ner(text, unit="part"), theirs(text) if text else []
        keys = ("entity_group", "start", "end")
        assert [[one[key] for key in keys] for one in found] == [[one[key] for key in keys] for one in expected]
        assert [one["score"] for one in found] == pytest.approx([float(one["score"]) for one in expected], abs=1e-5)
        assert [one["word"] for one in found] == [text[one["start"] : one["end"]] for one in expected]
        count += len(found)
    assert count > 20


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "albert"])
def test_first_token_of_a_word_is_that_of_transformers_tokenizers(family: str, tmp_path: Path) -> None:
    """A piece of white space alone, as before rare words, is the first token of the word after it."""
    case = Case(family, head=TOKEN)
    predictor = opened(case, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / str(case))
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / str(case)).eval()
    for text in texts_of(Case("bert"), 40):
        text = " ".join(word for word in text.split()[:9] if word.isalpha())
        encoded = tokenizer(text, return_tensors="pt")
        numbers = encoded.word_ids()
        first = [numbers.index(number) for number in sorted({one for one in numbers if one is not None})]
        with torch.no_grad():
            best = model(**encoded).logits[0, first].softmax(-1).max(-1)
        found = predictor.tag_words(text)
        assert [one["word"] for one in found] == text.split()
        assert [one["label"] for one in found] == [zoo.LABELS["IOB2"][number] for number in best.indices.tolist()]
        assert [one["score"] for one in found] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("scheme", STRICT)
def test_entities_equal_seqeval_in_strict_schemes(scheme: str, tmp_path: Path) -> None:
    case = Case("bert", head=TOKEN, labels=scheme)
    predictor = opened(case, tmp_path)
    count = longest = 0
    texts = texts_of(case, 400)
    for text, words, found in zip(texts, predictor.tag_words(texts), predictor.ner(texts), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (expected,) = Entities([[one["label"] for one in words]], STRICT[scheme]).entities
        assert [(one["entity_group"], one["start"], one["end"]) for one in found] == [
            (one.tag, words[one.start]["start"], words[one.end - 1]["end"]) for one in expected
        ]
        for one, entity in zip(found, expected, strict=True):
            scores = [word["score"] for word in words[entity.start : entity.end]]
            assert one["score"] == pytest.approx(sum(scores) / len(scores))
            assert one["word"] == text[one["start"] : one["end"]]
        count += len(found)
        longest = max([longest, *(one.end - one.start for one in expected)])
    assert count > 30
    assert longest > 1


@pytest.mark.parametrize("labels", ["POS", "numbered", "mixed", "repeated", "numbers"])
def test_labels_that_are_not_entities_are_given_by_word(labels: str, tmp_path: Path) -> None:
    case = Case("bert", head=TOKEN, labels=labels)
    predictor, theirs = opened(case, tmp_path), their_pipeline(tmp_path / str(case), "none")
    theirs.ignore_labels = []
    with pytest.raises(BertsmithError, match=r"labels \(.*\) are not entity tags such as B-PER: use tag-words"):
        predictor.ner("the cat")
    for text in texts_of(case, 20):
        expected = [one for one in theirs(text, ignore_labels=[]) if not one["word"].startswith("##")]
        found = predictor.tag_words(text, unit="part")
        assert [(one["label"], one["start"], one["end"]) for one in found] == [
            (str(one["entity"]), one["start"], one["end"]) for one in expected
        ]
        assert [one["score"] for one in found] == pytest.approx([float(one["score"]) for one in expected], abs=1e-5)
        assert [one["word"] for one in found] == [text[one["start"] : one["end"]] for one in found]


def test_words_of_several_and_long_texts(tmp_path: Path) -> None:
    predictor = opened(Case("bert", head=TOKEN, labels="POS"), tmp_path)
    long = "the cats sat on a mat . " * 20
    first, empty, several = predictor.tag_words(["the cats", "", long])
    assert [one["word"] for one in first] == ["the", "cats"]
    assert [one["label"] for one in first] == [one["label"] for one in predictor.tag_words("the cats")]
    assert empty == []
    assert [one["word"] for one in several] == long.split()
    assert [one["word"] for one in predictor.tag_words("a mat", unit="character")] == list("amat")
    with pytest.raises(BertsmithError, match='unit "line" does not exist: choose word, part, character'):
        predictor.tag_words("a", unit="line")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("labels", "tags", "scheme"),
    [
        (["O", "B-PER", "I-PER"], ["O", "B-PER", "I-PER"], None),
        (["B-X-Y", "I-X-Y"], ["B-X-Y", "I-X-Y"], None),
        (["O", "B", "I"], ["O", "B-_", "I-_"], None),
        (["O", "B_PER", "i_PER"], ["O", "B-PER", "I-PER"], None),
        (["O", "PER-B", "PER-I"], ["O", "B-PER", "I-PER"], None),
        (["O", "X", "B-PER", "I-PER", "[CLS]"], ["O", "O", "B-PER", "I-PER", "O"], None),
        (zoo.LABELS["IOB1"], zoo.LABELS["IOB1"], "IOB1"),
        (zoo.LABELS["BILOU"], zoo.LABELS["BIOES"], "IOBES"),
        (zoo.LABELS["BMES"], zoo.LABELS["BIOES"], "IOBES"),
        (zoo.LABELS["BIOS"], ["O", *zoo.LABELS["BIOS"][1:]], None),
        (["O", "PER", "E-mail"], None, None),
        (["O", "NN", "VB"], None, None),
        (["NOUN", "VERB", "X"], None, None),
        (["LABEL_0", "LABEL_1"], None, None),
        (["O", "B-PER", "I-PER", "VERB"], None, None),
    ],
)
def test_scheme_of_a_label_set(labels: list[str], tags: list[str] | None, scheme: str | None) -> None:
    found = entity_labels(labels)
    assert (found and list(found.tags)) == tags
    assert (found.scheme if found else None) == scheme


def test_tag_words_command(tmp_path: Path) -> None:
    from command_line import call

    folder = folder_of(Case("bert", head=TOKEN, labels="POS"), tmp_path)
    expected = bertsmith.load(folder, device="cpu").tag_words("the cats sat .")
    found = json.loads(call("tag-words", folder, "the cats sat .", "--json").stdout)["words"]
    assert [one | {"score": pytest.approx(one["score"])} for one in found] == expected
    assert expected[1]["label"] in call("tag-words", folder, "the cats sat .").stdout
    refused = call("ner", folder, "the cats sat .")
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "NOUN, VERB, ADJ, X" in refused.stderr
    assert "tag-words" in refused.stderr
