"""Inputs and results of a predictor: texts in any kind of list; results that notebooks show as tables."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import re
import struct
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas
import pyarrow
import pytest
from inference.predictor_fixtures import KINDS, TEXTS, random_model, reader, tokenizer

from bertsmith.errors import BertsmithError
from bertsmith.inference.heat_map import MAX_TOKENS, heat_map
from bertsmith.inference.predictions import MAX_ROWS, Predictions
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import classify, masked_lm


@pytest.fixture(scope="module")
def model() -> Predictor:
    return Predictor(random_model(classify.Config(labels=KINDS), masked_lm.Config()), tokenizer())


@pytest.fixture(scope="module")
def know() -> Predictor:
    return reader()


class Cells(HTMLParser):
    """The text of every cell, and every tag."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


LISTS: list[Callable[[Any], Any]] = [tuple, iter, pandas.Series, pyarrow.array, np.array]
LISTS += [lambda texts: pyarrow.chunked_array([texts]), lambda texts: pandas.Series(texts, index=[7, 7, 7, 7])]


@pytest.mark.parametrize("make", LISTS)
def test_any_list_of_texts_is_accepted(make: Callable[[Any], Any], model: Predictor) -> None:
    assert model.predict(make(TEXTS)) == model.predict(TEXTS)
    assert np.array_equal(model.predict_proba(make(TEXTS)), model.predict_proba(TEXTS))
    assert np.array_equal(model.encode(make(TEXTS)), model.encode(TEXTS))
    assert model.count_tokens(make(TEXTS)) == model.count_tokens(TEXTS)
    assert model.rank("a", make(TEXTS)) == model.rank("a", TEXTS)


def test_an_array_of_pairs_is_accepted(model: Predictor) -> None:
    pairs = [["red iron", "it is gold"], ["a", "b"]]
    assert model.predict(np.array(pairs)) == model.predict([tuple(pair) for pair in pairs])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda one: one.predict(["a", None]),
            "text 1 is None: it must be a string, or a tuple or list of two strings",
        ),
        (lambda one: one.predict(pandas.Series(["a", float("nan")])), "text 1 is nan: it must be a string"),
        (lambda one: one.predict([["a", 3]]), r"text 0 is list \['a', 3\]: it must be a string"),
        (lambda one: one.predict({"text": "a"}), r"the texts are dict {'text': 'a'}: pass a list of strings"),
        (lambda one: one.predict(pandas.DataFrame({"text": ["a"]})), "a table: pass one of its columns of strings"),
        (lambda one: one.predict(3), "the texts are 3: pass a list of strings"),
        (lambda one: one.predict(None), "the texts are None: pass a list of strings"),
        (lambda one: one.predict({"a", "b"}), "the texts are set .*: pass a list of strings"),
        (lambda one: one.embed("red iron"), "the texts are str 'red iron': pass a list of strings"),
        (lambda one: one.encode(["a", None]), "text 1 is None: it must be a string"),
        (lambda one: one.encode(["a", 2.5]), "text 1 is 2.5: it must be a string"),
        (lambda one: one.tokenize([None]), "text 0 is None: it must be a string"),
        (lambda one: one.rank("a", ["b", 3]), "text 1 is 3: it must be a string"),
        (lambda one: one.fill_mask(["a [MASK]"]), "fill_mask takes one text, not list"),
    ],
)
def test_other_inputs_are_an_error_with_their_index(call: Any, message: str, model: Predictor) -> None:
    with pytest.raises(BertsmithError, match=message):
        call(model)


def test_results_are_plain_lists(model: Predictor) -> None:
    found = model.predict(TEXTS)
    assert isinstance(found, list)
    assert json.loads(json.dumps(found)) == found == list(found)
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert type(other) is Predictions
        assert other == found
    filled = pickle.loads(pickle.dumps(model.fill_mask("[MASK] is [MASK]")))
    assert list(filled.to_pandas().columns[:2]) == ["mask", "score"]


