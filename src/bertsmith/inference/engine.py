"""One thread that computes for many: what they ask at the same time shares forwards. Knows no model, no wish by name.

While a batch is computed, others wait; the next batch holds what has come meanwhile. So batches grow with the load and
nobody waits for company. Those who wait take turns: each batch serves the next in turn, and of those with the same
wish everyone gets a share of it, so that a small request never waits behind all of a large one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import DEFAULT_BATCH_TOKENS, Backend, LocalBackend, ModelInput, Query

LOG = logging.getLogger(__name__)
LATE = "this was not computed in the time that it had"
WAITING_BATCHES = 64  # so many batches' tokens may wait before nothing more is taken


class Overloaded(BertsmithError):
    """More tokens would wait than may."""

    def __init__(self, waiting: int, limit: int) -> None:
        super().__init__(f"{waiting} tokens wait to be computed, and at most {limit} may: try again later")
        self.queued, self.limit = waiting, limit


class DeadlineExceeded(BertsmithError):
    """The caller's time is over, or they gave up; what was not yet computed never will be."""


class EngineClosed(BertsmithError):
    """The engine takes nothing more."""


@dataclass
class Deadline:
    """How long a caller waits. Any thread may end it."""

    at: float = float("inf")  # by time.monotonic
    cancelled: bool = False

    def cancel(self) -> None:
        """Ends it at once: what was not yet computed is dropped."""
        self.cancelled = True

    @property
    def expired(self) -> bool:
        return self.cancelled or time.monotonic() >= self.at


_patience: ContextVar[Deadline | None] = ContextVar("patience", default=None)


@contextmanager
def deadline(seconds: float | None) -> Iterator[Deadline]:
    """What this context asks of an engine must be there within so many seconds, or it is `Expired`; None: no limit."""
    mine = Deadline() if seconds is None else Deadline(time.monotonic() + seconds)
    before = _patience.set(mine)
    try:
        yield mine
    finally:
        _patience.reset(before)


@dataclass(frozen=True)
class BatchStats:
    """What one batch was."""

    query: str  # of its wish
    inputs: int
    tokens: int
    seconds: float


@dataclass(eq=False)
class _Request:
    """What one caller waits for."""

    wish: Query
    items: Sequence[ModelInput]
    patience: Deadline
    results: list[Any]
    left: int  # items without a result
    taken: int = 0  # items that are in a batch or were
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def waiting(self) -> int:
        """Tokens that are in no batch yet."""
        return sum(item.tokens for item in self.items[self.taken :])

    def fail(self, error: Exception) -> None:
        """The caller gets the error, and nothing else."""
        if not self.done.is_set():
            self.error = error
            self.done.set()

    def fill(self, first: int, results: Sequence[Any]) -> None:
        """The caller gets the results once all are there."""
        self.results[first : first + len(results)] = results
        self.left -= len(results)
        if not self.left:
            self.done.set()


@dataclass(frozen=True)
class _Part:
    """Items of one request that are in a batch."""

    request: _Request
    first: int
    last: int  # exclusive

    @property
    def items(self) -> Sequence[ModelInput]:
        return self.request.items[self.first : self.last]


