"""One request on its way through the server: what guard, routes and logs know of it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertsmith.server.errors import RequestError

KEY = "bertsmith.visit"  # where an ASGI scope holds it
NO_BODY = object()


@dataclass
class RequestContext:
    """A request, from its header to its answer."""

    method: str
    route: str = "unknown"  # as it stands in the API, never what was sent
    model: str | None = None  # named by the path
    number: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    body: bytes = b""
    value: Any = NO_BODY  # what the body holds
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the caller has left
    status: int = 0  # of the answer, once it has begun
    tokens: int = 0  # computed for it
    problem: RequestError | None = None  # why a route gives no answer

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def visit_in(scope: Mapping[str, Any]) -> RequestContext:
    """The visit that the guard put into a scope."""
    found: RequestContext = scope[KEY]
    return found
