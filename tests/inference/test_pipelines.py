"""Predictions of fine-tuned models equal transformers': labels, numbers, entities, answers, choices, attention."""

from __future__ import annotations

import re
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inference.predictor_fixtures import (
    KINDS,
    LENGTH,
    LONG,
    METALS,
    TAGS,
    TEXTS,
    random_model,
    reader,
    saved_predictor,
    tokenizer,
)

from bertsmith.errors import BertsmithError
from bertsmith.inference.pipelines import as_texts, text_windows
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import choose, classify, masked_lm, regress, span, tag


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return saved_predictor(tmp_path_factory.mktemp("labelled") / "m", classify.Config(labels=KINDS))


@pytest.fixture(scope="module")
def know() -> Predictor:
    return reader()


def theirs(name: str, predictor: Predictor, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    assert predictor.facts is not None
    return getattr(transformers, name).from_pretrained(predictor.facts.folder, **options).eval()


def framed(*texts: str) -> Any:
    known = tokenizer()
    return known.frame(*map(known.encode, texts), max_length=LENGTH)


def inputs(rows: list[Any]) -> list[dict[str, torch.Tensor]]:
    return [
        {"input_ids": torch.tensor(row.ids)[None].long(), "token_type_ids": torch.tensor(row.segment_ids)[None].long()}
        for row in rows
    ]


def test_labels_equal_transformers(labelled: Predictor) -> None:
    model = theirs("BertForSequenceClassification", labelled)
    asked: list[Any] = [*TEXTS, ("red iron", "it is gold")]
    found = labelled.predict_proba(asked)
    with torch.no_grad():
        rows = [framed(*((one,) if isinstance(one, str) else one)) for one in asked]
        expected = torch.cat([model(**one).logits for one in inputs(rows)])
    assert np.allclose(found, expected.softmax(-1), atol=1e-5)
    assert labelled.labels == KINDS
    best = labelled.predict(asked)
    assert [one["label"] for one in best] == [KINDS[number] for number in expected.argmax(-1)]
    assert [set(one) for one in best] == [{"label", "score"}] * 5
    assert float(expected.std(0).min()) > 0.1, "the texts are told apart"


def test_single_inputs_give_single_results(labelled: Predictor) -> None:
    one = labelled.predict(TEXTS[0])
    assert one["label"] == labelled.predict([TEXTS[0]])[0]["label"]
    pair = labelled.predict((TEXTS[0], TEXTS[1]))
    assert pair["score"] == pytest.approx(labelled.predict([[TEXTS[0], TEXTS[1]]])[0]["score"], abs=1e-6)
    both = labelled.predict(TEXTS[0], top_k=9)
    assert {two["label"] for two in both} == set(KINDS)
    assert sum(two["score"] for two in both) == pytest.approx(1)
    assert both[0]["score"] >= both[1]["score"]
    assert labelled.predict([]) == []
    assert labelled.predict_proba([]).shape == (0, 2)


def test_long_texts_are_read_in_windows(labelled: Predictor) -> None:
    """The answer is the softmax of the mean logits, every window computed by transformers."""
    model = theirs("BertForSequenceClassification", labelled)
    windows = text_windows([tokenizer().encode(LONG)], tokenizer(), length=LENGTH)
    rows = [tokenizer().frame(*parts, max_length=LENGTH) for parts in windows]
    with torch.no_grad():
        mean = torch.cat([model(**one).logits for one in inputs(rows)]).mean(0)
    found = labelled.predict_proba([LONG, TEXTS[0]])
    assert np.allclose(found[0], mean.softmax(-1), atol=1e-5)
    assert labelled.predict(LONG)["windows"] == len(rows) > 3
    assert "windows" not in labelled.predict(TEXTS[0])


@pytest.mark.parametrize("sizes", [(7,), (30,), (31,), (400,), (5, 24), (5, 25), (90, 5), (200, 90), (0, 60), (60, 0)])
def test_windows_cover_every_token(sizes: tuple[int, ...]) -> None:
    known = tokenizer()
    texts = [known.encode(" ".join(["iron", "gold", "is"] * size)[: 5 * size]) for size in sizes]
    rows = [known.frame(*parts, max_length=LENGTH) for parts in text_windows(texts, known, length=LENGTH)]
    for number, text in enumerate(texts):
        seen = {tuple(place) for row in rows for place in row.offsets[row.sequence_ids == number].tolist()}
        assert seen == {tuple(place) for place in text.offsets.tolist()}
    assert all(len(row) <= LENGTH and not any(row.truncated) for row in rows)
    fits = sum(map(len, texts)) <= LENGTH - 1 - len(texts)
    assert (len(rows) == 1) == fits


def test_regression_equals_transformers(tmp_path: Path) -> None:
    predictor = saved_predictor(tmp_path / "m", regress.Config())
    model = theirs("BertForSequenceClassification", predictor)
    with torch.no_grad():
        expected = [float(model(**one).logits) for one in inputs([framed(text) for text in TEXTS])]
    assert [one["score"] for one in predictor.predict(TEXTS)] == pytest.approx(expected, abs=1e-5)
    ranked = predictor.rank("red iron", TEXTS)
    with torch.no_grad():
        pairs = [float(model(**one).logits) for one in inputs([framed("red iron", text) for text in TEXTS])]
    assert [one["index"] for one in ranked] == np.argsort(-np.array(pairs), kind="stable").tolist()
    with pytest.raises(BertsmithError, match="no classify or multi_label head"):
        predictor.predict_proba(TEXTS)


def test_rank_by_label_and_by_embeddings(labelled: Predictor) -> None:
    ranked = labelled.rank("red iron", [*TEXTS, LONG])
    scores = {one["index"]: one["score"] for one in ranked}
    judged = labelled.predict_proba([("red iron", text) for text in [*TEXTS, LONG]])
    assert [scores[number] for number in range(5)] == pytest.approx(judged[:, 1].tolist(), abs=1e-6)
    assert [one["score"] for one in ranked] == sorted(scores.values(), reverse=True)
    assert next(one for one in ranked if one["index"] == 4)["windows"] > 1
    other = {one["index"]: one["score"] for one in labelled.rank("red iron", TEXTS, positive="no")}
    assert other[0] == pytest.approx(1 - scores[0], abs=1e-6)
    plain = Predictor(random_model(masked_lm.Config()), tokenizer())
    found = plain.rank("red iron", [*TEXTS, LONG])
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    first = next(one for one in found if one["index"] == 0)
    vectors = plain.encode(["red iron", TEXTS[0]])
    cosine = float(vectors[0] @ vectors[1] / np.prod(np.linalg.norm(vectors, axis=1)))
    assert first == {"index": 0, "score": pytest.approx(cosine, abs=1e-5), "text": TEXTS[0]}
    assert [one["index"] for one in found if one.get("truncated")] == [4]
    assert plain.similarity("red iron", TEXTS[0]) == pytest.approx(cosine, abs=1e-5)
    assert plain.similarity(TEXTS, ["red iron"]).shape == (4, 1)
    assert plain.rank("red iron", []) == []


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_entity_offsets_point_into_the_original_text(know: Predictor, form: Any) -> None:
    text = unicodedata.normalize(form, "🔥👩‍🔧 the Café, red-iron 쇠에서 a 쇠 🔥 gold.")
    found = know.ner(text)
    words = [unicodedata.normalize(form, word) for word in ("Café", "red-iron", "쇠에서", "쇠", "gold")]
    assert [one["word"] for one in found] == words
    assert [text[one["start"] : one["end"]] for one in found] == words
    assert [one["entity_group"] for one in found] == ["METAL", "COLOUR", "METAL", "METAL", "METAL"]
    assert all(0.99 < one["score"] <= 1 for one in found)
    parts = [(one["entity_group"], one["word"]) for one in know.ner(text, unit="part")]
    assert ("COLOUR", "red") in parts
    assert ("METAL", "iron") in parts


def test_entities_of_long_texts(know: Predictor) -> None:
    text = "🔥 the smith has gold . " * 40
    found = know.ner(text)
    assert [one["start"] for one in found] == [place for place in range(len(text)) if text.startswith("gold", place)]
    assert know.ner([text, "", "red"])[1:] == [[], know.ner("red")]
    assert know.ner([]) == []


def test_entity_scores_equal_transformers(tmp_path: Path) -> None:
    predictor = saved_predictor(tmp_path / "m", tag.Config(labels=TAGS))
    model = theirs("BertForTokenClassification", predictor)
    text = "the smith has red iron , gold . it is in the thing 쇠 which blue"
    row = framed(text)
    with torch.no_grad():
        likely = model(**inputs([row])[0]).logits[0].softmax(-1).max(-1)
    token_numbers = {tuple(offsets): number for number, offsets in enumerate(row.offsets.tolist())}
    alone = [one for one in predictor.ner(text) if (one["start"], one["end"]) in token_numbers]
    assert alone
    for one in alone:
        token = token_numbers[one["start"], one["end"]]
        assert one["score"] == pytest.approx(float(likely.values[token]), abs=1e-5)
        assert one["entity_group"] == TAGS[int(likely.indices[token])][2:]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("metal", METALS)
def test_answer_offsets_point_into_the_original_text(know: Predictor, form: Any, metal: str) -> None:
    word = unicodedata.normalize(form, metal.replace("cafe", "Café"))
    context = f"{'🔥 the smith has a thing . ' * 30}it is {word} 👩‍🔧{' in a thing' * 40}"
    found = know.answer("which thing is it", context)
    assert set(found) == {"answer", "score", "start", "end"}
    assert found["answer"] == context[found["start"] : found["end"]] == word


def test_answers_are_full_words(know: Predictor) -> None:
    context = "it has golds, irons in it"
    found = know.answer("which thing", context, top_k=5)
    assert {"golds", "irons"} <= {one["answer"] for one in found}
    for one in found:
        assert one["answer"] == context[one["start"] : one["end"]]
        assert not {"gold", "iron"} & set(re.findall(r"\w+", one["answer"]))
    assert len({one["answer"] for one in found}) == len(found)


def test_answers_at_window_borders_are_complete(know: Predictor) -> None:
    for before in range(LENGTH):
        found = know.answer("which thing", f"{'a ' * before}쇠에서{' a' * LENGTH}")
        assert (found["answer"], found["start"]) == ("쇠에서", 2 * before)


def test_answers_equal_transformers(tmp_path: Path) -> None:
    predictor = saved_predictor(tmp_path / "m", span.Config())
    model = theirs("BertForQuestionAnswering", predictor)
    context = "the smith has red iron , gold . it is in the thing"
    row = framed("which thing", context)
    with torch.no_grad():
        output = model(**inputs([row])[0])
    start, end = output.start_logits[0].numpy(), output.end_logits[0].numpy()
    places = np.flatnonzero(row.sequence_ids == 1)
    pairs = sorted(((start[a] + end[b], a, b) for a in places for b in places if a <= b), reverse=True)
    expected = [(row.offsets[a, 0], row.offsets[b, 1]) for _, a, b in pairs[:3]]
    found = predictor.answer("which thing", context, top_k=3)
    assert [(one["start"], one["end"]) for one in found] == expected
    ratio = np.exp(float(pairs[1][0] - pairs[0][0]))
    assert found[1]["score"] / found[0]["score"] == pytest.approx(ratio, rel=1e-4)
    null = float(start[0] + end[0] - pairs[0][0])  # the no-answer score minus the best one
    assert predictor.answer("which thing", context, no_answer=null + 0.01)["answer"] == found[0]["answer"]
    nothing = predictor.answer("which thing", context, no_answer=null - 0.01)
    assert (nothing["answer"], nothing["start"], nothing["end"]) == ("", 0, 0)
    learned = saved_predictor(tmp_path / "n", span.Config(no_answer=null - 0.01))
    assert learned.answer("which thing", context) == nothing
    assert learned.answer("which thing", context, no_answer=null + 0.01)["answer"] == found[0]["answer"]
    ordered = predictor.answer("which thing", context, no_answer=null - 0.01, top_k=3)
    assert [one["answer"] for one in ordered[:2]] == ["", found[0]["answer"]]


def test_truncation_is_reported(know: Predictor) -> None:
    assert know.answer("which thing " * 40, "it is gold")["truncated"] is True
    assert know.answer("which thing", "") == {"answer": "", "score": 0.0, "start": 0, "end": 0}
    chooser = Predictor(random_model(choose.Config()), tokenizer())
    assert chooser.choose(LONG, ["iron", "gold"])["truncated"] is True
    assert know.attention(LONG).truncated is True


def test_choices_equal_transformers(tmp_path: Path) -> None:
    predictor = saved_predictor(tmp_path / "m", choose.Config())
    model = theirs("BertForMultipleChoice", predictor)
    choices = ["iron", "gold", "a thing"]
    with torch.no_grad():
        logits = [
            model(**{name: x[None] for name, x in one.items()}).logits
            for one in inputs([framed(TEXTS[0], c) for c in choices])
        ]
    expected = torch.cat(logits).flatten().softmax(0)
    found = predictor.choose(TEXTS[0], choices)
    assert found["probabilities"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found["choice"] == choices[int(expected.argmax())] == choices[found["index"]]
    with pytest.raises(BertsmithError, match="this question: 1 choices"):
        predictor.choose("a", ["b"])


@pytest.mark.parametrize("second", [None, "it is 쇠에서 gold"])
def test_attention_equals_transformers(labelled: Predictor, second: str | None) -> None:
    text = "🔥 the smith has red iron"
    found = labelled.attention(text, second)
    model = theirs("BertModel", labelled, attn_implementation="eager")
    row = framed(text) if second is None else framed(text, second)
    with torch.no_grad():
        expected = torch.cat(model(**inputs([row])[0], output_attentions=True).attentions)
    assert found.weights.dtype == np.float32
    assert np.allclose(found.weights, expected, atol=1e-5)
    assert np.allclose(found.weights.sum(-1), 1, atol=1e-5)
    words = [
        ("", text, second or "")[side + 1][begin:end]
        for side, (begin, end) in zip(found.sequence_ids, found.offsets, strict=True)
    ]
    assert words[:3] == ["", "🔥", "the"]
    assert found.tokens[0] == "[CLS]"
    assert np.allclose(found.select(2, 3), expected[1, 2], atol=1e-5)
    assert np.allclose(found.select(), expected.mean((0, 1)), atol=1e-5)
    with pytest.raises(BertsmithError, match="layer 4 does not exist: choose 1 to 3"):
        found.select(layer=4)


def test_threads_share_a_predictor(know: Predictor, labelled: Predictor) -> None:
    texts = [f"{'the smith has ' * count} gold" for count in range(24)]

    def every(text: str) -> Any:
        return know.ner(text), know.answer("which thing", text), labelled.predict(text), labelled.attention(text).tokens

    alone = [every(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(every, texts)) == alone


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda one: one.predict("a"), r"no classify or multi_label or regress head \(heads: masked_lm\)"),
        (lambda one: one.predict_proba("a"), "no classify or multi_label head"),
        (lambda one: one.ner("a"), "no tag head"),
        (lambda one: one.answer("a", "b"), "no span head"),
        (lambda one: one.choose("a", ["b", "c"]), "no choose head"),
    ],
)
def test_a_missing_head_is_a_one_line_error(ask: Any, message: str) -> None:
    with pytest.raises(BertsmithError, match=message):
        ask(Predictor(random_model(masked_lm.Config()), tokenizer()))


