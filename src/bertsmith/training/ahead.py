"""Batches made ahead: those of the next steps, each in a thread, while this one is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from threading import Thread

from bertsmith.errors import DataError
from bertsmith.types import Batch

PATIENCE = 300.0  # seconds until batches that do not come are an error: a file server may hang for ever


class Prefetcher:
    """`ahead(step)`, counted from 0: any step can be asked for, the ones after the last are ready soonest."""

    def __init__(self, make: Callable[[int], Sequence[Batch]], *, source: object, steps: int = 1) -> None:
        """`make` gives the micro-batches of a step, and is called for so many `steps` ahead at the same time; `source`
        is where they come from, for messages."""
        self.make, self.source, self.steps = make, source, steps
        self._next: dict[int, Future[Sequence[Batch]]] = {}
        self._waits: dict[int, float] = {}

    def __call__(self, step: int) -> Sequence[Batch]:
        """The micro-batches of a step."""
        began = time.monotonic()
        ready = self._next[step] if step in self._next else self._begin(step)
        try:
            found = ready.result(timeout=PATIENCE)
        except TooLate as error:
            raise DataError(
                f"no batch for step {step + 1:,} within {PATIENCE:g} seconds: is the disk of {self.source} in order?"
            ) from error
        self._waits[step] = time.monotonic() - began
        soon = range(step + 1, step + 1 + self.steps)
        self._next = {each: self._next[each] if each in self._next else self._begin(each) for each in soon}
        return found

    def wait_seconds(self, number: int) -> float:
        """Seconds that step `number`, counted from 1, waited for its batches; forgotten once it is told."""
        return self._waits.pop(number - 1, 0.0)

    def _begin(self, step: int) -> Future[Sequence[Batch]]:
        """Has a step's batches made in a thread of their own, which does not keep a process alive if it hangs."""
        promised: Future[Sequence[Batch]] = Future()
        Thread(target=self._keep, args=(promised, step), name=f"batches-{step}", daemon=True).start()
        return promised

    def _keep(self, promised: Future[Sequence[Batch]], step: int) -> None:
        try:
            promised.set_result(self.make(step))
        except BaseException as error:  # whoever waits for the batches is told
            promised.set_exception(error)
