"""A sequence of commands of bertsmith, which can be stopped in between and run again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from bench.ten_minutes.pipeline import run_parts, run_subprocess


class CommandChain:
    """Prints and runs commands; a file NAME.done in `work` marks those that are finished and are not repeated."""

    def __init__(self, work: Path) -> None:
        self.work = work
        work.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, words: Sequence[object]) -> None:
        """Runs a command, unless it is finished; raises `StoppedError` where this process is asked to stop."""
        if self.is_done(name):
            return
        command, began = [str(word) for word in words], time.monotonic()
        run_parts([command], "bertsmith", lambda arguments: run_subprocess(arguments, "bertsmith"))
        self._marker(name).write_text(" ".join(command))
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)

    def is_done(self, name: str) -> bool:
        return self._marker(name).exists()

    def _marker(self, name: str) -> Path:
        return self.work / f"{name}.done"