def test_invalid_arguments(know: Predictor, labelled: Predictor) -> None:
    three = Predictor(random_model(classify.Config(labels=("a", "b", "c"))), tokenizer())
    for ask, message in (
        (lambda: labelled.predict("a", top_k=0), "at least 1"),
        (
            lambda: labelled.predict([("a", "b", "c")]),
            r"text 0 is tuple .*: it must be a string, or a tuple or list of two strings",
        ),
        (lambda: labelled.predict(["a", 3]), "text 1 is 3: it must be a string"),
        (lambda: labelled.rank("a", ["b"], positive="maybe"), "maybe is not one of the labels"),
        (lambda: three.rank("a", ["b"]), r"3 labels \(a, b, c\): name the label"),
        (lambda: know.ner("a", unit="line"), 'unit "line" does not exist'),
        (
            lambda: Predictor(random_model(tag.Config()), tokenizer()).ner("a"),
            r"labels \(LABEL_0, LABEL_1\) are not entity tags .*: use tag-words",
        ),
    ):
        with pytest.raises(BertsmithError, match=message):
            ask()


def test_a_tuple_of_two_strings_is_a_pair() -> None:
    assert as_texts(("a", "b")) == ([("a", "b")], True)
    assert as_texts((("a", "b"), ("c", "d"))) == ([("a", "b"), ("c", "d")], False)
    assert as_texts(["a", "b"]) == ([("a",), ("b",)], False)


@pytest.mark.parametrize("text", ["", "  \n ", "\x00", "\ud800 gold \ud83d", "\u0301", "☃" * 300, "gold" * 300])
def test_unusual_texts_have_results(know: Predictor, labelled: Predictor, text: str) -> None:
    assert 0 < labelled.predict(text)["score"] <= 1
    assert all(text[one["start"] : one["end"]] == one["word"] for one in know.ner(text))
    found = know.answer("which thing", text)
    assert text[found["start"] : found["end"]] == found["answer"]
    assert know.answer(text, "it is gold")["answer"] == "gold"
    assert np.allclose(know.attention(text).weights.sum(-1), 1, atol=1e-5)
