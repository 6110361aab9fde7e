"""Requests that try to exhaust or misuse a server: by their size, their number, or their Host header."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import httpx
import pytest
from faults.server_fixtures import costly, served
from server.http_fixtures import JSON, client_for, open_connection, post, predictor, send_raw

from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import DeadlineExceeded, deadline
from bertsmith.inference.predictor import Predictor
from bertsmith.server.errors import RequestError
from bertsmith.server.middleware import BUFFERED_BODIES, LARGE_BODY, Gateway
from bertsmith.server.monitoring import Log, RequestContext
from bertsmith.server.server import OVERFLOW_CONNECTIONS, running
from bertsmith.server.service import Service
from bertsmith.server.settings import AllowedHosts, Limits

LONG = "a b " * 15_000  # within --max-bytes-per-text


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_for("words", "kinds", "places", "spans", "translations") as found:
        yield found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/predict", {"inputs": [LONG] * 32}),
        ("/predict", {"inputs": [["a b " * 5000] * 2]}),  # every window of one text with every window of the other
        ("/rerank", {"query": "a b " * 5000, "texts": ["a b " * 5000], "model": "kinds"}),
        ("/tokenize", {"inputs": [LONG] * 32}),
        ("/fill-mask", {"inputs": [f"[MASK] {LONG}"] * 32}),
        ("/ner", {"inputs": [LONG] * 32}),
        ("/qa", {"question": "a", "context": LONG}),
        ("/translate", {"inputs": [LONG] * 32, "truncate": True}),
        ("/translate", {"inputs": ["a b " * 20] * 32, "beam_size": 64}),  # the tokens of all hypotheses
    ],
)
def test_a_request_is_bounded_by_what_can_be_computed(client: httpx.Client, path: str, body: Any) -> None:
    began = time.monotonic()
    answers: list[int] = []
    others = threading.Thread(target=lambda: answers.append(_embed(client)))
    others.start()
    answer = client.post(path, json=body)
    others.join()
    assert (answer.status_code, answer.json()["error_type"]) == (413, "too_large"), answer.text[:200]
    assert "tokens, at most 65,536 (--max-queued-tokens)" in answer.json()["error"]
    assert answers == [200]
    assert time.monotonic() - began < 5


def test_responses_are_bounded(client: httpx.Client) -> None:
    answer = client.post("/fill-mask", json={"inputs": "[MASK] a " * 30 + "a b " * 2000, "top_k": 1000})
    assert (answer.status_code, answer.json()["error_type"]) == (413, "too_large")
    assert "characters, at most 4,194,304 (--max-numbers)" in answer.json()["error"]


def _embed(client: httpx.Client) -> int:
    return client.post("/embed", json={"inputs": "the cat"}).status_code


def test_a_request_is_bounded_by_its_deadline() -> None:
    slow = {"cost": 0.05, "deadline": 1.0, "batch_tokens": 6}
    with served(**slow) as address, httpx.Client(base_url=address) as client:
        for most in (0.6, 0.2):  # the first measures the speed
            began = time.monotonic()
            answer = client.post("/embed", json={"inputs": ["the cat sat"] * 32})
            assert (answer.status_code, answer.json()["error_type"]) == (413, "too_large"), answer.text
            assert "can be computed within 1 s (--deadline)" in answer.json()["error"]
            assert time.monotonic() - began < most
        assert _embed(client) == 200


def test_work_for_disconnected_clients_stops() -> None:
    model: Predictor = predictor("words")
    calls: dict[str, Any] = {
        "tokenize": model.tokenize,
        "count_tokens": model.count_tokens,
        "embed": model.embed,
        "embed_all": model.embed_all,
    }
    for name, call in calls.items():
        encoded: list[int] = []
        method = "encode_batch" if name == "tokenize" else "encode_ids"
        original = getattr(type(model.tokenizer), method)
        with deadline(20) as own:

            def leave(
                self: Any, texts: Any, own: Any = own, encoded: list[int] = encoded, original: Any = original
            ) -> Any:
                encoded.append(len(texts))
                own.cancelled = True
                return original(self, texts)

            leaving = mock.patch.object(type(model.tokenizer), method, leave)
            with leaving, pytest.raises(DeadlineExceeded):
                call(["the cat " * 2500] * 8)
        assert encoded == [1], name


def test_errors_of_openai_routes_have_its_format(client: httpx.Client) -> None:
    answers = {
        404: client.get("/v1/nothing"),
        405: client.get("/v1/embeddings"),
        413: client.post("/v1/embeddings", json={"input": [5] * 39}),  # one over the maximum
        415: client.post("/v1/embeddings", content=b"{}"),
        422: client.post("/models/words/v1/embeddings", json={"input": 3}),
        400: client.post("/v1/embeddings", content=b"{", headers=JSON),
    }
    with mock.patch.object(Predictor, "embed", side_effect=RuntimeError("secret")):
        answers[500] = client.post("/v1/embeddings", json={"input": "the cat"})
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert "input 0 has 39 token ids; this model takes at most 38" in answers[413].text
    assert client.post("/v1/embeddings", json={"input": [5] * 38}).status_code == 200


def test_health_checks_are_never_refused() -> None:
    with running({"words": predictor("words")}, limits=Limits(max_connections=3)) as address:
        lines = [open_connection(address) for _ in range(4 + OVERFLOW_CONNECTIONS)]
        time.sleep(0.1)
        for path in ("/health/live", "/health/ready", "/health"):
            answer = send_raw(address, f"GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n".encode())
            assert (answer.status, answer.body) == (200, b'{"status":"ok"}')
            assert "connection: close" in answer.head
        refused = send_raw(address, b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert refused.status == 503
        assert b"--max-connections" in refused.body
        for line in lines:
            line.close()


def test_an_idle_model_is_ready_while_another_is_overloaded() -> None:
    models = {"words": costly(0.2), "kinds": predictor("kinds")}
    brief = mock.patch("bertsmith.server.service.HEALTH_TIMEOUT", 0.5)
    limits = Limits(max_requests=1, batch_tokens=6)
    with brief, running(models, limits=limits) as address, open_connection(address) as caller:
        time.sleep(0.6)
        caller.sendall(post("/embed", {"inputs": ["the cat"] * 9}))
        time.sleep(0.3)
        assert httpx.post(f"{address}/predict", json={"inputs": "the cat"}).status_code == 429
        answer = httpx.get(f"{address}/health/ready")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("bound", "names", "allowed", "refused"),
    [
        (
            "127.0.0.1",
            (),
            "localhost localhost:8080 LOCALHOST. a.localhost 127.0.0.1:80 127.0.0.2 [::1]:80 ::1",
            "evil",
        ),
        ("127.0.0.1", (), "localhost", "localhost.evil.com 10.0.0.1 127.0.0.1.evil.com evil:8080"),
        ("0.0.0.0", (), "10.0.0.1:8080 [fe80::1]:80 localhost", "evil.com"),
        ("10.0.0.1", ("models.example.com",), "10.0.0.1 models.example.com:443", "10.0.0.2 example.com"),
        ("127.0.0.1", ("*",), "evil.com", ""),
    ],
)
def test_allowed_hosts(bound: str, names: tuple[str, ...], allowed: str, refused: str) -> None:
    hosts = AllowedHosts(bound, names)
    assert all(name in hosts for name in allowed.split())
    assert not any(name in hosts for name in [*refused.split(), *([] if names == ("*",) else [""])])
    with pytest.raises(BertsmithError, match="only the name"):
        AllowedHosts(bound, ("http://evil.com",))


def test_other_host_names_are_refused(client: httpx.Client) -> None:
    for path in ("/info", "/playground", "/nothing"):
        answer = client.get(path, headers={"host": "evil.example.com"})
        assert (answer.status_code, answer.json()["error_type"]) == (403, "unauthorized")
        assert "--allowed-host" in answer.json()["error"]
    assert client.get("/health", headers={"host": "evil.example.com"}).status_code == 200  # probes have any name
    words = {"words": predictor("words")}
    for options in ({"allowed_hosts": AllowedHosts(names=("evil.example.com",))}, {"api_key": "0123456789abcdef"}):
        with running(words, **options) as address:
            assert httpx.get(f"{address}/docs", headers={"host": "evil.example.com"}).status_code == 200


def test_two_lengths_are_refused(client: httpx.Client) -> None:
    both = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4\r\n"
    chunked = b'Transfer-Encoding: chunked\r\n\r\n15\r\n{"inputs": "the cat"}\r\n0\r\n\r\n'
    answer = send_raw(str(client.base_url), both + chunked + b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.status == 400
    assert "connection: close" in answer.head
    assert b"HTTP/1.1" not in answer.body


def test_head_and_absolute_form(client: httpx.Client) -> None:
    for path in ("/health", "/info", "/docs", "/playground", "/metrics"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) > 0
    assert client.head("/embed").status_code == 405
    assert client.delete("/info").headers["allow"] == "GET, HEAD"
    address = str(client.base_url)
    for target, status in {
        f"{address}/info?a=b": 200,
        f"{address}/models/words/info": 200,
        "http://evil.example.com/info": 403,
        f"{address}": 307,
        f"{address}/nothing": 404,
    }.items():
        assert send_raw(address, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()).status == status, target


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, -float("inf")])
def test_limits_are_finite(value: float) -> None:
    for name in ("deadline", "drain_seconds", "read_seconds", "rejection_seconds"):
        with pytest.raises(BertsmithError, match=f"--{name.replace('_', '-')} "):
            Limits(**{name: value})
    with pytest.raises(BertsmithError, match="--max-body"):
        Limits(max_body=10**30)


def test_rejections_are_cheap_and_keep_the_connection() -> None:
    limits = {"max_requests": 1, "rejection_seconds": 0.1}
    with served(cost=0.8, **limits) as address, contextlib.ExitStack() as stack:
        caller, other = (stack.enter_context(open_connection(address)) for _ in range(2))
        caller.sendall(post("/embed", {"inputs": "the cat"}))
        time.sleep(0.2)
        with mock.patch.object(Gateway, "_handle", side_effect=AssertionError("the request was parsed")):
            for path in ("/embed", "/models/words/v1/embeddings"):
                began = time.monotonic()
                other.sendall(post(path, {"inputs": "the cat"}))
                answer = other.recv(4096)
                assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
                assert time.monotonic() - began >= 0.1
                assert (b'{"error": {"message"' in answer) == ("v1" in path)
        assert b" 200 " in caller.recv(4096)
        other.sendall(post("/embed", {"inputs": "the cat"}))
        assert b" 200 " in other.recv(4096)
        counted = httpx.get(f"{address}/metrics").text
    assert 'bertsmith_requests_total{route="/embed",status="429"} 1.0' in counted
    assert 'bertsmith_rejections_total{reason="delayed"} 2.0' in counted


def test_bodies_in_memory_are_bounded() -> None:
    limits = Limits(max_body=1 << 16, rejection_seconds=0.0)
    unfinished = post("/embed", b"", Content_Length=str(1 << 16)) + b" " * 60_000
    with running({"words": predictor("words")}, limits=limits) as address, contextlib.ExitStack() as stack:
        for _ in range(BUFFERED_BODIES + 3):
            stack.enter_context(open_connection(address)).sendall(unfinished)
        time.sleep(0.2)
        answer = send_raw(address, post("/embed", {"inputs": "the cat"}))
        assert (answer.status, b"--max-body" in answer.body) == (429, True)
        stack.close()
        time.sleep(0.2)
        assert send_raw(address, post("/embed", {"inputs": "the cat"})).status == 200


def test_large_requests_take_turns() -> None:
    body = b" " * (LARGE_BODY + 1)
    service = Service({}, Limits(deadline=0.3))
    gateway = Gateway(mock.Mock(), [], service, public=set(), log=Log(), api_key=None, allowed_hosts=None)
    assert asyncio.run(_take_turns(gateway, body)) == [0, 0, 503, 499, 0, 0]
    service.close(seconds=0)


async def _take_turns(gateway: Gateway, body: bytes) -> list[int]:
    """The statuses of two large requests, of a third, of one whose client leaves, of a small one, and of one later."""
    contexts = [RequestContext("POST") for _ in range(6)]
    for context in contexts:
        context.body = body
    contexts[4].body = b"{}"

    async def request(number: int, seconds: float = 0.0) -> int:
        try:
            async with gateway._turn(contexts[number]):
                await asyncio.sleep(seconds)
        except RequestError as error:
            return error.status
        return 0

    running = [asyncio.create_task(request(number, 0.5)) for number in (0, 1)]
    await asyncio.sleep(0)
    running += [asyncio.create_task(request(number)) for number in (2, 3, 4)]
    await asyncio.sleep(0.05)
    assert running[4].done()
    contexts[3].disconnected.set()
    statuses = [await one for one in running]
    return [*statuses, await request(5)]
