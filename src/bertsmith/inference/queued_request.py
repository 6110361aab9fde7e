"""A request in the queue of the batching engine: model inputs, or texts that the engine's thread tokenizes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from bertsmith.inference.deadline import Deadline
from bertsmith.inference.forward import ModelInput, Preparation, Query

CHARACTERS_PER_TOKEN = 4  # of a text that is not tokenized yet, to estimate its tokens


class QueuedRequest:
    """One call of `Engine.run` or `Engine.run_texts`. Methods that change it need the engine's lock."""

    def __init__(self, query: Query, deadline: Deadline, *, inputs: Sequence[ModelInput] = ()) -> None:
        self.query, self.deadline = query, deadline
        self.texts: Sequence[Any] = ()  # until they are model inputs
        self.preparation: Preparation | None = None  # of `texts`; None: there are model inputs
        self.arrived = time.monotonic()
        self.started = 0  # inputs that are or were in a batch
        self.error: BaseException | None = None
        self.done = self._woken = False
        self._next: QueuedRequest | None = None  # whose caller this one's caller wakes
        self._wait = threading.Lock()  # held until the caller is woken; much cheaper than an Event
        self._wait.acquire()
        self.set_inputs(inputs)

    @classmethod
    def of_texts(
        cls, query: Query, deadline: Deadline, *, texts: Sequence[Any], characters: int, preparation: Preparation
    ) -> QueuedRequest:
        """A request whose number of tokens is an estimate until its texts are prepared."""
        request = cls(query, deadline)
        request.texts, request.preparation, request.characters = texts, preparation, characters
        request.queued_tokens = characters // CHARACTERS_PER_TOKEN + len(texts)
        return request

    def set_inputs(self, inputs: Sequence[ModelInput]) -> None:
        """The model inputs, which replace the texts."""
        self.inputs, self.characters, self.preparation = inputs, 0, None
        self.results: list[Any] = [None] * len(inputs)
        self.missing = len(inputs)  # inputs without a result
        self.tokens = self.queued_tokens = sum([one.tokens for one in inputs])  # `queued_tokens`: not in a batch yet

    def wait(self, seconds: float | None) -> bool:
        """Whether it is done within so many seconds; needs no lock."""
        if not self._wait.acquire(timeout=-1 if seconds is None else max(seconds, 0)):
            return False
        if self._next is not None:
            self._next.wake()
        return True

    def leave(self) -> None:
        """Instead of `wait` after an interrupt or a time-out, if the request is done: its caller may wake others."""
        if not self._woken:
            self._wait.acquire()
        if self._next is not None:
            self._next.wake()

    def wake(self) -> None:
        """Wakes the caller of a request that is done."""
        if not self._woken:
            self._woken = True
            self._wait.release()

    def fail(self, error: BaseException) -> bool:
        """Ends the request and wakes its caller; False if it had already ended."""
        if self.done:
            return False
        self.error, self.done = error, True
        self.wake()
        return True

    def add_results(self, start: int, results: Sequence[Any]) -> bool:
        """The results of the inputs from `start` on. Whether they end the request, so that its caller can be woken."""
        self.results[start : start + len(results)] = results
        self.missing -= len(results)
        ended = not self.missing and not self.done
        self.done |= ended
        return ended

    def take(self, *, share: int, left: int, empty: bool) -> int:
        """Moves inputs to the batch: about `share` tokens, at most `left`. Returns their tokens.

        The first input of an `empty` batch is taken whatever its size; the first of a request may exceed the share.
        """
        tokens = 0
        while self.started < len(self.inputs):
            cost = self.inputs[self.started].tokens
            if not (empty and not tokens) and (tokens + cost > left or (tokens and tokens + cost > share)):
                break
            self.started += 1
            tokens += cost
        self.queued_tokens -= tokens
        return tokens


class Slice(NamedTuple):
    """The inputs of one request that are in a batch."""

    request: QueuedRequest
    start: int
    inputs: Sequence[ModelInput]


def wake_in_turn(requests: Sequence[QueuedRequest]) -> None:
    """Wakes the callers of requests that are done: the first one, whose caller wakes the next, and so on.

    If all woke at once they would contend for the interpreter, each with a time-out of its own.
    """
    for request, following in pairwise(requests):
        request._next = following
    if requests:
        requests[0].wake()
