"""One line for each request: method, route, status, time, tokens, number. Never a text, a header or a query."""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertsmith.server.request import RequestContext

Write = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Writes a line at once; a reader that has gone is no reason to stop serving."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


class Log:
    """Plain lines, or JSON objects, on standard error."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False, write: Write = to_stderr) -> None:
        self.as_json, self.quiet, self.write = as_json, quiet, write

    def request(self, visit: RequestContext) -> None:
        """An answered request."""
        if self.quiet:
            return
        facts = {
            "method": visit.method,
            "path": visit.route,
            "status": visit.status,
            "ms": round(visit.seconds * 1000, 1),
            "tokens": visit.tokens,
            "id": visit.number,
        }
        plain = f"{visit.method} {visit.route} {visit.status} {facts['ms']} ms {visit.tokens} tokens {visit.number}"
        self._line("request", plain, facts)

    def event(self, name: str, plain: str, **facts: Any) -> None:
        """Something about the server itself."""
        self._line(name, plain, facts)

    def defect(self, visit: RequestContext, error: BaseException) -> None:
        """What only we can cause: where it was raised and of what kind, but not its message, which may quote a text."""
        frames = traceback.extract_tb(error.__traceback__)
        trail = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-6:]))
        kind = type(error).__name__
        self._line(
            "defect", f"defect {kind} at {trail} {visit.number}", {"kind": kind, "at": trail, "id": visit.number}
        )

    def _line(self, name: str, plain: str, facts: dict[str, Any]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + "Z"
        if self.as_json:
            self.write(json.dumps({"time": now, "event": name, **facts}, ensure_ascii=False))
        else:
            self.write(f"{now} {plain}")


class Through(logging.Handler):
    """Lets the log lines of libraries through as events, without their tracebacks."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One line: who said what; of exceptions only their kind."""
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        message = " ".join(record.msg.split()) if isinstance(record.msg, str) else type(record.msg).__name__
        self.log.event("library", f"{record.name}: {message} {kind}".rstrip(), source=record.name, message=message)
