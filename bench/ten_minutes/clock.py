"""Clocks of the contest: one that stands still while nothing is learned, and one that ends a call in time."""

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
    """Seconds that go on, as `time.monotonic`, but for those in `paused`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._left_out = 0.0
        self._still: float | None = None  # where it stands while it is paused

    def __call__(self) -> float:
        return time.monotonic() - self._left_out if self._still is None else self._still

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens within costs no time. The device first ends what it was given before: that does."""
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
        """Returns when the device has nothing left to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Turn:
    """One of several runs learns at a time, while others compile: whoever has locked a file that all of them name."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path  # None: nobody else is there
        self._file: IO[bytes] | None = None

    def take(self, give_up: Callable[[], bool]) -> None:
        """Returns when it is this run's turn, or when there is no more use in waiting."""
        if self.path is None or self._file is not None:
            return
        self._file = self.path.open("ab")
        while not give_up():
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.05)

    def close(self) -> None:
        """It is somebody else's turn."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def stop_after(seconds: float) -> Iterator[None]:
    """Sends this process SIGTERM after so many seconds, 0: never. A run that hears it saves and ends.

    Where no run listens, the signal becomes `Stopped`.
    """
    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGTERM, _stopped)
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before)


def _stopped(number: int, frame: FrameType | None) -> None:
    raise StoppedError("the time of this call is over; finished work is kept: run the same command again to resume")
