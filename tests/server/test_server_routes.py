"""Routes about the server: health, models, metrics, documentation; and its log."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import httpx
import pytest
import torch
from server.http_fixtures import KINDS, client_for, predictor

from bertsmith.errors import BertsmithError
from bertsmith.inference.predictor import Predictor
from bertsmith.server import routes_generate, routes_translate, schemas
from bertsmith.server.monitoring import Log
from bertsmith.server.server import running
from bertsmith.server.settings import Limits, name_models


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_for(*KINDS) as found:
        yield found


def test_health_runs_a_forward_pass(client: httpx.Client) -> None:
    with mock.patch("bertsmith.server.service.HEALTH_CACHE_SECONDS", 0.0):
        assert client.get("/health").json() == {"status": "ok"}
        weight = next(predictor("spans").model.encoder.parameters())
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(torch.nan)
        try:
            answer = client.get("/health")
            assert (answer.status_code, answer.json()) == (503, {"status": "failing", "models": ["spans"]})
            damaged = client.post("/embed", json={"inputs": "the cat", "model": "spans"})
            assert (damaged.status_code, damaged.json()["error_type"]) == (503, "unhealthy")
        finally:
            with torch.no_grad():
                weight.copy_(kept)
        assert client.get("/health").json() == {"status": "ok"}


def test_health_is_cached() -> None:
    with client_for("words") as client:
        for _ in range(5):
            assert client.get("/health").status_code == 200
        text = client.get("/metrics").text
        assert re.search(r'bertsmith_batch_seconds_count\{model="words"\} 1\.0', text)


def test_info(client: httpx.Client) -> None:
    found = client.get("/info").json()
    assert [one["name"] for one in found["models"]] == list(KINDS)
    words, kinds = found["models"][:2]
    assert words["heads"] == ["masked_lm", "next_sentence"]
    assert {"embed", "rerank", "fill-mask", "next-sentence"} < set(words["routes"])
    assert "qa" not in words["routes"]
    assert words["mask_token"] == "[MASK]"
    assert (words["layers"], words["attention_heads"], words["max_length"]) == (2, 4, 40)
    assert kinds["labels"] == ["dull", "fine"]
    assert kinds["parameters"] == sum(value.numel() for value in predictor("kinds").model.parameters())
    assert found["limits"]["max_texts"] == 32


def test_metrics_count_what_happened() -> None:
    with client_for("words") as client:
        tokens = 0
        for text in ("the cat", "the cat sat on a mat"):
            assert client.post("/embed", json={"inputs": text}).status_code == 200
            tokens += predictor("words").count_tokens([text])[0]
        client.post("/embed", json={"inputs": "the cat " * 60, "truncate": True})
        client.post("/embed", json={"inputs": 3})
        client.get("/who-was-here")
        text = client.get("/metrics").text
        assert 'bertsmith_requests_total{route="/embed",status="200"} 3.0' in text
        assert 'bertsmith_requests_total{route="/embed",status="422"} 1.0' in text
        assert 'bertsmith_requests_total{route="unknown",status="404"} 1.0' in text
        assert f'bertsmith_tokens_total{{route="/embed"}} {tokens + 40}.0' in text
        assert f'bertsmith_batch_tokens_sum{{model="words"}} {tokens + 40}.0' in text
        assert "bertsmith_truncations_total 1.0" in text
        assert 'bertsmith_queue_tokens{model="words"} 0.0' in text
        assert "bertsmith_in_flight 1.0" in text  # the one that asks
        assert "who-was-here" not in text


def test_openapi_examples_are_valid_and_docs_are_self_contained(client: httpx.Client) -> None:
    schema = client.get("/openapi.json").json()
    posts = [path for path, methods in schema["paths"].items() if "post" in methods]
    assert len(posts) == 17
    page = client.get("/docs")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    address = str(client.base_url).rstrip("/")
    assert not re.search(r"https?://|<style| style=", page.text.replace(address, ""))
    for path in posts:
        content = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        name = content["$ref"].rsplit("/", 1)[-1]
        (example,) = schema["components"]["schemas"][name]["examples"]
        (vars(schemas) | vars(routes_generate) | vars(routes_translate))[name].model_validate(example)
        assert f"POST {path}<" in page.text
        body = {key: value for key, value in example.items() if key != "model"}
        answer = client.post(path, json=body)
        assert answer.status_code == 200, (path, answer.text)
        assert "429" in schema["paths"][path]["post"]["responses"]


def test_examples_of_the_documentation_have_the_address_of_the_request(client: httpx.Client) -> None:
    page = client.get("/docs", headers={"host": "localhost:4711"}).text
    assert "http://localhost:4711</span>/embed" in page
    assert not re.search(r"8080|Authorization", page)
    with client_for("words", api_key="0123456789abcdef") as closed:
        page = closed.get("/docs", headers={"host": 'a"><b>:1'}).text
        assert "Authorization: Bearer $BERTSMITH_KEY" in page
        assert "<b>" not in page


def test_log_lines_contain_no_request_data() -> None:
    lines: list[str] = []
    with client_for("words", log=Log(as_json=True, write=lines.append)) as client:
        answer = client.post("/embed?secret=1", json={"inputs": "the secret cat"}, headers={"x-secret": "secret"})
        client.get("/secret")
    asked, wrong = (json.loads(line) for line in lines[:2])
    assert {**asked, "time": "", "ms": 0.0} == {
        "time": "",
        "event": "request",
        "method": "POST",
        "path": "/embed",
        "status": 200,
        "ms": 0.0,
        "tokens": predictor("words").count_tokens(["the secret cat"])[0],
        "id": answer.headers["x-request-id"],
    }
    assert (wrong["path"], wrong["status"]) == ("unknown", 404)
    assert "secret" not in "".join(lines)
    plain: list[str] = []
    with client_for("words", log=Log(write=plain.append)) as client:
        client.get("/info")
    assert re.fullmatch(r"\S+Z GET /info 200 \S+ ms 0 tokens [0-9a-f]{16}", plain[0])


def test_internal_errors_hide_their_message() -> None:
    lines: list[str] = []
    with (
        client_for("words", log=Log(write=lines.append)) as client,
        mock.patch.object(Predictor, "embed", side_effect=RuntimeError("secret")),
    ):
        answer = client.post("/embed", json={"inputs": "the cat"})
        assert (answer.status_code, answer.json()["error_type"]) == (500, "internal")
        assert answer.headers["x-request-id"] in answer.json()["error"]
        assert client.get("/info").status_code == 200
    assert "secret" not in answer.text + "".join(lines)
    assert re.search(r"internal error RuntimeError at \S+\.py:\d+ < ", "".join(lines))


def test_deadline_exceeded_is_503() -> None:
    held, over = threading.Event(), threading.Event()
    slow = mock.patch.object(Predictor, "embed", side_effect=lambda *args, **options: (held.wait(20), over.set()))
    with client_for("words", deadline=0.2) as client, slow:
        answer = client.post("/embed", json={"inputs": "the cat"})
        assert not over.is_set(), "the answer did not wait for the work"
        held.set()
        assert (answer.status_code, answer.json()["error_type"]) == (503, "deadline")
        assert "--deadline" in answer.json()["error"]


def test_limits_must_be_positive() -> None:
    for wrong in ({"max_texts": 0}, {"deadline": -1.0}, {"batch_tokens": 0}):
        with pytest.raises(BertsmithError, match="greater than 0"):
            Limits(**wrong)


def test_model_names(tmp_path: Path) -> None:
    for name in ("a/bert", "b/bert", "run/best", "odd=name"):
        (tmp_path / name).mkdir(parents=True)
    words = [f"{tmp_path}/{name}" for name in ("a/bert", "b/bert", "run/best", "odd=name")]
    assert [name for name, _ in name_models([*words, f"mine={tmp_path}/a/bert"])] == [
        "bert",
        "bert-2",
        "run",
        "odd-name",
        "mine",
    ]
    with pytest.raises(BertsmithError, match="two models are named x"):
        name_models([f"x={tmp_path}/a", f"x={tmp_path}/b"])


def test_a_server_leaves_no_thread_behind() -> None:
    import threading

    before = set(threading.enumerate())
    with running({"words": predictor("words")}) as address:
        assert httpx.post(f"{address}/embed", json={"inputs": "the cat"}).status_code == 200
    deadline = time.monotonic() + 3
    while left := [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
