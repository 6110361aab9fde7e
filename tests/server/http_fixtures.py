"""Small models, a server in this process, and raw sockets to it."""

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
from inference.generation_fixtures import random_lm, random_translator
from model_io.folder_fixtures import model, tokenizer

from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import classify, sentence_order, tag
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
    "order": (sentence_order.Config(),),
    "parts of speech": (tag.Config(labels=("NOUN", "VERB", "ADJ")),),
    "texts": ("causal_lm",),
    "translations": ("translation",),
}


@cache
def predictor(name: str) -> Predictor:
    """A small model with random weights and the heads of that name, shared by all tests."""
    if name == "texts":
        return random_lm()
    if name == "translations":
        return random_translator()
    return Predictor(model(*KINDS[name], seed=list(KINDS).index(name)), tokenizer())


def all_predictors() -> dict[str, Predictor]:
    """A model for each route."""
    return {name: predictor(name) for name in KINDS}


@contextlib.contextmanager
def client_for(
    *names: str, log: Log | None = None, api_key: str | None = None, **limits: Any
) -> Iterator[httpx.Client]:
    """A client of a server with these models."""
    models = {name: predictor(name) for name in names}
    with (
        running(models, limits=Limits(**limits), log=log, api_key=api_key) as address,
        httpx.Client(base_url=address, timeout=20) as client,
    ):
        yield client


class RawResponse(NamedTuple):
    """A response read from a socket."""

    status: int  # 0 without a response
    head: str
    body: bytes
    seconds: float  # until the server responded or closed the connection


def open_connection(address: str, *, receive_buffer: int = 0) -> socket.socket:
    """A socket connected to a server."""
    url = urllib.parse.urlsplit(address)
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(15)
    connection.connect((url.hostname, url.port))
    return connection


def send_raw(address: str, *parts: bytes, pause: float = 0.0) -> RawResponse:
    """Sends raw bytes, and reads until the response is complete, the server closes, or nothing arrives for a second."""
    began = time.monotonic()
    received = b""
    with open_connection(address) as connection, contextlib.suppress(ConnectionError):
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        connection.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while (more := connection.recv(1 << 16)) and not _is_complete(received := received + more):
                pass
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    status = int(words[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return RawResponse(status, head.decode("latin-1"), body, time.monotonic() - began)


def _is_complete(received: bytes) -> bool:
    """Whether a response with a Content-Length is complete."""
    head, blank, body = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if blank and line.startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False


def post(path: str, value: Any, **headers: str) -> bytes:
    """A POST request as bytes."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    fields = {"Host": "localhost", "Content_Type": "application/json", "Content_Length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {text}\r\n" for name, text in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body
