"""What goes wrong with a request: a status, a kind, and one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bertsmith.server.settings import flag

CHANCE = 8  # letters: a shorter text may be a word of the message itself
KINDS = (
    "validation",
    "too_large",
    "overloaded",
    "unhealthy",
    "unauthorized",
    "not_found",
    "deadline",
    "internal",
)


class RequestError(Exception):
    """Ends a request with a status and an error of one line."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
        delayed: bool = False,
    ) -> None:
        super().__init__(message)
        assert kind in KINDS
        self.status, self.kind, self.message = status, kind, " ".join(message.split())
        self.headers = dict(headers or {})
        self.close = close  # the connection ends with this answer
        self.delayed = delayed  # the caller is kept waiting first, so that it does not ask again at once

    def body(self, *, open_ai: bool = False) -> bytes:
        """The error as JSON; in OpenAI's form for clients that show no other."""
        nested = {"message": self.message, "type": self.kind, "param": None, "code": self.kind}
        found = {"error": nested if open_ai else self.message, "error_type": self.kind}
        return json.dumps(found, ensure_ascii=False).encode()


def over_limit(what: str, name: str, limit: float) -> RequestError:
    """Something is more than a limit allows: `what` says how much it is."""
    return RequestError(413, "too_large", f"{what}, at most {limit:,}: {flag(name)}")


def overloaded(what: str) -> RequestError:
    """Too much is waiting already."""
    return RequestError(429, "overloaded", f"{what}: ask again later", headers={"Retry-After": "1"}, delayed=True)


def defect(number: str) -> RequestError:
    """What only we can cause; the log has more under the number."""
    return RequestError(500, "internal", f"a defect of this server, logged as {number}")


def without(message: str, sent: Any) -> str:
    """A message that does not repeat texts that were sent: none in quotes, and none that is too long for a chance."""
    left, texts = [sent], set()
    while left:
        one = left.pop()
        if isinstance(one, str):
            texts.add(one)
        elif isinstance(one, dict | list):
            left += one.values() if isinstance(one, dict) else one
    for text in sorted(texts, key=len, reverse=True):
        message = message.replace(repr(text), "that was sent")
        if len(text) >= CHANCE:
            message = message.replace(text, "that was sent")
    return message


def left() -> RequestError:
    """The caller has gone. Nobody hears this; the log and the counters have it under the status that nginx uses."""
    return RequestError(499, "validation", "the caller has left", close=True)
