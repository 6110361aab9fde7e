"""Prefetching: the batches of the next steps are made in threads while the current step is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from threading import Thread

from bertsmith.errors import DataError
from bertsmith.types import Batch

TIMEOUT = 300.0  # seconds; a file server may hang for ever


class Prefetcher:
    """`prefetcher(step)`, counted from 0, in any order; the steps after the last one requested are prefetched."""

    def __init__(self, make: Callable[[int], Sequence[Batch]], *, source: object, steps: int = 1) -> None:
        """`make` returns the micro-batches of a step, for `steps` steps ahead at a time; `source` is for messages."""
        self.make, self.source, self.steps = make, source, steps
        self._next: dict[int, Future[Sequence[Batch]]] = {}
        self._waits: dict[int, float] = {}

    def __call__(self, step: int) -> Sequence[Batch]:
        began = time.monotonic()
        future = self._next[step] if step in self._next else self._start(step)
        try:
            batches = future.result(timeout=TIMEOUT)
        except FutureTimeoutError as error:
            raise DataError(
                f"no batch for step {step + 1:,} within {TIMEOUT:g} seconds: check the disk of {self.source}"
            ) from error
        self._waits[step] = time.monotonic() - began
        ahead = range(step + 1, step + 1 + self.steps)
        self._next = {each: self._next[each] if each in self._next else self._start(each) for each in ahead}
        return batches

    def wait_seconds(self, number: int) -> float:
        """Seconds that step `number`, counted from 1, waited for its batches; available once."""
        return self._waits.pop(number - 1, 0.0)

    def _start(self, step: int) -> Future[Sequence[Batch]]:
        """Makes a step's batches in a daemon thread, which does not keep the process alive if it hangs."""
        future: Future[Sequence[Batch]] = Future()
        Thread(target=self._fulfil, args=(future, step), name=f"batches-{step}", daemon=True).start()
        return future

    def _fulfil(self, future: Future[Sequence[Batch]], step: int) -> None:
        try:
            future.set_result(self.make(step))
        except BaseException as error:  # raised in the thread that waits for the batches
            future.set_exception(error)
