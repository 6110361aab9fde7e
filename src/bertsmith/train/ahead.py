"""Batches made ahead: the next step's in a thread, while this one is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from threading import Thread

from bertsmith.errors import DataError
from bertsmith.types import Batch

PATIENCE = 300.0  # seconds until batches that do not come are an error: a file server may hang for ever


class Ahead:
    """`ahead(step)`, counted from 0: any step can be asked for, the one after the last is ready soonest."""

    def __init__(self, make: Callable[[int], Sequence[Batch]], *, source: object) -> None:
        """`make` gives the micro-batches of a step; `source` is where they come from, for messages."""
        self.make, self.source = make, source
        self._next: tuple[int, Future[Sequence[Batch]]] | None = None
        self._waits: dict[int, float] = {}

    def __call__(self, step: int) -> Sequence[Batch]:
        """The micro-batches of a step."""
        began, waiting = time.monotonic(), self._next
        ready = waiting[1] if waiting is not None and waiting[0] == step else self._begin(step)
        try:
            found = ready.result(timeout=PATIENCE)
        except TooLate as error:
            raise DataError(
                f"no batch for step {step + 1:,} within {PATIENCE:g} seconds: is the disk of {self.source} in order?"
            ) from error
        self._waits[step] = time.monotonic() - began
        self._next = (step + 1, self._begin(step + 1))
        return found

    def waited(self, number: int) -> float:
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
