"""/translate returns the translations of the predictor, within the limits of every route."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from inference.generation_fixtures import random_translator
from server.http_fixtures import open_connection, post, predictor

from bertsmith.inference.predictor import Predictor
from bertsmith.server.server import running
from bertsmith.server.settings import Limits

TEXTS = ["the smith", "", "쇠"]
SHORT: dict[str, Any] = {"max_extra_tokens": 2}


@pytest.fixture(scope="module")
def model() -> Predictor:
    return predictor("translations")


@pytest.fixture(scope="module")
def client(model: Predictor) -> Iterator[httpx.Client]:
    models = {"words": predictor("words"), "mt": model}
    limits = Limits(max_queued_tokens=2000, max_numbers=4000)
    with running(models, limits=limits) as address, httpx.Client(base_url=address, timeout=20) as found:
        yield found


def ok(client: httpx.Client, **body: Any) -> Any:
    answer = client.post("/translate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_results_equal_those_of_the_predictor(client: httpx.Client, model: Predictor) -> None:
    assert ok(client, inputs=TEXTS[0], **SHORT) == model.translate(TEXTS[0], **SHORT)
    assert ok(client, inputs=TEXTS, **SHORT) == model.translate(TEXTS, **SHORT)
    options: dict[str, Any] = {"beam_size": 3, "n_best": 2, "length_penalty": 0.2, **SHORT}
    assert ok(client, inputs=TEXTS, **options) == model.translate(TEXTS, **options)
    greedy = ok(client, inputs=TEXTS[0], beam_size=1, **SHORT)
    assert greedy == model.translate(TEXTS[0], beam_size=1, **SHORT)
    assert greedy.keys() == {"text", "score", "logprob", "finish_reason"}


def test_attention_of_each_translation(client: httpx.Client, model: Predictor) -> None:
    expected = model.translate(TEXTS[0], n_best=2, attention=True, **SHORT)
    for kind in ("mean", "heads"):
        found = ok(client, inputs=TEXTS[0], n_best=2, attention=kind, **SHORT)
        for one, ours in zip(found, expected, strict=True):
            assert one["text"] == ours["text"]
            assert tuple(one["source_tokens"]) == ours["attention"].source_tokens
            assert tuple(one["target_tokens"]) == ours["attention"].target_tokens
            weights = ours["attention"].select() if kind == "mean" else ours["attention"].weights
            np.testing.assert_allclose(one["attention"], weights, atol=1e-5)


def test_long_texts_are_errors_or_truncated(client: httpx.Client, model: Predictor) -> None:
    texts = ["the", "iron " * 60]
    refused = client.post("/translate", json={"inputs": texts, "beam_size": 1})
    assert refused.status_code == 413
    tokens = len(model.tokenizer.encode(("iron " * 60).strip())) + 1
    message = f'input 1 has {tokens} tokens; this model takes at most 96: shorten it or set "truncate": true'
    assert refused.json() == {"error": message, "error_type": "too_large"}
    answer = client.post("/translate", json={"inputs": texts, "beam_size": 1, "truncate": True})
    assert (answer.status_code, answer.headers["x-truncated"]) == (200, "1")
    assert [one.get("truncated") for one in answer.json()] == [None, True]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"beam_size": 65}, 422, "beam_size: Input should be less than or equal to 64"),
        ({"beam_size": 2, "n_best": 3}, 422, "n_best=3: it must be from 1 to beam_size=2"),
        ({"length_penalty": -1}, 422, "length_penalty: Input should be greater than or equal to 0"),
        ({"inputs": []}, 422, "the request has no texts"),
        ({"inputs": ["a"] * 33}, 413, "33 texts, at most 32 (--max-texts)"),
        ({"inputs": ["a"] * 9, "n_best": 4}, 413, "36 translations, at most 32 (--max-texts)"),
        ({"inputs": ["the smith"] * 30}, 413, "tokens, at most 2,000 (--max-queued-tokens)"),
        ({"inputs": "the " * 20, "attention": "heads", "n_best": 4}, 413, "the attention weights have"),
        ({"beam": 4}, 422, "unknown field; did you mean beam_size?"),
        ({"model": "words"}, 422, "/translate needs a model with a translation head: words has masked_lm, next_"),
    ],
)
def test_errors_are_one_line(client: httpx.Client, change: dict[str, Any], status: int, message: str) -> None:
    answer = client.post("/translate", json={"inputs": "the smith"} | change)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_other_routes_refuse_a_translation_model(client: httpx.Client) -> None:
    info = {one["name"]: one["routes"] for one in client.get("/info").json()["models"]}
    assert info["mt"] == ["tokenize", "translate"]
    assert "translate" not in info["words"]
    bodies: dict[str, Any] = {
        "embed": {"inputs": "a"},
        "embed_all": {"inputs": "a"},
        "attention": {"inputs": "a"},
        "similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
        "rerank": {"query": "a", "texts": ["b"]},
    }
    for route, body in bodies.items():
        answer = client.post(f"/models/mt/{route}", json=body)
        expected = f"/{route} needs an encoder, and mt can only translate: send texts to /translate"
        assert (answer.status_code, answer.json()["error"]) == (422, expected)
    answer = client.post("/models/mt/v1/completions", json={"prompt": "a"})
    expected = "/v1/completions needs a model with a causal_lm head: mt has translation"
    assert (answer.status_code, answer.json()["error"]["message"]) == (422, expected)
    assert client.post("/models/mt/tokenize", json={"inputs": "a"}).status_code == 200
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200  # of the model that can
    assert client.get("/health").json() == {"status": "ok"}


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"bertsmith_{name}"))


def test_metrics_count_requests_tokens_and_truncated_texts(model: Predictor) -> None:
    with running({"mt": model}) as address, httpx.Client(base_url=address, timeout=20) as client:
        ok(client, inputs="the smith", beam_size=1, max_extra_tokens=0)
        ok(client, inputs="iron " * 60, beam_size=1, max_extra_tokens=0, truncate=True)
        assert metric(client, 'requests_total{route="/translate",status="200"}') == 2
        assert metric(client, "truncations_total") == 1
        tokens, steps = metric(client, 'tokens_total{route="/translate"}'), metric(client, "batch_tokens_count")
        assert steps > 4  # a search is many short batches
        assert tokens == metric(client, "batch_tokens_sum") == 4 + 96 + steps


def test_a_long_search_stops_with_its_client_and_delays_no_other() -> None:
    slow = random_translator(ends=False, layers=16, width=64, max_positions=1024)
    body: dict[str, Any] = {"inputs": ["iron " * 20] * 4, "beam_size": 1, "max_extra_tokens": 400}
    with running({"mt": slow}) as address, httpx.Client(base_url=address, timeout=20) as client:
        with open_connection(address) as connection:
            connection.sendall(post("/translate", body))
            time.sleep(0.3)
            began = time.monotonic()
            ok(client, inputs="the", beam_size=1, max_extra_tokens=2)
            waited = time.monotonic() - began
            assert metric(client, "in_flight") == 2  # the long one goes on
        until = time.monotonic() + 10
        while metric(client, "in_flight") > 1 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.2)  # for the step that runs
        steps = metric(client, "batch_tokens_count")
        time.sleep(0.2)
        assert metric(client, "batch_tokens_count") == steps < 200  # of 500
        assert waited < 3


def test_late_translations_and_searches_that_hold_too_much_memory() -> None:
    slow = random_translator(ends=False, layers=16, width=64, max_positions=1024)
    body: dict[str, Any] = {"inputs": ["iron " * 20] * 4, "beam_size": 1, "max_extra_tokens": 400}
    with running({"mt": slow}, limits=Limits(deadline=1.0, max_queued_tokens=3500)) as address:
        late: list[httpx.Response] = []
        first = threading.Thread(target=lambda: late.append(httpx.post(f"{address}/translate", json=body, timeout=20)))
        first.start()
        time.sleep(0.3)
        refused = httpx.post(f"{address}/translate", json=body, timeout=20)
        first.join()
        assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded"), refused.text
        assert late[0].status_code == 503
        assert late[0].json() == {"error": "no response within 1 s (--deadline)", "error_type": "deadline"}
