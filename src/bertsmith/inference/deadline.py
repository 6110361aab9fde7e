"""The deadline of a request and the tokens it may have; both hold in all code that the request's thread runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from bertsmith.errors import BertsmithError

LATE = "the deadline passed before the result was computed"


class DeadlineExceeded(BertsmithError):
    """The request's deadline has passed, or it was cancelled. Inputs that had not run are dropped."""


class RequestTooLarge(BertsmithError):
    """A request that can never be computed: over the limit of tokens, or more than fits in its deadline."""

    def __init__(self, tokens: int, limit: int, *, seconds: float | None = None, at_least: bool = False) -> None:
        """`seconds`: the deadline that sets the limit, if one does. `at_least`: counting stopped at the limit."""
        within = "" if seconds is None else f", which is about what {seconds:.2g} s allow"
        self.amount = f"{'over ' if at_least else ''}{limit if at_least else tokens:,} tokens"
        super().__init__(f"{self.amount}, at most {limit:,}{within}: send fewer or shorter texts")
        self.tokens, self.limit, self.seconds = tokens, limit, seconds


@dataclass
class Deadline:
    """When a request expires, and how large it may be."""

    at: float = float("inf")  # time.monotonic()
    max_tokens: int | None = None  # of all its texts together
    cancelled: bool = False  # any thread may set it: inputs that have not run yet are dropped
    tokens: int = 0  # of all inputs of the request

    @property
    def expired(self) -> bool:
        return self.cancelled or time.monotonic() >= self.at

    def check(self, tokens: int = 0, *, at_least: bool = False) -> None:
        """An error if the request has expired, or has more than its maximum of tokens."""
        if self.expired:
            raise DeadlineExceeded(LATE)
        if self.max_tokens is not None and tokens > self.max_tokens:
            raise RequestTooLarge(tokens, self.max_tokens, at_least=at_least)


_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def current_deadline() -> Deadline:
    """The deadline of this thread's request; unlimited outside of `deadline`."""
    return _current.get() or Deadline()


@contextmanager
def deadline(seconds: float | None, *, max_tokens: int | None = None) -> Iterator[Deadline]:
    """Work in this context raises `DeadlineExceeded` after so many seconds; None sets no limit."""
    own = Deadline(float("inf") if seconds is None else time.monotonic() + seconds, max_tokens)
    token = _current.set(own)
    try:
        yield own
    finally:
        _current.reset(token)
