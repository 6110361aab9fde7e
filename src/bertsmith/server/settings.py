"""How much a caller may ask, and how long everything may take; each limit is named by its flag where it is hit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from bertsmith.errors import BertsmithError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What `bertsmith serve` bounds. Bytes and counts are at most, seconds are from the first byte on."""

    max_texts: int = 32  # in one request
    max_bytes_per_text: int = 64 << 10  # in UTF-8, looked at before anything is tokenized
    max_body: int = 4 << 20  # bytes of a request
    max_numbers: int = 4 << 20  # in one answer: vectors of all tokens and attention grow fast
    max_requests: int = 128  # in work at once, each with a thread that mostly waits
    max_connections: int = 1024
    max_rejections: int = 512  # callers that are kept waiting before they hear that there is too much work
    batch_tokens: int | None = None  # computed together; the predictor's own where absent
    max_queued_tokens: int = 65_536  # that may wait to be computed
    deadline: float = 30.0  # seconds from a request to its answer
    read_seconds: float = 10.0  # for a header to arrive, and again for a body
    write_seconds: float = 10.0  # for an answer to be taken
    idle_seconds: float = 5.0  # between two requests of a connection
    drain_seconds: float = 30.0  # to finish what was taken on when the server is told to stop
    rejection_seconds: float = 0.2  # a caller waits before it hears that there is too much work

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            may_be_zero = field.name in ("rejection_seconds", "max_rejections", "drain_seconds")
            if value is not None and (value < 0 or (value == 0 and not may_be_zero)):
                raise BertsmithError(f"{flag(field.name)} {value}: it must be more than 0")

    def shown(self) -> dict[str, Any]:
        """For callers: what they may ask."""
        names = ("max_texts", "max_bytes_per_text", "max_body", "max_numbers", "max_queued_tokens", "deadline")
        return {name: getattr(self, name) for name in names}


def flag(name: str) -> str:
    """The flag that sets a limit."""
    return f"--{name.replace('_', '-')}"
