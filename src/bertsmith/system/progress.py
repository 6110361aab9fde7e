"""Progress of long work on standard error: one live line on a terminal and in a notebook, plain lines elsewhere,
nothing when quiet.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import Self, TextIO

PLAIN_EVERY = 10.0  # seconds between plain lines
LIVE_EVERY, NOTEBOOK_EVERY = 0.1, 0.5
BAR_WIDTH = 20


class Progress:
    """`with Progress("prepare", total=bytes) as progress: progress.update(done, documents=5_120)`."""

    def __init__(self, title: str, *, total: int, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.title, self.total, self.quiet = title, total, quiet
        self.stream = stream or sys.stderr
        self.live = not quiet and is_live(self.stream)
        self.every = PLAIN_EVERY if not self.live else NOTEBOOK_EVERY if is_notebook(self.stream) else LIVE_EVERY
        self.shown = ""  # the live line
        self.start = self.last = time.monotonic()
        self.base = 0  # done by an earlier run: excluded from the speed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live:
            self.stream.write(erase_line(self.stream, self.shown))
            self.stream.flush()

    def resume_from(self, done: int) -> None:
        """The first `done` bytes were finished by an earlier run."""
        self.base = done
        self.start = time.monotonic()

    def update(self, done: int, **counts: int) -> None:
        """Prints the progress if the last line is old enough."""
        now = time.monotonic()
        if self.quiet or now - self.last < self.every:
            return
        self.last = now
        line = self.line(done, now - self.start, counts)
        self.stream.write(f"{erase_line(self.stream, self.shown)}{line}" if self.live else f"{line}\n")
        self.shown = line
        self.stream.flush()

    def line(self, done: int, seconds: float, counts: dict[str, int]) -> str:
        """One line: title, percentage and time left if the total is known, counts, speed."""
        fraction = min(done / self.total, 1.0) if self.total else 0.0
        speed = (done - self.base) / seconds if seconds > 0 else 0.0
        left = (self.total - done) / speed if speed > 0 else 0.0
        shown = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items()]
        full = round(fraction * BAR_WIDTH)
        bar = "━" * full + "╌" * (BAR_WIDTH - full) + " " if self.live else ""
        done_and_left = [f"{self.title} {bar}{fraction:4.0%}", f"{format_duration(left)} left"]
        if not self.total:
            done_and_left = [f"{self.title} {done / 1e6:.1f} MB"]
        return fit_line([*done_and_left, *shown, f"{speed / 1e6:.1f} MB/s"], live=self.live)


def fit_line(parts: Sequence[str], *, live: bool) -> str:
    """The parts as one line, the most important first; a live line has only those that fit into the terminal.

    A line that is wrapped could not be removed again.
    """
    if not live:
        return " · ".join(parts)
    width = shutil.get_terminal_size().columns - 1
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + 3 <= width:
            line += f" · {part}"
    return line[:width]


def is_live(stream: TextIO) -> bool:
    """Whether a line can be replaced: on a terminal, and in the output of a notebook's cell."""
    return stream.isatty() or is_notebook(stream)


def is_notebook(stream: TextIO) -> bool:
    """Whether a stream is the output of a notebook's cell."""
    return any(kind.__module__.partition(".")[0] == "ipykernel" for kind in type(stream).__mro__)


def erase_line(stream: TextIO, line: str) -> str:
    """What erases the last line. A notebook supports carriage returns; escape codes would stay in its saved output."""
    return f"\r{' ' * len(line)}\r" if is_notebook(stream) else "\r\x1b[2K"


def format_duration(seconds: float) -> str:
    """`0:07`, `12:30`, `3:02:11`."""
    total = round(seconds)
    hours, minutes, rest = total // 3600, total // 60 % 60, total % 60
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
