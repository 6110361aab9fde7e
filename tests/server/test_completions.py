"""/v1/completions returns generated texts in OpenAI's format, within the limits of every route."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from inference.generation_fixtures import random_lm, wordpiece
from inference.predictor_fixtures import random_model
from server.http_fixtures import open_connection, post

from bertsmith.encoders import bert
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import masked_lm
from bertsmith.server.server import running
from bertsmith.server.settings import Limits

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def model() -> Predictor:
    return random_lm(max_positions=256)


@pytest.fixture(scope="module")
def client(model: Predictor) -> Iterator[httpx.Client]:
    models = {"gpt": model, "bert": Predictor(random_model(masked_lm.Config()), wordpiece())}
    with (
        running(models, limits=Limits(max_queued_tokens=2000)) as address,
        httpx.Client(base_url=address, timeout=20) as found,
    ):
        yield found


def parts_of(answer: httpx.Response) -> list[Any]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_openai_clients_get_the_texts_of_the_predictor(client: httpx.Client, model: Predictor) -> None:
    theirs = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="-", max_retries=0)
    expected = model.generate(["the smith", "iron"], max_new_tokens=12)
    answer = theirs.completions.create(model="gpt", prompt=["the smith", "iron"], **GREEDY)
    assert [one.text for one in answer.choices] == [one["text"] for one in expected]
    assert [one.finish_reason for one in answer.choices] == ["length"] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 24, 27)
    stop = expected[0]["text"][8:11]
    options: dict[str, Any] = {"n": 2, "stop": [stop], "seed": 3, "top_p": 0.9, "echo": True, "max_tokens": 30}
    sampled = theirs.completions.create(model="gpt", prompt="the smith", **options)
    ours = model.generate("the smith", samples=2, stop=[stop], seed=3, top_p=0.9, temperature=1.0, max_new_tokens=30)
    assert [one.text for one in sampled.choices] == ["the smith" + one["text"] for one in ours]
    texts = ["", ""]
    for part in theirs.completions.create(model="gpt", prompt="the smith", stream=True, **options):
        texts[part.choices[0].index] += part.choices[0].text
    assert texts == [one.text for one in sampled.choices]


def test_both_content_types_are_documented(client: httpx.Client) -> None:
    responses = client.get("/openapi.json").json()["paths"]["/v1/completions"]["post"]["responses"]
    for stream in (False, True):
        answer = client.post("/v1/completions", json={"prompt": "the smith", "stream": stream, **GREEDY})
        assert answer.headers["content-type"].partition(";")[0] in responses["200"]["content"]
    assert "$ref" in responses["200"]["content"]["application/json"]["schema"]


def test_parts_and_log_probabilities(client: httpx.Client, model: Predictor) -> None:
    body = {"prompt": "the smith", "logprobs": 3, **GREEDY}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    ours = model.generate("the smith", max_new_tokens=12, top_logprobs=3)
    assert choice["logprobs"]["tokens"] == [one["token_str"] for one in ours["logprobs"]]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx([one["logprob"] for one in ours["logprobs"]])
    assert [len(one) for one in choice["logprobs"]["top_logprobs"]] == [3] * 12
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    parts = parts_of(client.post("/v1/completions", json=body | {"stream": True}))
    assert "".join(one["choices"][0]["text"] for one in parts) == choice["text"]
    assert [one["choices"][0]["finish_reason"] for one in parts] == [None] * (len(parts) - 1) + ["length"]
    assert parts[-1]["choices"][0]["logprobs"] == choice["logprobs"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"temperature": -1}, 422, "temperature: Input should be greater than or equal to 0"),
        ({"top_p": 0}, 422, "top_p: Input should be greater than 0"),
        ({"n": 100}, 413, "100 texts to generate, at most 32 (--max-texts)"),
        ({"n": 1000}, 422, "n: Input should be less than or equal to 128"),
        ({"n": 2, "temperature": 0}, 422, "n=2 with temperature=0 would give equal texts"),
        ({"max_tokens": 300}, 422, "at most 254 new tokens fit, not max_tokens=300"),
        ({"prompt": []}, 422, "the request has no prompts"),
        ({"prompt": ["the smith"] * 20, "max_tokens": 100}, 413, "at most 2,000 (--max-queued-tokens)"),
        ({"model": "bert"}, 422, "/v1/completions needs a model with a causal_lm head: bert has masked_lm"),
        ({"max_token": 3}, 422, "did you mean max_tokens?"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_openais_format(
    client: httpx.Client, change: dict[str, Any], status: int, message: str, stream: bool
) -> None:
    answer = client.post("/v1/completions", json={"prompt": "the smith", "stream": stream} | change)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_disconnected_client_stops_the_generation(model: Predictor) -> None:
    def metric(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"bertsmith_{name}"))

    slow = random_lm(bert, layers=48, width=64, max_positions=512)
    with running({"gpt": slow}, limits=Limits()) as address, httpx.Client(base_url=address, timeout=20) as client:
        for stream in (True, False):
            before = metric("batch_tokens_count")
            body = {"prompt": "the smith", "max_tokens": 500, "temperature": 0, "stream": stream}
            with open_connection(address) as connection:
                connection.sendall(post("/v1/completions", body))
                if stream:
                    assert b"text/event-stream" in connection.recv(4096)
                else:
                    time.sleep(0.2)
            until = time.monotonic() + 10
            while metric("in_flight") > 1 and time.monotonic() < until:
                time.sleep(0.02)
            time.sleep(0.3)
            settled = metric("batch_tokens_count")
            time.sleep(0.3)
            assert metric("batch_tokens_count") == settled
            assert settled - before < 400  # of 500 steps


def test_a_late_generation_ends_with_an_error_event() -> None:
    slow = random_lm(layers=48, width=64, max_positions=512)
    with running({"gpt": slow}, limits=Limits(deadline=0.5)) as address:
        body = {"prompt": "the smith", "max_tokens": 500, "temperature": 0}
        late = httpx.post(f"{address}/v1/completions", json=body, timeout=20)
        assert late.status_code == 503
        assert "no response within 0.5 s" in late.json()["error"]["message"]
        events = httpx.post(
            f"{address}/v1/completions", json=body | {"stream": True, "echo": True}, timeout=20
        ).text.split("\n\n")
        assert json.loads(events[0].removeprefix("data: "))["choices"]
        assert json.loads(events[-2].removeprefix("data: "))["error"]["type"] == "deadline"
