"""Errors of a request: a status, an error type, and a message of one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from bertsmith.server.settings import flag

RETRY_AFTER = {"Retry-After": "1"}
MIN_REDACTED = 8  # characters: a shorter input may be a word of the message itself
ErrorType = Literal[
    "validation", "too_large", "overloaded", "unhealthy", "unauthorized", "not_found", "deadline", "internal"
]


class RequestError(Exception):
    """Ends a request with an error response."""

    def __init__(
        self,
        status: int,
        error_type: ErrorType,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
        delayed: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.error_type, self.message = status, error_type, " ".join(message.split())
        self.headers = dict(headers or {})
        self.close = close  # close the connection after the response
        self.delayed = delayed  # delay the response, so that the client does not retry at once

    def body(self, *, openai: bool = False) -> bytes:
        """The error as JSON, in OpenAI's format for its clients."""
        nested = {"message": self.message, "type": self.error_type, "param": None, "code": self.error_type}
        body = {"error": nested if openai else self.message, "error_type": self.error_type}
        return json.dumps(body, ensure_ascii=False).encode()


def over_limit(amount: str, name: str, limit: float) -> RequestError:
    """A request exceeds a limit; `amount` describes its size."""
    return RequestError(413, "too_large", f"{amount}, at most {limit:,} ({flag(name)})")


def overloaded(reason: str) -> RequestError:
    """The server has too many requests."""
    return RequestError(429, "overloaded", f"{reason}: try again later", headers=RETRY_AFTER, delayed=True)


def stopping() -> RequestError:
    """The server drains its requests and accepts no new ones."""
    return RequestError(503, "unhealthy", "the server is stopping: send the request to another one", close=True)


def internal_error(request_id: str) -> RequestError:
    """A bug in the server; the log has the details."""
    return RequestError(500, "internal", f"internal error, logged with request id {request_id}")


def client_disconnected() -> RequestError:
    """Nobody receives this response; logs and metrics count it with nginx's status."""
    return RequestError(499, "validation", "the client has disconnected", close=True)


def redact(message: str, body: Any) -> str:
    """The message without texts of the request body, quoted or longer than a few characters."""
    stack, texts = [body], set()
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            texts.add(value)
        elif isinstance(value, dict | list):
            stack += value.values() if isinstance(value, dict) else value
    for text in sorted(texts, key=len, reverse=True):
        message = message.replace(repr(text), "[input]")
        if len(text) >= MIN_REDACTED:
            message = message.replace(text, "[input]")
    return message
