"""Calls the command line within this process, since starting Python and torch takes seconds."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from bertsmith import cli


class Done(NamedTuple):
    """The result of a call."""

    returncode: int
    stdout: str
    stderr: str


def call(*words: object) -> Done:
    """`bertsmith words...`; stdout and stderr encode text as those of a process do."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", errors="backslashreplace")
    status: object = 0
    with (
        mock.patch.object(sys, "argv", ["bertsmith", *map(str, words)]),
        mock.patch.dict("os.environ", {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
    assert isinstance(status, int)
    return Done(status, *(_written(stream) for stream in (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()
