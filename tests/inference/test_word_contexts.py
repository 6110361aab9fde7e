"""One word in several sentences: its tokens, its vector by the direction of the encoder, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import call
from frozen_fixtures import bert_folder, lm_folder, word_folder

import bertsmith
from bertsmith.errors import BertsmithError
from bertsmith.inference.word_contexts import parse_marked

SENTENCES = ["the *Paris* of Anna", "Anna lives in *Paris*", "the play of *Anna*"]


def test_one_marked_word() -> None:
    found = parse_marked("a 2 * 3 *배*를 탔다")
    assert (found.text, found.word, found.start) == ("a 2 * 3 배를 탔다", "배", 8)
    assert parse_marked("*New York*").word == "New York"
    for text in ("no mark", "*two* *marks*", "* spaced *"):
        with pytest.raises(BertsmithError, match="mark one word with asterisks"):
            parse_marked(text)


def test_word_vectors_do_not_depend_on_the_sentence_and_encoders_do(tmp_path: Path) -> None:
    words = bertsmith.load(word_folder(tmp_path / "words"), device="cpu").word_contexts(SENTENCES)
    assert words.similarity[0, 1] == pytest.approx(1, abs=1e-6)
    assert words.neighbours(0)[0][0] == 1
    contextual = bertsmith.load(bert_folder(tmp_path / "bert"), device="cpu").word_contexts(SENTENCES)
    assert contextual.similarity[0, 1] < 1 - 1e-5
    np.testing.assert_allclose(np.diag(contextual.similarity), 1, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_the_vector_is_that_of_the_tokens_which_have_read_the_word(direction: str, tmp_path: Path) -> None:
    folder = tmp_path / "m"
    if direction == "both":
        bert_folder(folder)
    else:
        lm_folder(folder, backward=direction == "backward")
    model = bertsmith.load(folder, device="cpu")
    found = model.word_contexts(SENTENCES[:2], layer=1).similarity[0, 1]
    vectors = []
    for text, word in (("the Paris of Anna", "Paris"), ("Anna lives in Paris", "Paris")):
        (one,) = model.tokenize([text])
        (values,) = model.embed_all([text], layer=1).vectors
        begin = text.index(word)
        inside = [n for n, (a, b) in enumerate(one.offsets) if a < begin + len(word) and b > begin]
        assert len(inside) > 1
        chosen = {"forward": inside[-1:], "backward": inside[:1], "both": inside}[direction]
        vectors.append(values[chosen].mean(0))
    first, second = vectors
    assert found == pytest.approx(first @ second / np.linalg.norm(first) / np.linalg.norm(second), abs=1e-5)


def test_the_command_compares_models(tmp_path: Path) -> None:
    words, bert = word_folder(tmp_path / "words"), bert_folder(tmp_path / "bert")
    done = call("neighbours", bert, *SENTENCES, "--with", words, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["models"]
    assert (first["layer"], second["layer"]) == (2, 0)
    assert second["similarity"][0][1] == 1
    assert first["sentences"][0] == {"text": "the Paris of Anna", "word": "Paris", "start": 4, "end": 9}
    options = ["--with", words, "--layer", "1", "--layer", "-1", "--device", "cpu", "--json"]
    done = call("neighbours", bert, *SENTENCES, *options)
    assert [one["layer"] for one in json.loads(done.stdout)["models"]] == [1, 0]
    shown = call("neighbours", words, *SENTENCES, "--device", "cpu").stdout
    assert "the play of Anna" in shown
    refused = call("neighbours", words, SENTENCES[0], "paris", "--device", "cpu")
    assert "2 to 200" in refused.stderr or "0 marked words" in refused.stderr
    assert refused.returncode != 0
    for option in (["--with", bert], ["--layer", 0]):
        refused = call("neighbours", words, "paris", *option, "--device", "cpu")
        assert "--with and --layer are for words in sentences" in refused.stderr
    refused = call("neighbours", words, "", "--device", "cpu")
    assert refused.stderr == "bertsmith: '' is not in the vocabulary of this model: choose another word\n"


def test_a_layer_that_a_model_lacks_is_an_error_that_names_the_model(tmp_path: Path) -> None:
    words, bert = word_folder(tmp_path / "words"), bert_folder(tmp_path / "bert")
    for layers, expected in (
        (
            ["1"],
            f"--layer 1: {words} has only layer 0, the embeddings; choose another, such as -1 (the last), or give ",
        ),
        (["-4", "0"], f"--layer -4: {bert} has layers 0 (the embeddings) to 2; choose another, such as -1 (the last),"),
        (["0", "0", "0"], "--layer is given 3 times for 2 models: give it once, or once for each in order"),
    ):
        options = [part for layer in layers for part in ("--layer", layer)]
        refused = call("neighbours", bert, *SENTENCES, "--with", words, *options, "--device", "cpu")
        assert refused.returncode != 0
        assert refused.stderr.startswith(f"bertsmith: {expected}")


def test_invalid_sentences_are_errors(tmp_path: Path) -> None:
    model = bertsmith.load(bert_folder(tmp_path / "bert", max_positions=8), device="cpu")
    with pytest.raises(BertsmithError, match="not within the maximum length of 8 tokens"):
        model.word_contexts(["*Anna*", "the play of Dora began in *Paris*"])
    with pytest.raises(BertsmithError, match="a single sentence: give 2 to 200"):
        model.word_contexts(["*Anna*"])
    with pytest.raises(BertsmithError, match="layer 7 does not exist"):
        model.word_contexts(["*Anna*", "*Anna*"], layer=7)
