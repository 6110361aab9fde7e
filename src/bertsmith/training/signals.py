"""SIGTERM and SIGINT set a flag that the trainer reads between steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import FrameType
from typing import Any, ClassVar, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """`with StopSignal() as stop_signal:` the first signal requests an orderly end, a second one interrupts at once.

    Not under torchrun and not in a worker process: their parents forward a signal that may have arrived already, and
    kill the process after a while.
    """

    received: ClassVar[bool] = False  # whether a signal has arrived since the last context was entered

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Requests an end, as a signal does."""
        self.requested = True

    def __enter__(self) -> Self:
        StopSignal.received = False
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and "TORCHELASTIC_RUN_ID" not in os.environ and multiprocessing.parent_process() is None:
            raise KeyboardInterrupt
        StopSignal.received = True
        self.request()
