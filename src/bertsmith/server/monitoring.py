"""The context of a request, and the logs and Prometheus metrics that are made of it.

Neither logs nor metrics contain texts, headers or queries of requests.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from starlette.requests import Request

from bertsmith.inference.engine import BatchStats

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PLACEHOLDER = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")  # of an argument of a log message
SCOPE_KEY = "bertsmith.context"


@dataclass
class RequestContext:
    """State of a request that middleware, routes, logs and metrics share."""

    method: str
    route: str = "unknown"  # the route's path template, never the path that was sent
    model: str | None = None  # from /models/NAME
    openai: bool = False  # errors have OpenAI's format
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    body: bytes = b""
    json: Any = None  # the parsed body
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0  # of the response, once it has started
    tokens: int = 0  # computed for this request

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def context_of(request: Request) -> RequestContext:
    """The context that the middleware created."""
    context: RequestContext = request.scope[SCOPE_KEY]
    return context


def to_stderr(line: str) -> None:
    """Writes a line at once; a closed stderr does not stop the server."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class Log:
    """One line per request or event, as text or as a JSON object."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, write: Callable[[str], None] = to_stderr) -> None:
        self.as_json, self.quiet, self.write = as_json, quiet, write

    def request(self, context: RequestContext) -> None:
        """A finished request."""
        if self.quiet:
            return
        fields: dict[str, Any] = {"method": context.method, "path": context.route, "status": context.status}
        fields |= {"ms": round(context.seconds * 1000, 1), "tokens": context.tokens, "id": context.id}
        self.event("request", "{method} {path} {status} {ms} ms {tokens} tokens {id}".format(**fields), **fields)

    def internal_error(self, context: RequestContext, error: BaseException) -> None:
        """A bug: type and location of the exception, without its message, which may contain a text."""
        frames = traceback.extract_tb(error.__traceback__)
        location = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-6:]))
        kind = type(error).__name__
        fields = {"kind": kind, "at": location, "id": context.id}
        self.event("internal_error", f"internal error {kind} at {location} {context.id}", **fields)

    def event(self, name: str, text: str, **fields: Any) -> None:
        """An event of the server."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {"time": now, "event": name, **fields}
        self.write(json.dumps(event, ensure_ascii=False) if self.as_json else f"{now} {text}")


class LibraryLogHandler(logging.Handler):
    """Writes warnings of libraries as events, without tracebacks, and with no arguments but numbers."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        message = " ".join(record.msg.split()) if isinstance(record.msg, str) else type(record.msg).__name__
        if isinstance(record.args, tuple) and record.args:
            shown = iter([str(value) if isinstance(value, int | float) else "…" for value in record.args])
            message = PLACEHOLDER.sub(lambda _: next(shown, "…"), message)
        self.log.event("library", f"{record.name}: {message} {kind}".rstrip(), source=record.name, message=message)


class Metrics:
    """The metrics of one server. Labels are routes, statuses and model names."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # creation times would double the page
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "bertsmith", "registry": self.registry}
        by_route, by_model = options | {"labelnames": ["route"]}, options | {"labelnames": ["model"]}
        self.requests = Counter("requests", "Finished requests.", ["route", "status"], **options)
        self.seconds = Histogram("request_seconds", "Duration of requests.", buckets=SECONDS, **by_route)
        self.in_flight = Gauge("in_flight", "Requests in progress.", **options)
        self.rejections = Counter("rejections", "Requests rejected because of load or slowness.", ["reason"], **options)
        self.truncations = Counter("truncations", "Texts truncated at the client's request.", **options)
        self.tokens = Counter("tokens", "Tokens computed, special tokens included.", **by_route)
        self.batch_tokens = Histogram("batch_tokens", "Tokens of a batch.", buckets=TOKENS, **by_model)
        self.batch_seconds = Histogram("batch_seconds", "Duration of a batch.", buckets=SECONDS, **by_model)
        self.queue_tokens = Gauge("queue_tokens", "Tokens waiting for a batch.", **by_model)

    def batch(self, model: str, stats: BatchStats) -> None:
        """Counts a batch of a model."""
        self.batch_tokens.labels(model).observe(stats.tokens)
        self.batch_seconds.labels(model).observe(stats.seconds)

    def request(self, context: RequestContext) -> None:
        """Counts a finished request."""
        self.requests.labels(context.route, str(context.status)).inc()
        self.seconds.labels(context.route).observe(context.seconds)
        if context.tokens:
            self.tokens.labels(context.route).inc(context.tokens)
