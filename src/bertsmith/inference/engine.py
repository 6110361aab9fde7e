"""The batching engine: one thread that runs the queries of many callers in shared forward passes.

While one batch runs, new requests queue; the next batch takes what has arrived since. Batches grow with the load, and
no request waits for a batch to fill. Short texts are tokenized in that thread too, those of all callers together, and
the callers are woken one after the other: threads that compete for the interpreter lock cost more than the work itself
(LOG.md). Requests take turns: each batch runs the query of the oldest request, and all queued requests with an equal
query get a share of its tokens, so a small request never waits for all of a large one.
Admission follows the same rule: of a queued request only as many tokens count as the new request has itself, so that a
large request does not keep small ones out. A request that cannot be computed by its deadline is not started, or not
continued.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import LATE, DeadlineExceeded, RequestTooLarge, current_deadline
from bertsmith.inference.forward import (
    DEFAULT_BATCH_TOKENS,
    ENCODED_CHARACTERS,
    MAX_TOKENS_PER_CHARACTER,
    Backend,
    LocalBackend,
    ModelInput,
    Preparation,
    Query,
)
from bertsmith.inference.queued_request import QueuedRequest, Slice, wake_in_turn

LOG = logging.getLogger(__name__)
QUEUED_BATCHES = 64  # the default queue holds the tokens of this many batches
FULL_BATCH = 0.5  # share of `batch_tokens` from which on the speed of a batch is that of large requests
SPEED_SECONDS = 10.0  # how long a measured speed is used: the machine may have been busy with something else
MAX_CHARACTERS = 2048  # of a request whose texts the engine's thread tokenizes
SPEED_WEIGHT = 0.3  # of the latest batch in the moving average


class Overloaded(BertsmithError):
    """The queue is full."""

    def __init__(self, queued: int, limit: int) -> None:
        super().__init__(f"{queued} tokens would be queued; the limit is {limit}: try again later")
        self.queued, self.limit = queued, limit


class EngineClosed(BertsmithError):
    """The engine accepts no more requests."""


@dataclass(frozen=True)
class BatchStats:
    """Size and duration of one batch."""

    query: str  # Query.name
    inputs: int
    tokens: int
    seconds: float


class Engine:
    """A `Backend` that many threads share; forward passes run in its own thread. Close it, or use it in a `with`."""

    def __init__(
        self,
        backend: Backend,
        *,
        batch_tokens: int | None = None,
        max_queued_tokens: int | None = None,
        observe: Callable[[BatchStats], None] | None = None,
    ) -> None:
        self.backend = backend
        local_tokens = backend.batch_tokens if isinstance(backend, LocalBackend) else DEFAULT_BATCH_TOKENS
        self.batch_tokens = batch_tokens or local_tokens
        self.max_queued_tokens = max_queued_tokens or QUEUED_BATCHES * self.batch_tokens
        self.observe = observe
        self._queue: deque[QueuedRequest] = deque()
        self.queued_tokens = 0  # that are not in a batch yet
        self.reserved_tokens = 0  # of generations in progress
        self._speeds: dict[str, tuple[float, float]] = {}  # tokens per second of full batches and when, by query name
        self._closed = self._abandoned = self._idle = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="bertsmith-engine", daemon=True)
        self._thread.start()

    def run(self, query: Query, inputs: Sequence[ModelInput]) -> list[Any]:
        """See `Backend`; blocks until all results are computed.

        Raises `RequestTooLarge` as soon as it is known that the `deadline` does not suffice for the request; at once
        `Overloaded` if the queue is full (an empty one is never) or too long for the deadline; `DeadlineExceeded`,
        `EngineClosed`, or the error of the forward pass.
        """
        return self._run(QueuedRequest(query, current_deadline(), inputs=inputs)).results if inputs else []

    def run_texts(
        self, query: Query, texts: Sequence[str], preparation: Preparation
    ) -> tuple[Sequence[ModelInput], list[Any]]:
        """See `TextBackend`; as `run`.

        The engine's thread tokenizes the short texts of all waiting callers together, at most `ENCODED_CHARACTERS`
        before each batch. Long texts, and those that may have more tokens than the request may, are tokenized by the
        caller before they are queued.
        """
        own, characters = current_deadline(), sum(map(len, texts))
        most = MAX_CHARACTERS if own.max_tokens is None else own.max_tokens // MAX_TOKENS_PER_CHARACTER
        if not texts or characters > min(most, MAX_CHARACTERS):
            inputs = preparation(texts)
            return inputs, self.run(query, inputs)
        about: Any = {"texts": texts, "characters": characters, "preparation": preparation}
        request = self._run(QueuedRequest.of_texts(query, own, **about))
        return request.inputs, request.results

    def _run(self, request: QueuedRequest) -> QueuedRequest:
        self._enqueue(request)
        until = request.deadline.at
        try:
            woken = request.wait(until - time.monotonic() if until < float("inf") else None)
        except BaseException as error:  # an interrupt
            self._give_up(request, error)
            raise
        if not woken:
            self._give_up(request, DeadlineExceeded(LATE))
        if request.error is not None:
            raise request.error
        return request

    def _give_up(self, request: QueuedRequest, error: BaseException) -> None:
        """Ends a request whose caller has stopped waiting."""
        with self._changed:
            given_up = request.fail(error)
            self._drop_failed()
        if not given_up:  # its results have just come
            request.leave()

    def close(self, *, drain: bool = True, timeout: float | None = None) -> bool:
        """Accepts no more requests and stops, after the queue if `drain`. Returns whether every request was computed.

        Requests that still wait after `timeout` seconds raise `EngineClosed`; a batch that runs is finished.
        """
        with self._changed:
            self._closed = True
            if not drain:
                self._abandon()
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            self._abandon()
            return not self._abandoned and not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    def tokens_ahead(self, tokens: int) -> int:
        """The queued tokens that run before or beside a new request of so many tokens."""
        with self._changed:
            return self._tokens_ahead(tokens)

    @contextmanager
    def reserve(self, tokens: int) -> Iterator[None]:
        """Holds memory for so many tokens between calls of `run`; `Overloaded` if others hold too much of it."""
        with self._changed:
            held = self.reserved_tokens
            if held and held + tokens > self.max_queued_tokens:
                raise Overloaded(held + tokens, self.max_queued_tokens)
            self.reserved_tokens += tokens
        try:
            yield
        finally:
            with self._changed:
                self.reserved_tokens -= tokens

    def _enqueue(self, request: QueuedRequest) -> None:
        tokens = request.queued_tokens
        request.deadline.tokens += request.tokens
        with self._changed:
            if self._closed:
                raise EngineClosed("the engine is closed")
            request.deadline.check(request.tokens)
            possible = self._possible_tokens(request)
            if request.tokens > possible:
                raise self._too_large(request)
            limit = min(self.max_queued_tokens, possible)
            if self.queued_tokens + tokens > limit:  # the sum over the queue is needed only now
                ahead = self._tokens_ahead(tokens)
                if ahead and ahead + tokens > limit:
                    raise Overloaded(ahead + tokens, int(limit))
            self.queued_tokens += tokens
            self._queue.append(request)
            if self._idle:
                self._changed.notify()

    # The caller of these holds the lock.

    def _tokens_ahead(self, tokens: int) -> int:
        return sum(min(one.queued_tokens, tokens) for one in self._queue)

    def _possible_tokens(self, request: QueuedRequest) -> float:
        """The tokens that can be computed until the request's deadline; infinite if the speed is unknown."""
        speed, measured = self._speeds.get(request.query.name, (float("inf"), 0.0))
        now = time.monotonic()
        return speed * (request.deadline.at - now) if now - measured < SPEED_SECONDS else float("inf")

    def _too_large(self, request: QueuedRequest) -> RequestTooLarge:
        speed, _ = self._speeds[request.query.name]
        seconds = request.deadline.at - request.arrived
        return RequestTooLarge(request.tokens, int(speed * seconds), seconds=seconds)

    def _check_feasible(self, request: QueuedRequest) -> None:
        """Fails a request that has expired, or of which more is left than can be computed until its deadline."""
        if request.deadline.expired:
            request.fail(DeadlineExceeded(LATE))
        elif request.preparation is None and request.queued_tokens > self._possible_tokens(request):
            error = self._too_large(request)
            request.fail(error if error.tokens > error.limit else DeadlineExceeded(LATE))

    def _drop_failed(self) -> None:
        """Removes failed requests from the queue."""
        failed = [request for request in self._queue if request.error is not None]
        if not failed:
            return
        self.queued_tokens -= sum(request.queued_tokens for request in failed)
        self._queue = deque(request for request in self._queue if request.error is None)

    def _abandon(self) -> None:
        self._abandoned |= bool(self._queue)
        for request in self._queue:
            request.fail(EngineClosed("the engine was closed before the result was computed"))
        self._drop_failed()

    # The rest runs in the engine's thread.

    def _loop(self) -> None:
        while batch := self._next_batch():
            self._run_batch(batch)

    def _next_batch(self) -> list[Slice]:
        """Waits for requests; empty when the engine is closed and its queue is empty."""
        prepared = False  # texts that arrive while others are tokenized are in the batch after this one
        while True:
            with self._changed:
                self._idle = True
                while not self._queue and not self._closed:
                    self._changed.wait()
                self._idle = False
                for request in self._queue:
                    self._check_feasible(request)
                self._drop_failed()
                ready = [request for request in self._queue if request.preparation is None]
                texts = {} if prepared and ready else self._texts_to_prepare()
                if ready and not texts:
                    return self._take_batch(ready)
                if self._closed and not self._queue:
                    return []
            self._prepare(texts)
            prepared = True

    def _texts_to_prepare(self) -> dict[Preparation, list[QueuedRequest]]:
        """The requests whose texts are tokenized before the next batch, the oldest first."""
        found: dict[Preparation, list[QueuedRequest]] = {}
        characters = 0
        for request in self._queue:
            if request.preparation is not None and characters + request.characters <= ENCODED_CHARACTERS:
                characters += request.characters
                found.setdefault(request.preparation, []).append(request)
        return found

    def _prepare(self, texts: Mapping[Preparation, Sequence[QueuedRequest]]) -> None:
        """Tokenizes the texts of several requests in one call; one by one if that fails, for the errors' callers."""
        for preparation, requests in texts.items():
            try:
                inputs = iter(preparation([text for request in requests for text in request.texts]))
            except Exception as error:  # any error belongs to a caller; the thread serves others too
                if len(requests) == 1:
                    with self._changed:
                        requests[0].fail(error)
                else:
                    for request in requests:
                        self._prepare({preparation: [request]})
                continue
            with self._changed:
                for request in requests:
                    self._set_inputs(request, list(islice(inputs, len(request.texts))))

    def _set_inputs(self, request: QueuedRequest, inputs: Sequence[ModelInput]) -> None:
        if request.done:  # expired: no longer in the queue
            return
        self.queued_tokens -= request.queued_tokens
        request.set_inputs(inputs)
        self.queued_tokens += request.queued_tokens
        request.deadline.tokens += request.tokens
        try:
            request.deadline.check(request.tokens)
        except BertsmithError as error:
            request.fail(error)

    def _take_batch(self, ready: Sequence[QueuedRequest]) -> list[Slice]:
        """The inputs of the next batch, of requests in the queue; those that have more go to its end."""
        query = ready[0].query
        requests = [request for request in ready if request.query == query]
        starts = [request.started for request in requests]
        budget = 1 if query.one_per_batch else self.batch_tokens
        left = budget
        for share in (budget // len(requests), budget):  # an equal share for each request, then the rest in order
            for request in requests:
                left -= request.take(share=share, left=left, empty=left == budget)
        batch = [
            Slice(request, start, request.inputs[start : request.started])
            for request, start in zip(requests, starts, strict=True)
            if request.started > start
        ]
        self.queued_tokens -= sum(one.tokens for part in batch for one in part.inputs)
        taken = {part.request: None for part in batch}  # in order
        self._queue = deque(request for request in self._queue if request not in taken)
        self._queue.extend(request for request in taken if request.started < len(request.inputs))
        return batch

    def _run_batch(self, batch: Sequence[Slice]) -> None:
        query, inputs = batch[0].request.query, [one for part in batch for one in part.inputs]
        began = time.perf_counter()
        try:
            results = self.backend.run(query, inputs)
            assert len(results) == len(inputs)
        except Exception as error:  # any error belongs to a caller; the thread serves others too
            if len(batch) == 1:
                with self._changed:
                    batch[0].request.fail(error)
            else:
                for part in batch:  # run each request alone, so that only the failing ones fail
                    self._run_batch([part])
            return
        seconds = time.perf_counter() - began
        tokens = sum(one.tokens for one in inputs)
        self._measure_speed(query.name, tokens, seconds)
        end = 0
        with self._changed:
            done = []
            for part in batch:
                begin, end = end, end + len(part.inputs)
                if part.request.add_results(part.start, results[begin:end]):
                    done.append(part.request)
            wake_in_turn(done)
        if self.observe is not None:
            try:
                self.observe(BatchStats(query.name, len(inputs), tokens, seconds))
            except Exception:
                LOG.exception("the observer of the engine failed")

    def _measure_speed(self, query: str, tokens: int, seconds: float) -> None:
        """Only of full batches: a small one says little about a large request."""
        if tokens < FULL_BATCH * self.batch_tokens:
            return
        with self._changed:
            now, speed = time.monotonic(), tokens / max(seconds, 1e-6)
            old, measured = self._speeds.get(query, (speed, now))
            if now - measured < SPEED_SECONDS:
                speed = SPEED_WEIGHT * speed + (1 - SPEED_WEIGHT) * old
            self._speeds[query] = speed, now
