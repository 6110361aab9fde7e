"""A wish to stop, as a flag: SIGTERM and SIGINT set it, the trainer reads it between steps."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """`with Stopper() as stopper:` the first signal asks for an orderly end, a second one interrupts at once.

    Not under torchrun, nor in a worker of ours: who started those hands on a signal that they may have heard already,
    and kills them after a while.
    """

    received: ClassVar[bool] = False  # whether a signal has come since the last of them began

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Asks for an end, as a signal does."""
        self.requested = True

    def __enter__(self) -> Self:
        StopSignal.received = False
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self._before = {number: signal.signal(number, self._heard) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.requested and "TORCHELASTIC_RUN_ID" not in os.environ and multiprocessing.parent_process() is None:
            raise KeyboardInterrupt
        StopSignal.received = True
        self.request()
