"""What tests of the server share: small models behind it, a server in this process, and plain sockets to it."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.parse
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import httpx
from model_io.folder_fixtures import model, tokenizer

from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import classify, tag
from bertsmith.server.monitoring import Log
from bertsmith.server.server import running
from bertsmith.server.settings import Limits

JSON = {"content-type": "application/json"}
TAGS = ("O", "B-PLACE", "I-PLACE")
KINDS: dict[str, tuple[Any, ...]] = {
    "words": ("masked_lm", "next_sentence"),
    "kinds": (classify.Config(labels=("dull", "fine")),),
    "numbers": ("regress",),
    "places": (tag.Config(labels=TAGS),),
    "spans": ("span",),
    "choices": ("choose",),
}


@cache
def predictor(name: str) -> Predictor:
    """A small model with random weights and the heads of that name; one for all tests, since nothing in it changes."""
    return Predictor(model(*KINDS[name], seed=list(KINDS).index(name)), tokenizer())


def every_kind() -> dict[str, Predictor]:
    """A model for each route."""
    return {name: predictor(name) for name in KINDS}


@contextlib.contextmanager
def called(*names: str, log: Log | None = None, api_key: str | None = None, **limits: Any) -> Iterator[httpx.Client]:
    """A client of a server that has the models of these names."""
    models = {name: predictor(name) for name in names}
    with (
        running(models, limits=Limits(**limits), log=log, api_key=api_key) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        yield client


class Heard(NamedTuple):
    """What came back over a socket."""

    status: int  # 0 where nothing came
    head: str
    body: bytes
    seconds: float  # until the server closed the connection, or had answered


def connected(address: str, *, receive_buffer: int = 0) -> socket.socket:
    """A connection to a server."""
    place = urllib.parse.urlsplit(address)
    made = socket.socket()
    if receive_buffer:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.settimeout(15)
    made.connect((place.hostname, place.port))
    return made


def say(address: str, *parts: bytes, pause: float = 0.0) -> Heard:
    """Sends bytes as they are, closes nothing, and reads until the server closes or is silent for a second."""
    began = time.monotonic()
    got = b""
    with connected(address) as line, contextlib.suppress(ConnectionError):
        for part in parts:
            line.sendall(part)
            time.sleep(pause)
        line.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while (more := line.recv(1 << 16)) and not _whole(got := got + more):
                pass
    head, _, body = got.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return Heard(status, head.decode("latin-1"), body, time.monotonic() - began)


def _whole(got: bytes) -> bool:
    """Whether an answer with a length has come to its end."""
    head, blank, body = got.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if blank and line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


def post(path: str, value: Any, **headers: str) -> bytes:
    """A request as bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    known = {"Host": "test", "Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in known.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body
