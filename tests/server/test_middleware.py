"""Requests that reach no model: wrong paths, methods, content types, sizes and keys, malformed HTTP, slow clients."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from server.http_fixtures import JSON, RawResponse, client_for, open_connection, post, predictor, send_raw

from bertsmith.server.server import running
from bertsmith.server.settings import Limits

KEY = "a-key-that-nobody-guesses"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with client_for("words", max_body=100_000, read_seconds=0.6, write_seconds=0.6) as found:
        yield found


def expect_error(answer: httpx.Response, status: int, kind: str) -> str:
    assert (answer.status_code, answer.json()["error_type"]) == (status, kind), answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers["x-request-id"]) == 16
    return str(answer.json()["error"])


def test_paths_and_methods(client: httpx.Client) -> None:
    expect_error(client.get("/nothing"), 404, "not_found")
    expect_error(client.get("/embed/"), 404, "not_found")
    expect_error(client.get("/models/words/nothing"), 404, "not_found")
    answer = client.get("/embed")
    assert "POST" in expect_error(answer, 405, "not_found")
    assert answer.headers["allow"] == "POST"
    assert client.delete("/attention").headers["allow"] == "GET, HEAD, POST"  # a page, and an answer


def test_content_types(client: httpx.Client) -> None:
    body = b'{"inputs": "the cat"}'
    for kind in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "application/json; charset=cp949",
    ):
        expect_error(client.post("/embed", content=body, headers={"content-type": kind}), 415, "validation")
    expect_error(client.post("/embed", content=body), 415, "validation")
    expect_error(client.post("/embed", content=body, headers={**JSON, "content-encoding": "gzip"}), 415, "validation")
    for kind in ("application/json", "Application/JSON; charset=UTF-8"):
        assert client.post("/embed", content=body, headers={"content-type": kind}).status_code == 200
    expect_error(client.post("/embed", content=b"{", headers=JSON), 400, "validation")
    expect_error(client.post("/embed", content=b'{"inputs": "\\ud800"}', headers=JSON), 422, "validation")


def test_large_bodies_are_rejected_with_and_without_content_length(client: httpx.Client) -> None:
    large = b'{"inputs": "' + b"a" * 100_000 + b'"}'
    line = expect_error(client.post("/embed", content=large, headers=JSON), 413, "too_large")
    assert "at most 100,000 (--max-body)" in line
    in_pieces = client.post("/embed", content=iter([large[:60_000], large[60_000:]]), headers=JSON)
    assert "--max-body" in expect_error(in_pieces, 413, "too_large")
    assert client.post("/embed", json={"inputs": "the cat"}).status_code == 200  # on the same connection or a new one


def test_huge_content_length_is_rejected_without_reading(client: httpx.Client) -> None:
    response = send_raw(str(client.base_url), post("/embed", b"", Content_Length=str(10**12)))
    assert response.status == 413
    assert "connection: close" in response.head.lower()
    assert response.seconds < 3
    expecting = send_raw(str(client.base_url), post("/embed", b"", Content_Length=str(10**6), Expect="100-continue"))
    assert expecting.status == 413  # and not 100


@pytest.mark.parametrize(
    "line",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/a.b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the begin of TLS
        b"GET /health HTTP/1.1\r\n\r\n",  # no host
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: b\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"G\x01T / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_malformed_requests(client: httpx.Client, line: bytes) -> None:
    response = send_raw(str(client.base_url), line)
    assert response.status in (0, 400, 404, 405, 408) or (response.status == 200 and b"Upgrade" in line)
    assert client.get("/health").status_code == 200


def slow(address: str, *parts: bytes, pause: float) -> RawResponse:
    return send_raw(address, *parts, pause=pause)


def test_slow_clients_are_disconnected(client: httpx.Client) -> None:
    address = str(client.base_url)
    letters = [bytes([letter]) for letter in b"GET /health HTTP/1.1\r\n" + b"X-Slow: " + b"a" * 40]
    whole = post("/embed", {"inputs": "the cat"})
    found: dict[str, RawResponse] = {}
    kinds = {
        "header": (letters, 0.1),
        "silent": ([b""], 0.0),
        "body": ([whole[:-20], *(bytes([letter]) for letter in whole[-20:-5])], 0.2),
        "body to nowhere": ([post("/nothing", b"", Content_Length="500"), *[b"a"] * 30], 0.2),
    }

    def run(name: str) -> None:
        parts, pause = kinds[name]
        found[name] = send_raw(address, *parts, pause=pause)

    threads = [threading.Thread(target=run, args=(name,)) for name in kinds]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert client.get("/info").status_code == 200  # others are served meanwhile
        time.sleep(0.05)
    assert time.monotonic() - began < 8
    assert found["body"].status in (0, 408)
    assert found["silent"].status == 408
    assert b"--read-seconds" in found["silent"].body
    text = client.get("/metrics").text
    assert 'bertsmith_requests_total{route="connection",status="408"}' in text


def test_slow_readers_are_disconnected(client: httpx.Client) -> None:
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with open_connection(str(client.base_url), receive_buffer=4096) as line:
        line.sendall(ask * 40)  # megabytes of responses, of which none is read
        deadline = time.monotonic() + 6
        while 'reason="slow reader"' not in client.get("/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_keep_alive_connections_are_reused(client: httpx.Client) -> None:
    with contextlib.closing(http.client.HTTPConnection(client.base_url.host, client.base_url.port)) as line:
        for _ in range(2):
            line.request("GET", "/info")
            kept = line.sock
            assert line.getresponse().read().startswith(b"{")
            time.sleep(0.9)  # longer than a header may take
        assert line.sock is kept


def test_api_key_is_required() -> None:
    with client_for("words", api_key=KEY) as client:
        body = {"inputs": "the cat"}
        for path in ("/info", "/metrics", "/runs", "/v1/models"):
            expect_error(client.get(path), 401, "unauthorized")
        for wrong in ("", KEY, f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", "Bearer", "Bearer \xe9"):
            answer = client.post("/embed", json=body, headers={"authorization": wrong.encode("latin-1")})
            assert KEY not in expect_error(answer, 401, "unauthorized")
            assert answer.headers["www-authenticate"].startswith("Bearer")
        for right in (f"Bearer {KEY}", f"bearer  {KEY}"):
            assert client.post("/embed", json=body, headers={"authorization": right}).status_code == 200
        for path in ("/health", "/docs", "/openapi.json", "/playground"):
            assert client.get(path).status_code == 200


def test_connections_are_bounded() -> None:
    with running({"words": predictor("words")}, limits=Limits(max_connections=3)) as address:
        lines = [open_connection(address) for _ in range(3)]
        time.sleep(0.1)
        response = send_raw(address, b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert response.status in (0, 503)
        for line in lines:
            line.close()
        time.sleep(0.2)
        assert send_raw(address, b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
