"""Texts that are given as lists of words: no tokenizer that splits at white space splits a word again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from inference.predictor_fixtures import TAGS, random_model, reader, tokenizer

from bertsmith.encoders import elmo
from bertsmith.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.elmo_hdf5 import words_tokenizer
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.model_io.model import Model
from bertsmith.objectives import tag

WORDS = ["U.S.", "officials", "pay", "$", "3.5%", "--", "Ms.", "do", "n't"]


def elmo_tagger() -> Predictor:
    tiny = elmo.Config(width=6, hidden=8, filters=((1, 8), (2, 8)))
    model = Model.build(tiny, [tag.Config(labels=TAGS)], seed=0).eval()
    return Predictor(model, spelling(words_tokenizer(), reads_ids=False))


def test_each_word_is_one_token() -> None:
    predictor = elmo_tagger()
    text = " ".join(WORDS)
    assert [len(vectors) for vectors in predictor.embed_all([WORDS, text]).vectors] == [len(WORDS) + 2] * 2
    assert predictor.count_tokens([text]) == [len(WORDS) + 2]
    carried = predictor.stateful().encode([WORDS, ["Ms."]])
    assert [one.shape[1] for one in carried] == [len(WORDS) + 2, 3]
    assert np.abs(carried[0][-1] - predictor.embed_all([text]).vectors[0]).max() < 1e-6


def test_the_label_of_each_word() -> None:
    predictor = elmo_tagger()
    for texts in ([WORDS, ["Ms.", "Ada"]], [" ".join(WORDS), "Ms. Ada"]):
        found: Any = predictor.tag_words(texts)
        assert [[one["word"] for one in words] for words in found] == [WORDS, ["Ms.", "Ada"]]
    parts: Any = predictor.tag_words(["U.S. pays"], unit="part")
    assert [one["word"] for one in parts[0]] == ["U", ".", "S", ".", "pays"]
    assert len({one["label"] for one in parts[0][:4]}) == 1, "they share the token U.S."


def test_other_tokenizers_read_the_words_joined_by_spaces() -> None:
    predictor = reader()
    words, text = ["the", "smith-s", "iron."], "the smith-s iron."
    for method in (predictor.encode, lambda texts: predictor.embed_all(texts).vectors[0]):
        assert np.array_equal(method([words]), method([text]))
        assert np.array_equal(method([np.array(words)]), method([text]))
    labels: Any = predictor.tag_words([words])
    assert [one["word"] for one in labels[0]] == words
    entities: Any = predictor.ner([["the", "iron."]])
    assert [(one["word"], one["start"]) for one in entities[0]] == [("iron.", 4)]


@pytest.mark.parametrize(
    "words", [["New York", "is"], ["is", "a\u00a0b"], ["", "is"], ["is", None], [["is"], "is"]], ids=str
)
def test_a_word_is_a_string_without_white_space(words: Any) -> None:
    predictor = elmo_tagger()
    for method in (predictor.embed_all, predictor.encode, predictor.tag_words, predictor.stateful().encode):
        with pytest.raises(
            BertsmithError, match=r"^text 1, word \d is .*: a word .* must be a string without white space"
        ):
            method([["is"], words])


def test_lists_without_words() -> None:
    predictor = Predictor(random_model(), tokenizer())
    assert [len(one) for one in predictor.embed_all([[], ["iron"]]).vectors] == [2, 3]
    ids = tokenizer().encode("iron").ids.tolist()
    assert np.array_equal(predictor.embed([ids, []]).vectors, predictor.embed(["iron", ""]).vectors)
