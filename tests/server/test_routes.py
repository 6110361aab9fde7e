"""Every route returns the results of the predictor, in the documented shapes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from server.http_fixtures import KINDS, client_for, predictor

from bertsmith.encoders import elmo
from bertsmith.inference.predictor import Predictor
from bertsmith.model_io.elmo_hdf5 import words_tokenizer
from bertsmith.model_io.folder_tokenizer import spelling
from bertsmith.model_io.model import Model
from bertsmith.model_io.sentence_transformers import DenseLayer, SentenceSettings
from bertsmith.server.server import running
from bertsmith.server.settings import Limits

TEXTS = ["the cats sat on a mat", "서울은 한국의 수도이다!", ""]
LONG = "the cat sat on a mat . " * 20


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_for(*KINDS, max_numbers=30_000) as found:
        yield found


def post_ok(client: httpx.Client, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def expect_error(client: httpx.Client, path: str, status: int, **body: Any) -> str:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error"].isprintable()
    return str(answer.json()["error"])


def test_embed_equals_the_predictor(client: httpx.Client) -> None:
    ours = predictor("words")
    for options in ({}, {"normalize": False}, {"pooling": "first", "layers": [0, -1], "combine": "concat"}):
        found = np.array(post_ok(client, "/embed", inputs=TEXTS, **options), np.float32)
        expected = ours.encode(TEXTS, **{"normalize": True} | options)
        np.testing.assert_allclose(found, expected, atol=1e-6)
    one = post_ok(client, "/embed", inputs=TEXTS[0])
    np.testing.assert_allclose(one, [ours.encode(TEXTS[0], normalize=True)], atol=1e-6)


def test_settings_of_a_sentence_transformers_folder() -> None:
    dense = DenseLayer(torch.randn(5, 32), None, tanh=True)
    prompts = {"query": "the cat ", "document": "a "}
    settings = SentenceSettings("max", max_length=8, prompts=prompts, default_prompt="query", dense=(dense,))
    ours = Predictor(predictor("words").model, predictor("words").tokenizer, sentence_settings=settings)
    with running({"ours": ours}, limits=Limits()) as address, httpx.Client(base_url=address, timeout=20) as client:
        for name in (None, "", "query", "document"):
            body = {"inputs": [*TEXTS, LONG], "truncate": True, "normalize": False, "prompt_name": name}
            expected = ours.encode([*TEXTS, LONG], prompt=name)
            assert expected.shape == (4, 5)
            np.testing.assert_allclose(post_ok(client, "/embed", **body), expected, atol=1e-6)
        assert "takes at most 8" in expect_error(client, "/embed", 413, inputs=LONG)
        seven = "the cat sat on a mat"  # with [CLS] and [SEP] 8 tokens, with the prompt 10
        assert "input 0 has 10 tokens" in expect_error(client, "/embed", 413, inputs=seven)
        assert "input 1 has 9 tokens" in expect_error(client, "/rerank", 413, query="cat", texts=[seven])
        assert "'query', 'document'" in expect_error(client, "/embed", 422, inputs="a", prompt_name="other")
        ranked = post_ok(client, "/rerank", query="cat", texts=["mat"])[0]["score"]
        cosine = ours.encode("cat", prompt="query", normalize=True) @ ours.encode(
            "mat", prompt="document", normalize=True
        )
        assert abs(ranked - cosine) < 1e-6
        answer = post_ok(client, "/v1/embeddings", input="cat", prompt_name="document", dimensions=5)
        expected = ours.encode("cat", prompt="document", normalize=True)
        np.testing.assert_allclose(answer["data"][0]["embedding"], expected, atol=1e-6)
        assert client.post("/v1/embeddings", json={"input": [5, 6]}).status_code == 422  # ids cannot have the prompt


def test_token_embeddings(client: httpx.Client) -> None:
    found = post_ok(client, "/embed_all", inputs=TEXTS[:2], layer=1)
    expected = predictor("words").embed_all(TEXTS[:2], layer=1).vectors
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert "--max-numbers" in expect_error(client, "/embed_all", 413, inputs=["the cat " * 17] * 32)


def test_long_texts_are_rejected_or_truncated(client: httpx.Client) -> None:
    line = expect_error(client, "/embed", 413, inputs=["the cat", LONG])
    assert "input 1 has 142 tokens" in line
    assert "takes at most 40" in line
    answer = client.post("/embed", json={"inputs": [LONG, "the cat", LONG], "truncate": True})
    assert answer.status_code == 200
    assert answer.headers["x-truncated"] == "0,2"
    assert "x-truncated" not in client.post("/embed", json={"inputs": "the cat"}).headers
    for path, body in {
        "/similarity": {"inputs": {"source_sentence": "the cat", "sentences": [LONG]}},
        "/rerank": {"query": "the cat", "texts": [LONG], "model": "words"},
        "/embed_all": {"inputs": LONG},
    }.items():
        assert "142 tokens" in expect_error(client, path, 413, **body)
        assert client.post(path, json={**body, "truncate": True}).status_code == 200
    too_long = client.post("/v1/embeddings", json={"input": LONG})
    assert too_long.status_code == 413
    assert "142 tokens" in too_long.json()["error"]["message"]


def test_similarity_and_rerank(client: httpx.Client) -> None:
    ours = predictor("words")
    found = post_ok(client, "/similarity", inputs={"source_sentence": TEXTS[0], "sentences": TEXTS[1:]})
    np.testing.assert_allclose(found, ours.similarity(TEXTS[0], TEXTS[1:])[0], atol=1e-6)
    ranked = post_ok(client, "/rerank", query="the mat", texts=TEXTS, model="words")
    expected = ours.rank("the mat", TEXTS)
    assert [one["index"] for one in ranked] == [one["index"] for one in expected]
    assert set(ranked[0]) == {"index", "score"}
    by_pairs = post_ok(
        client, "/rerank", query="the mat", texts=TEXTS, model="kinds", return_text=True, positive="dull"
    )
    expected = predictor("kinds").rank("the mat", TEXTS, positive="dull")
    assert [one["text"] for one in by_pairs] == [one["text"] for one in expected]
    np.testing.assert_allclose([one["score"] for one in by_pairs], [one["score"] for one in expected], atol=1e-6)


def test_predict(client: httpx.Client) -> None:
    one = post_ok(client, "/predict", inputs=TEXTS[0])
    assert [set(label) for label in one] == [{"label", "score"}] * 2
    assert one[0]["score"] >= one[1]["score"]
    several = post_ok(client, "/predict", inputs=[TEXTS[0], ["the cat", "a mat"]], top_k=1)
    expected = predictor("kinds").predict([TEXTS[0], ("the cat", "a mat")])
    assert [found[0]["label"] for found in several] == [found["label"] for found in expected]
    np.testing.assert_allclose([f[0]["score"] for f in several], [f["score"] for f in expected], atol=1e-6)
    (number,) = post_ok(client, "/predict", inputs=TEXTS[0], model="numbers")
    assert set(number) == {"score"}
    assert post_ok(client, "/predict", inputs=LONG)[0]["windows"] > 1
    assert "pair" in expect_error(client, "/predict", 422, inputs=[["a", "b", "c"]])


def test_fill_mask(client: httpx.Client) -> None:
    text, ours = "the [MASK] sat", predictor("words")
    found = post_ok(client, "/fill-mask", inputs=text, top_k=3)
    expected = ours.fill_mask(text, top_k=3)
    assert [one["token_str"] for one in found] == [one["token_str"] for one in expected]
    np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in expected], atol=1e-6)
    listed = post_ok(client, "/fill-mask", inputs=[text, "a [MASK]"], targets=["cat", "mat"])
    assert [sorted(one["token_str"] for one in some) for some in listed] == [["cat", "mat"]] * 2
    whole = post_ok(client, "/fill-mask", inputs=text, targets=["cat"], full_vocabulary=True)
    assert whole == [
        one | {"score": pytest.approx(one["score"])}
        for one in ours.fill_mask(text, targets=["cat"], full_vocabulary=True)
    ]
    assert whole[0]["score"] < ours.fill_mask(text, targets=["cat"])[0]["score"]
    assert "[MASK]" in expect_error(client, "/fill-mask", 422, inputs="no gap")
    assert "33 masks" in expect_error(client, "/fill-mask", 413, inputs="[MASK]" * 33)


def test_ner_qa_choose_and_next_sentence(client: httpx.Client) -> None:
    assert [len(one) for one in post_ok(client, "/ner", inputs=TEXTS[:2])] == list(
        map(len, predictor("places").ner(TEXTS[:2]))
    )
    found = post_ok(client, "/ner", inputs=TEXTS[0])
    expected = predictor("places").ner(TEXTS[0])
    assert [(one["start"], one["end"], one["entity_group"]) for one in found] == [
        (one["start"], one["end"], one["entity_group"]) for one in expected
    ]
    best = post_ok(client, "/qa", question="who sat?", context=LONG)
    assert best == pytest.approx(predictor("spans").answer("who sat?", LONG), rel=1e-4)
    listed = post_ok(client, "/qa", inputs={"question": "who sat?", "context": LONG}, top_k=3)
    assert len(listed) == 3
    assert LONG[listed[0]["start"] : listed[0]["end"]] == listed[0]["answer"]
    chosen = post_ok(client, "/choose", question="the cat", choices=["sat", "a mat"])
    expected = predictor("choices").choose("the cat", ["sat", "a mat"])
    assert (chosen["choice"], chosen["index"]) == (expected["choice"], expected["index"])
    follows = post_ok(client, "/next-sentence", first="the cat", second="a mat")
    assert follows == pytest.approx(predictor("words").next_sentence("the cat", "a mat"), rel=1e-4)
    order = post_ok(client, "/next-sentence", first="the cat", second="a mat", model="order")
    assert order == pytest.approx(predictor("order").next_sentence("the cat", "a mat"), rel=1e-4)
    assert order["objective"] == "sentence_order"


def test_words_and_labels(client: httpx.Client) -> None:
    expected = predictor("parts of speech").tag_words(TEXTS[:2])
    found = post_ok(client, "/tag-words", inputs=TEXTS[:2], model="parts of speech")
    assert found == [[one | {"score": pytest.approx(one["score"])} for one in some] for some in expected]
    assert set(found[0][0]) == {"word", "label", "score", "start", "end"}
    assert {one["label"] for one in post_ok(client, "/tag-words", inputs=TEXTS[0])} <= {"O", "B-PLACE", "I-PLACE"}
    line = expect_error(client, "/ner", 422, inputs=TEXTS[0], model="parts of speech")
    assert "NOUN, VERB, ADJ" in line
    assert "tag-words" in line
    with client_for("parts of speech", "places") as other:  # the first model whose labels are entities
        assert post_ok(other, "/ner", inputs=TEXTS) == post_ok(client, "/ner", inputs=TEXTS, model="places")
        routes = {one["name"]: set(one["routes"]) for one in other.get("/info").json()["models"]}
        assert {"ner", "tag-words"} & routes["parts of speech"] == {"tag-words"}
        assert {"ner", "tag-words"} <= routes["places"]


def test_qa_fields_are_either_nested_or_at_the_top_level(client: httpx.Client) -> None:
    assert "question and context" in expect_error(client, "/qa", 422, question="who?")
    passage = {"question": "who?", "context": "the cat"}
    assert "either" in expect_error(client, "/qa", 422, question="who?", inputs=passage)
    assert "2 to 100" in expect_error(client, "/choose", 422, question="the cat", choices=["sat"])


def test_tokenize_route(client: httpx.Client) -> None:
    text = "The cats, 서울은"
    (found,) = post_ok(client, "/tokenize", inputs=text)
    assert [one["text"] for one in found] == ["[CLS]", "the", "cat", "##s", ",", "서울", "##은", "[SEP]"]
    assert [text[one["start"] : one["stop"]] for one in found] == ["", "The", "cat", "s", ",", "서울", "은", ""]
    assert [one["special"] for one in found] == [True, *[False] * 6, True]
    (bare,) = post_ok(client, "/tokenize", inputs=[text], add_special_tokens=False)
    assert [one["id"] for one in bare] == [one["id"] for one in found[1:-1]]
    assert len(post_ok(client, "/tokenize", inputs=LONG)[0]) == 142  # nothing is cut
    assert "--max-numbers" in expect_error(client, "/tokenize", 413, inputs=["the " * 900] * 30)


def test_attention(client: httpx.Client) -> None:
    expected = predictor("words").attention("the cat", "a mat")
    found = post_ok(client, "/attention", inputs="the cat", second="a mat")
    assert found["tokens"] == list(expected.tokens)
    assert found["sequence_ids"] == expected.sequence_ids.tolist()
    np.testing.assert_allclose(found["attention"], expected.weights, atol=1e-5)
    one = post_ok(client, "/attention", inputs="the cat", second="a mat", layer=2, head=3)["attention"]
    np.testing.assert_allclose(one, expected.weights[1:2, 2:3], atol=1e-5)
    assert post_ok(client, "/attention", inputs=LONG, layer=1)["truncated"] is True
    assert "1 to 2" in expect_error(client, "/attention", 422, inputs="the cat", layer=3)


def test_encoders_without_attention() -> None:
    encoder = elmo.Config(width=8, hidden=16, filters=((1, 8), (2, 8)))
    words = Predictor(Model.build(encoder, []), spelling(words_tokenizer(), reads_ids=False))
    with running({"elmo": words}, limits=Limits()) as address, httpx.Client(base_url=address, timeout=20) as client:
        (served,) = client.get("/info").json()["models"]
        assert served["attention_heads"] is None
        assert "attention" not in served["routes"]
        assert "word-contexts" in served["routes"]
        for body in ({"model": "elmo"}, {}):
            assert "no attention" in expect_error(client, "/attention", 422, inputs="the cat", **body)


def test_word_contexts(client: httpx.Client) -> None:
    texts = ["the *cat*", "a *mat*", "*서울*은"]
    found = post_ok(client, "/word-contexts", inputs=texts, layer=1)
    expected = predictor("words").word_contexts(texts, layer=1)
    np.testing.assert_allclose(found["similarity"], expected.similarity, atol=1e-3)
    assert [one["word"] for one in found["sentences"]] == ["cat", "mat", "서울"]
    assert "asterisks" in expect_error(client, "/word-contexts", 422, inputs=["a", "b"])


def test_openai_client(client: httpx.Client) -> None:
    theirs = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0)
    ours = predictor("words")
    listed = theirs.embeddings.create(input=TEXTS[:2], model="words")
    np.testing.assert_allclose(
        [one.embedding for one in listed.data], ours.encode(TEXTS[:2], normalize=True), atol=1e-6
    )
    assert listed.usage.prompt_tokens == sum(ours.count_tokens(TEXTS[:2]))
    plain = theirs.embeddings.create(input=TEXTS[0], model="words", encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, ours.encode(TEXTS[0], normalize=True), atol=1e-6)
    ids = ours.tokenizer.encode(TEXTS[0]).ids.tolist()
    by_ids = theirs.embeddings.create(input=[ids, ids[:2]], model="words")
    np.testing.assert_allclose(by_ids.data[0].embedding, ours.encode(TEXTS[0], normalize=True), atol=1e-6)
    short = theirs.embeddings.create(input=TEXTS[0], model="words", dimensions=8)
    assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert [one.id for one in theirs.models.list()] == list(KINDS)
    with pytest.raises(openai.NotFoundError, match="no model has that name"):
        theirs.embeddings.create(input="the cat", model="ada")
    with pytest.raises(openai.UnprocessableEntityError, match="outside the vocabulary"):
        theirs.embeddings.create(input=[10**6], model="words")


def test_base64_is_little_endian_float32(client: httpx.Client) -> None:
    coded = post_ok(client, "/v1/embeddings", input="the cat", encoding_format="base64")["data"][0]["embedding"]
    found = np.frombuffer(base64.b64decode(coded), "<f4")
    np.testing.assert_allclose(found, predictor("words").encode("the cat", normalize=True), atol=1e-6)


def test_model_is_selected_by_field_path_or_route(client: httpx.Client) -> None:
    text = "the cat sat"
    vectors = {name: post_ok(client, "/embed", inputs=text, model=name) for name in ("words", "spans")}
    assert vectors["words"] != vectors["spans"]
    assert post_ok(client, "/embed", inputs=text) == vectors["words"]
    assert post_ok(client, "/models/spans/embed", inputs=text) == vectors["spans"]
    assert post_ok(client, "/models/spans/v1/embeddings", input=text)["model"] == "spans"
    assert "words, kinds" in expect_error(client, "/embed", 404, inputs=text, model="none")
    assert "words, kinds" in expect_error(client, "/models/none/embed", 404, inputs=text)
    line = expect_error(client, "/ner", 422, inputs=text, model="words")
    assert "needs a model with a tag head: words has masked_lm, next_sentence" in line


def test_limit_errors_have_value_and_flag(client: httpx.Client) -> None:
    assert "33 texts, at most 32 (--max-texts)" in expect_error(client, "/embed", 413, inputs=["a"] * 33)
    assert "33 texts, at most 32 (--max-texts)" in expect_error(client, "/rerank", 413, query="a", texts=["a"] * 33)
    assert "--max-bytes-per-text" in expect_error(client, "/embed", 413, inputs="a" * 70_000)
    assert "--max-numbers" in expect_error(client, "/embed", 413, inputs=["a"] * 32, layers=[-1] * 64, combine="concat")
    assert "at least one" in expect_error(client, "/embed", 422, inputs=[])


def test_fields_are_strict_and_suggest_the_nearest_name(client: httpx.Client) -> None:
    assert "did you mean truncate?" in expect_error(client, "/embed", 422, inputs="a", truncat=True)
    assert "truncate: Input should be a valid boolean" in expect_error(
        client, "/embed", 422, inputs="a", truncate="yes"
    )
    assert "inputs[1]" in expect_error(client, "/embed", 422, inputs=["a", 3])
    assert "inputs: Field required" in expect_error(client, "/embed", 422)
    assert "top_k" in expect_error(client, "/fill-mask", 422, inputs="[MASK]", top_k=0)
    assert client.post("/embed", json=["a"]).status_code == 422