class Engine:
    """Computes what many threads ask, in a thread of its own. Close it, or use it in a `with`."""

    def __init__(
        self,
        direct: Backend,
        *,
        batch_tokens: int | None = None,
        max_queued_tokens: int | None = None,
        observe: Callable[[BatchStats], None] | None = None,
    ) -> None:
        self.backend = direct
        self.batch_tokens = batch_tokens or (
            direct.batch_tokens if isinstance(direct, LocalBackend) else DEFAULT_BATCH_TOKENS
        )
        self.max_queued_tokens = max_queued_tokens or WAITING_BATCHES * self.batch_tokens
        self.observe = observe
        self._turns: deque[_Request] = deque()
        self._waiting = 0
        self._closed = self._abandoned = False
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="bertsmith-engine", daemon=True)
        self._thread.start()

    @property
    def queued_tokens(self) -> int:
        """Tokens that are in no batch yet."""
        return self._waiting

    def run(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        """See `Computing`; waits until all is computed.

        Raises `Overloaded` at once where more tokens would wait than may, unless none wait; `Expired` where the
        `deadline` has passed; `Closed`; or what the computing itself raised.
        """
        if not items:
            return []
        patience = _patience.get() or Deadline()
        request = _Request(wish, items, patience, [None] * len(items), len(items))
        self._enter(request)
        finite = patience.at < float("inf")
        if not request.done.wait(patience.at - time.monotonic() if finite else None):
            self._leave(request)
        if request.error is not None:
            raise request.error
        return request.results

    def close(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Takes nothing more; ends when what waits is computed, or without it. Whether all of it was computed.

        Whoever still waits after `timeout` seconds gets `Closed`; only the batch that is under way goes on to its end.
        """
        with self._wake:
            self._closed = True
            if not drain:
                self._abandon()
            self._wake.notify_all()
        self._thread.join(timeout)
        with self._wake:
            self._abandon()
            return not self._abandoned and not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    # In the callers' threads.

    def _enter(self, request: _Request) -> None:
        tokens = request.waiting
        with self._wake:
            if self._closed:
                raise EngineClosed("the engine is closed and computes nothing more")
            if request.patience.expired:
                raise DeadlineExceeded(LATE)
            if self._waiting and self._waiting + tokens > self.max_queued_tokens:
                raise Overloaded(self._waiting + tokens, self.max_queued_tokens)
            self._waiting += tokens
            self._turns.append(request)
            self._wake.notify()

    def _leave(self, request: _Request) -> None:
        with self._wake:
            request.fail(DeadlineExceeded(LATE))
            self._forget_failed()

    # In both, with the lock.

    def _forget_failed(self) -> None:
        """Those who failed wait no longer."""
        gone = [request for request in self._turns if request.error is not None]
        self._waiting -= sum(request.waiting for request in gone)
        self._turns = deque(request for request in self._turns if request.error is None)

    def _abandon(self) -> None:
        self._abandoned |= bool(self._turns)
        for request in self._turns:
            request.fail(EngineClosed("the engine was closed before this was computed"))
        self._forget_failed()

    # In the engine's own thread.

    def _work(self) -> None:
        while parts := self._next_batch():
            self._compute(parts)

    def _next_batch(self) -> list[_Part]:
        """Waits for something to do; nothing where there will never be anything."""
        with self._wake:
            while True:
                for request in self._turns:
                    if request.patience.expired:
                        request.fail(DeadlineExceeded(LATE))
                self._forget_failed()
                if self._turns:
                    return self._taken()
                if self._closed:
                    return []
                self._wake.wait()

    def _taken(self) -> list[_Part]:
        """The items of the next batch; those who have more than that go to the end of the line."""
        wish = self._turns[0].wish
        served = [request for request in self._turns if request.wish == wish]
        firsts = [request.taken for request in served]
        room = 1 if wish.one_per_batch else self.batch_tokens
        left = room
        for share in (room // len(served), room):  # everyone their share, then the rest in order
            for request in served:
                left -= _take(request, share=share, left=left, whole=left == room)
        parts = [
            _Part(request, first, request.taken)
            for request, first in zip(served, firsts, strict=True)
            if request.taken > first
        ]
        self._waiting -= sum(item.tokens for part in parts for item in part.items)
        chosen = [part.request for part in parts]
        self._turns = deque(request for request in self._turns if request not in chosen)
        self._turns.extend(request for request in chosen if request.taken < len(request.items))
        return parts

    def _compute(self, parts: Sequence[_Part]) -> None:
        wish, items = parts[0].request.wish, [item for part in parts for item in part.items]
        began = time.perf_counter()
        try:
            results = self.backend.run(wish, items)
            assert len(results) == len(items)
        except Exception as error:  # whatever it is, it is the asker's: this thread works for others too
            if len(parts) == 1:
                with self._wake:
                    parts[0].request.fail(error)
            else:
                for part in parts:  # once more, each request alone: only those at fault fail
                    self._compute([part])
            return
        seconds = time.perf_counter() - began
        for part in parts:
            part.request.fill(part.first, results[: part.last - part.first])
            results = results[part.last - part.first :]
        self._tell(BatchStats(wish.name, len(items), sum(item.tokens for item in items), seconds))

    def _tell(self, facts: BatchStats) -> None:
        if self.observe is not None:
            try:
                self.observe(facts)
            except Exception:
                LOG.exception("what observes the engine failed")


def _take(request: _Request, *, share: int, left: int, whole: bool) -> int:
    """Takes items of a request for about `share` tokens, and no more than are `left`; how many tokens they have.

    One item is taken in any case where the batch is still `whole`, that is empty, and beyond the share if it fits.
    """
    taken = 0
    while request.taken < len(request.items):
        cost = request.items[request.taken].tokens
        if not (whole and not taken) and (taken + cost > left or (taken and taken + cost > share)):
            break
        request.taken += 1
        taken += cost
    return taken
