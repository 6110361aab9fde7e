"""How long work shows that it is under way: a live bar on a terminal, plain lines elsewhere, nothing when quiet.

Everything goes to standard error, so that standard output holds results only.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

PLAIN_EVERY = 10.0  # seconds between plain lines
LIVE_EVERY = 0.1


class Progress:
    """`with Progress("prepare", total=bytes) as progress: progress.at(done, documents=5_120)`."""

    def __init__(self, title: str, *, total: int, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.title = title
        self.total = total
        self.stream = stream or sys.stderr
        self.quiet = quiet
        self.live = not quiet and self.stream.isatty()
        self.began = time.monotonic()
        self.last = self.began
        self.base = 0  # where the work stood when it went on from an earlier run: not counted into the speed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()

    def resume_from(self, done: int) -> None:
        """Says that the first `done` bytes were finished by an earlier run."""
        self.base = done
        self.began = time.monotonic()

    def update(self, done: int, **counts: int) -> None:
        """Shows where the work stands, if it is time to."""
        now = time.monotonic()
        if self.quiet or now - self.last < (LIVE_EVERY if self.live else PLAIN_EVERY):
            return
        self.last = now
        line = self.line(done, now - self.began, counts)
        self.stream.write(f"\r\x1b[2K{line}" if self.live else f"{line}\n")
        self.stream.flush()

    def line(self, done: int, seconds: float, counts: dict[str, int]) -> str:
        """One line: title, share, counts, speed, time left."""
        share = min(done / self.total, 1.0) if self.total else 0.0
        speed = (done - self.base) / seconds if seconds > 0 else 0.0
        left = (self.total - done) / speed if speed > 0 else 0.0
        shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()]
        bar = f"{_bar(share)} " if self.live else ""
        parts = [f"{self.title} {bar}{share:4.0%}", *shown, f"{speed / 1e6:.1f} MB/s", f"{format_duration(left)} left"]
        return " · ".join(parts)


def _bar(share: float, width: int = 20) -> str:
    full = round(share * width)
    return "━" * full + "╌" * (width - full)


def format_duration(seconds: float) -> str:
    """`0:07`, `12:30`, `3:02:11`."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
