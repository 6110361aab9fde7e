"""Clocks of timed runs: a stopwatch that pauses outside training steps, a training lock and a time limit."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

import torch

from bertsmith.errors import StoppedError


class Stopwatch:
    """Seconds as in `time.monotonic`, excluding the time spent in `paused`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._left_out = 0.0
        self._still: float | None = None  # the reading while paused

    def __call__(self) -> float:
        return time.monotonic() - self._left_out if self._still is None else self._still

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock inside the block. Work already queued on the device is finished first and is counted."""
        self.wait()
        began = time.monotonic()
        self._still = began - self._left_out
        try:
            yield
            self.wait()
        finally:
            self._left_out += time.monotonic() - began
            self._still = None

    def wait(self) -> None:
        """Waits until the device has finished all queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class TrainingLock:
    """File lock shared by several runs: one trains at a time while the others compile."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path  # None: no other runs, never blocks
        self._file: IO[bytes] | None = None

    def acquire(self, cancelled: Callable[[], bool]) -> None:
        """Blocks until this run holds the lock, or until `cancelled()` returns true."""
        if self.path is None or self._file is not None:
            return
        self._file = self.path.open("ab")
        while not cancelled():
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)

    def close(self) -> None:
        """Releases the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Sends this process SIGTERM after `seconds` (0: never). A run that handles it saves and exits.

    Without a running trainer, the signal ends the block with `StoppedError`, wherever it is: code that handles errors
    of its own does not see it.
    """
    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_time_over)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    except _TimeOver:
        message = "the time of this call is over; finished work is kept: run the same command again to resume"
        raise StoppedError(message) from None
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


class _TimeOver(BaseException):
    """Raised by a signal, hence anywhere; like `KeyboardInterrupt` not an `Exception`."""


def _raise_time_over(number: int, frame: FrameType | None) -> None:
    raise _TimeOver
