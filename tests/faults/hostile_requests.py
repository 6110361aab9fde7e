"""Hand-made hostile HTTP requests as bytes, by name. `KEY` is the API key of the server that they are sent to."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

from server.http_fixtures import post

KEY = "a-key-that-nobody-guesses"
AUTHORIZED = f"Bearer {KEY}"
ROUTES = (
    "embed embed_all similarity rerank tokenize attention fill-mask next-sentence predict ner tag-words qa choose "
    "translate"
)
LONG = ["a b " * 15_000] * 32  # 1.9 MB within every limit


def _post(path: str, value: Any, **headers: str) -> bytes:
    return post(path, value, **{"Authorization": AUTHORIZED} | headers)


def _get(target: str, *fields: str, method: str = "GET", version: str = "HTTP/1.1", key: str = AUTHORIZED) -> bytes:
    lines = [
        f"{method} {target} {version}",
        *(fields or ("Host: localhost",)),
        *([f"Authorization: {key}"] if key else []),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def bodies() -> dict[str, bytes]:
    """Hostile bodies of /embed."""
    bomb = gzip.compress(b'{"inputs": "' + b"a" * (64 << 20) + b'"}')
    texts: dict[str, bytes] = {
        "oversized": b'{"inputs": "' + b"a" * (5 << 20) + b'"}',
        "long text": json.dumps({"inputs": "a" * 70_000}).encode(),
        "many texts": json.dumps({"inputs": ["a"] * 100_000}).encode(),
        "deep list": b"[" * 200_000,
        "deep closed list": b"[" * 5000 + b"]" * 5000,
        "deep table": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "many keys": ("{" + ",".join(f'"k{n}": {n}' for n in range(100_000)) + "}").encode(),
        "colliding keys": ("{" + ",".join(f'"{n * (2**61 - 1)}": 1' for n in range(50_000)) + "}").encode(),
        "huge integer": b'{"inputs": "a", "top_k": ' + b"9" * 100_000 + b"}",
        "huge exponent": b'{"inputs": "a", "top_k": 1e999999999}',
        "digits": b"9" * (3 << 20),
        "NaN": b'{"inputs": NaN}',
        "Infinity": b'{"inputs": "a", "deadline": -Infinity}',
        "duplicate keys": b'{"inputs": "a", "inputs": ["b"]}',
        "bad UTF-8": b'{"inputs": "\xff\xfe\xc0\x80"}',
        "overlong UTF-8": b'{"inputs": "\xc0\xaf\xe0\x80\xaf"}',
        "UTF-16": '{"inputs": "a"}'.encode("utf-16"),
        "byte order mark": b'\xef\xbb\xbf{"inputs": "a"}',
        "lone surrogate": b'{"inputs": "\\ud800"}',
        "NUL": b'{"inputs": "\\u0000\\u0000"}',
        "control characters": json.dumps({"inputs": "".join(map(chr, range(1, 32))) + "\u202e\ufeff"}).encode(),
        "combining marks": json.dumps({"inputs": "e" + "\u0301" * 20_000}).encode(),
        "one long word": json.dumps({"inputs": "가" * 20_000}).encode(),
        "special tokens": json.dumps({"inputs": "[CLS][SEP][MASK][PAD]" * 2000}).encode(),
        "empty": b"",
        "white space": b" " * (3 << 20),
        "not an object": b"[]",
        "null": b"null",
        "two values": b'{"inputs": "a"} {"inputs": "b"}',
        "comment": b'{"inputs": "a" /* */}',
        "unknown field": b'{"inputs": "a", "__class__": "os.system", "pooling": "mean"}',
        "wrong types": b'{"inputs": {"a": [1, {"b": null}]}, "truncate": "yes"}',
        "bool as number": b'{"inputs": "a", "layers": true}',
        "negative": b'{"inputs": "a", "layers": [-9223372036854775809]}',
        "float for integer": b'{"inputs": "a", "layers": [1.5]}',
        "path as model": b'{"inputs": "a", "model": "../../etc/passwd"}',
        "pickle": b"\x80\x04cos\nsystem\n(S'id'\ntR.",
        "XML": b'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
        "form": b"inputs=a",
        "truncated": b'{"inputs": "a',
    }
    found = {f"body: {name}": _post("/embed", body) for name, body in texts.items()}
    kinds = [
        "",
        "text/plain",
        "application/jsonp",
        "multipart/form-data; boundary=a",
        "application/json; charset=utf-7",
    ]
    kinds += ["application/json, text/html", "a" * 5000, "application/x-www-form-urlencoded", "*/*", "\x01\x02"]
    small = b'{"inputs": "the cat"}'
    found |= {f"content type {n}": _post("/embed", small, Content_Type=kind) for n, kind in enumerate(kinds)}
    for coding, data in {
        "gzip": bomb,
        "deflate": zlib.compress(b"a" * (64 << 20)),
        "br": b"\x00",
        "gzip, gzip": gzip.compress(bomb),
    }.items():
        found[f"compressed {coding}"] = _post("/embed", data, Content_Encoding=coding)
    return found


def framing() -> dict[str, bytes]:
    """Requests whose end is ambiguous, and headers without end."""
    hidden = _get("/info")
    head = _post("/embed", b"").replace(b"Content-Length: 0\r\n", b"").removesuffix(b"\r\n")
    chunk = b'15\r\n{"inputs": "the cat"}\r\n0\r\n\r\n'
    fields = {
        "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "both lengths swapped": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "two lengths": b"Content-Length: 4\r\nContent-Length: 40\r\n",
        "length list": b"Content-Length: 4, 40\r\n",
        "length plus": b"Content-Length: +4\r\n",
        "length minus": b"Content-Length: -4\r\n",
        "length hex": b"Content-Length: 0x4\r\n",
        "length huge": b"Content-Length: " + b"9" * 30 + b"\r\n",
        "length letters": b"Content-Length: a\r\n",
        "length with NUL": b"Content-Length: 4\x00\r\n",
        "length before space": b"Content-Length : 4\r\n",
        "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n",
        "chunked identity": b"Transfer-Encoding: chunked, identity\r\n",
        "gzip chunked": b"Transfer-Encoding: gzip, chunked\r\n",
        "xchunked": b"Transfer-Encoding: xchunked\r\n",
        "chunked with tab": b"Transfer-Encoding:\tchunked\r\n",
        "chunked with vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
        "folded chunked": b"Transfer-Encoding:\r\n chunked\r\n",
        "bare CR": b"X: a\rTransfer-Encoding: chunked\r\n",
        "bare LF": b"X: a\nTransfer-Encoding: chunked\n",
        "no colon": b"Transfer-Encoding chunked\r\n",
        "expect": b"Expect: 200-maybe\r\nContent-Length: 21\r\n",
    }
    found = {f"framing: {name}": head + lines + b"\r\n" + chunk + hidden for name, lines in fields.items()}
    sizes = [
        b"zz",
        b"-1",
        b"0x15",
        b"15 ;a=b",
        b"15;" + b"a" * 20_000,
        b"f" * 40,
        b"",
        b" 15",
        b"15\n",
        b"0;a\r\nX: y",
        b"+15",
    ]
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    found |= {
        f"chunk size {n}": chunked + size + b'\r\n{"inputs": "the cat"}\r\n0\r\n\r\n' for n, size in enumerate(sizes)
    }
    found["tiny chunks"] = chunked + b"1\r\n \r\n" * 100_000 + b"0\r\n\r\n"
    found["trailer flood"] = chunked + b"0\r\n" + b"X: a\r\n" * 50_000 + b"\r\n"
    found["header flood"] = _get("/info", "Host: localhost", *(f"X-{n}: {n}" for n in range(20_000)))
    found["header of 1 MB"] = _get("/info", "Host: localhost", "X: " + "a" * (1 << 20))
    found["cookies"] = _get("/info", "Host: localhost", *["Cookie: a=b"] * 300)
    found["long target"] = _get("/" + "a" * 100_000)
    found["query flood"] = _get("/info?" + "a[]=1&" * 2000)
    found["pipelined"] = hidden * 500
    found["pipelined mixed"] = (hidden + _post("/embed", {"inputs": "a"}) + _get("/nothing")) * 50
    found["pipelined garbage"] = hidden + b"\x00\x01garbage\r\n\r\n" + hidden
    found["TLS"] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500
    found["HTTP/2"] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100
    found["binary"] = bytes(range(256)) * 40
    found["blank lines"] = b"\r\n" * 10_000 + hidden
    return found


def targets() -> dict[str, bytes]:
    """Paths, methods, hosts, versions and keys."""
    paths = [
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/assets/../../app.py",
    ]
    paths += [
        "/runs/..%2f..",
        "/runs/%2e%2e/x",
        "/runs/a%00b",
        "/models/..%2f..%2fx/info",
        "/models//info",
        "/models/%ff/embed",
    ]
    paths += [
        "/info%00",
        "/info;a=b",
        "/info/",
        "/INFO",
        "/./info",
        "/%69nfo",
        "/info%0d%0aX: y",
        "/info#a",
        "/info\\..\\x",
        "*",
        "info",
    ]
    paths += [
        "http://localhost/info",
        "http://evil.example.com/info",
        "https://localhost:1/info",
        "http://[::1/info",
        "http://a@b/info",
    ]
    found = {f"target {path}": _get(path) for path in paths}
    methods = ["TRACE", "CONNECT", "OPTIONS", "PUT", "DELETE", "PATCH", "BREW", "get", "GET\t", "A" * 5000, "POST"]
    found |= {f"method {method[:9]}": _get("/info", method=method) for method in methods}
    hosts = [
        "evil.example.com",
        "localhost.evil.com",
        "",
        "localhost:99999",
        "[::1",
        "127.0.0.1@evil.com",
        "a" * 3000,
        "\xff",
        "localhost, evil",
    ]
    found |= {f"host {host[:12]}": _get("/info", f"Host: {host}") for host in hosts}
    found["two hosts"] = _get("/info", "Host: localhost", "Host: evil.example.com")
    found["no host"] = _get("/info", "X: y")
    for version in ("HTTP/0.9", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1.1", "http/1.1", "ICAP/1.0"):
        found[f"version {version}"] = _get("/info", version=version)
    keys = [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        f"Basic {KEY}",
        KEY,
        f"Bearer {KEY.upper()}",
    ]
    keys += [
        "Bearer " + "a" * 10_000,
        "Bearer \xff",
        f"Bearer {KEY}, Bearer a",
        "Bearer null",
        "Bearer *",
        f"Token {KEY}",
    ]
    found |= {f"key {n}": _get("/info", "Host: localhost", key=key) for n, key in enumerate(keys)}
    for name, fields in {
        "forwarded": ["X-Forwarded-For: 127.0.0.1", "X-Original-URL: /health", "X-Rewrite-URL: /health"],
        "override": ["X-HTTP-Method-Override: GET", "X-Forwarded-Host: localhost"],
    }.items():
        found[f"key {name}"] = _get("/info", "Host: localhost", *fields, key="")
    for path in (
        "/health/../info",
        "//info",
        "/info/",
        "/docs/../info",
        "/%69nfo",
        "/info?path=/health",
        "http://localhost/info",
    ):
        found[f"no key {path}"] = _get(path, key="")
    found["key in the query"] = _get(f"/info?api_key={KEY}&authorization=Bearer%20{KEY}", key="")
    found["key in a cookie"] = _get("/info", "Host: localhost", f"Cookie: authorization=Bearer {KEY}", key="")
    found["websocket"] = _get("/info", "Host: localhost", "Upgrade: websocket", "Connection: upgrade")
    found["h2c"] = _get("/info", "Host: localhost", "Upgrade: h2c", "Connection: Upgrade, HTTP2-Settings")
    return found


NEEDS_KEY = ("key ", "no key ")  # names of requests without a valid key: none may get 200


def hostile_requests() -> dict[str, bytes]:
    return bodies() | framing() | targets()


def large_requests() -> list[bytes]:
    """Requests of 1.9 MB, or as much as a field allows, to all routes."""
    one = LONG[0]
    values: dict[str, Any] = {route: {"inputs": LONG} for route in ROUTES.split()}
    values |= {"similarity": {"inputs": {"source_sentence": one, "sentences": LONG[1:]}}}
    values |= {"rerank": {"query": one, "texts": LONG[1:]}, "qa": {"question": "a", "context": one}}
    values |= {"fill-mask": {"inputs": [f"[MASK] {one}"] * 32}, "next-sentence": {"inputs": [[one, one]] * 16}}
    values |= {"choose": {"question": one, "choices": LONG[1:]}, "v1/embeddings": {"input": LONG}}
    values |= {"v1/completions": {"prompt": LONG}}
    truncated = [_post(f"/{route}", {"inputs": LONG, "truncate": True}) for route in ("embed", "embed_all", "predict")]
    return [*(_post(f"/{route}", value) for route, value in values.items()), *truncated]