def test_results_are_tables(model: Predictor, know: Predictor) -> None:
    table = model.predict(TEXTS).to_pandas()
    assert list(table.columns) == ["label", "score"]
    assert len(table) == len(TEXTS)
    nested = know.ner(["red iron", "it is gold"])
    rows = nested.to_pandas()
    assert rows[["text", "word"]].values.tolist() == [[0, "red"], [0, "iron"], [1, "gold"]]
    cells = Cells(nested._repr_html_()).cells
    assert cells[:6] == ["text", "entity_group", "score", "word", "start", "end"]
    assert cells[-3:] == ["gold", "6", "10"]
    several = (know.answer("which", "red iron", top_k=2), model.predict(TEXTS[0], top_k=2), model.rank("a", TEXTS))
    assert all(type(one) is Predictions for one in (*several, know.tag_words("a"), model.fill_mask("[MASK]")))
    assert "no results" in Predictions()._repr_html_()


def test_tables_are_escaped_and_bounded(know: Predictor) -> None:
    evil = "<script>alert(1)</script>"
    parsed = Cells(Predictions([{"label": evil, "score": 0.25}] * 100)._repr_html_())
    assert set(parsed.tags) <= {"div", "style", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert parsed.cells[2] == evil
    assert parsed.tags.count("tr") == 1 + MAX_ROWS
    attention = know.attention("red iron " * 99)
    object.__setattr__(attention, "tokens", (evil, *attention.tokens[1:]))
    assert repr(attention).startswith("Attention(1 layers, 2 heads, 32 tokens: <script>")
    markup = attention._repr_svg_()
    assert "<script" not in markup
    assert "&lt;script&gt;" in markup
    assert re.findall(r"http[^\"]*", markup) == ["http://www.w3.org/2000/svg"]


def pixels(svg: str) -> list[list[list[int]]]:
    """The opacities [rows, columns] of the PNG images in a picture."""
    found = []
    for encoded in re.findall(r'href="data:image/png;base64,([^"]+)"', svg):
        png = base64.b64decode(encoded)
        width, height = struct.unpack(">II", png[16:24])
        data = zlib.decompress(png[png.index(b"IDAT") + 4 :])
        found.append(np.frombuffer(data, np.uint8).reshape(height, 1 + width)[:, 1:].tolist())
    return found


def test_attention_is_a_picture_of_one_head_or_of_all(know: Predictor) -> None:
    attention = know.attention("red iron", "it is gold")
    count = len(attention.tokens)
    second = attention.plot(1, 2)
    assert second.title.startswith("Attention, layer 1, head 2; rows: query tokens")
    root = ElementTree.fromstring(second._repr_svg_())
    labels = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert labels == [second.title, *attention.tokens, *attention.tokens]
    weights = attention.select(1, 2)
    (found,) = pixels(second.svg)
    assert np.abs(np.array(found) - 255 * np.sqrt(weights / weights.max())).max() < 1
    assert "mean of 1 layers, mean of 2 heads" in attention.plot().title
    assert attention._repr_svg_() == attention.plot().svg
    heads = pixels(attention.plot_heads().svg)
    assert np.shape(heads) == (2, count, count)
    assert heads[1] == found
    with pytest.raises(BertsmithError, match=r"^head 3 does not exist: choose 1 to 2$"):
        attention.plot(head=3)


def test_long_texts_are_cut_in_pictures() -> None:
    weights = np.full((MAX_TOKENS + 1, MAX_TOKENS + 1), 0.5, np.float32)
    tokens = ["internationalisation"] * (MAX_TOKENS + 1)
    picture = heat_map(weights, tokens, tokens, title="Attention")
    assert picture.title == f"Attention; highest weight 50.0%; the first {MAX_TOKENS} tokens"
    assert picture.svg.count(">internation…<") == 2 * MAX_TOKENS
    assert np.shape(pixels(picture.svg)) == (1, MAX_TOKENS, MAX_TOKENS)
