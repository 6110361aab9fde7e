"""A sequence of commands of bertsmith, which can be stopped in between and run again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.ten_minutes.pipeline import run_parts, run_subprocess
from bertsmith.errors import BertsmithError
from bertsmith.training.clock import stop_after


def add_options(parser: argparse.ArgumentParser, stages: Sequence[str]) -> None:
    """The options of every study in stages."""
    parser.add_argument("--only", nargs="+", choices=stages, default=stages)
    parser.add_argument("--set", action="append", default=[], metavar="STAGE:SETTING=VALUE")
    parser.add_argument("--stop-after", type=float, default=0.0, metavar="SECONDS", help="0: never")
    parser.add_argument("--device", default="auto")


def run_stages(make: Callable[[argparse.Namespace], object], options: argparse.Namespace, stages: Sequence[str]) -> int:
    """Calls the methods of a study that are chosen stages, in order; returns the exit status."""
    try:
        with stop_after(options.stop_after):
            study = make(options)
            for stage in (stage for stage in stages if stage in options.only):
                getattr(study, stage)()
    except BertsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


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
