"""HTTP/1.1 with deadlines: for a header to arrive, for a body, and for an answer to be taken.

uvicorn waits for ever for each. Every connection notes what it waits for and since when; one sweep over all of them,
twice a second or more often, cuts those that are late.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertsmith.server.errors import RequestError
from bertsmith.server.metrics import Metrics
from bertsmith.server.settings import Limits, flag

UNREAD_GRACE = 1.0  # seconds in which a busy loop reads what has come to an idle connection
BODY_GRACE = 1.5  # the guard answers a slow body first; a connection that goes on all the same is cut after this


class DeadlineProtocol(H11Protocol):
    """A connection that is cut when it is late. Each server has a subclass with its own `limits` and `metrics`."""

    limits: Limits
    metrics: Metrics

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits_for, self.since = "header", time.monotonic()
        self.unsent_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            most = self.limits.max_connections
            full = f"{most} connections are open, and no more may be: {flag('max_connections')}"
            self._end(RequestError(503, "overloaded", full))

    def data_received(self, data: bytes) -> None:
        """Takes what has come; too late is too late."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._note()

    def on_response_complete(self) -> None:
        """An answer is written, though perhaps not yet taken."""
        super().on_response_complete()
        self._note()

    def timeout_keep_alive_handler(self) -> None:
        """Ends an idle connection, unless a request has come that a busy loop has not read yet: it would be lost."""
        there = self.transport.get_extra_info("socket")
        if there is not None and not self.transport.is_closing() and _unread(there.fileno()):
            self.timeout_keep_alive_task = self.loop.call_later(UNREAD_GRACE, self.timeout_keep_alive_handler)
            return
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()  # told at once: closing waits for the loop, and callers would go on sending
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """What was sent is no HTTP."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._end(RequestError(400, "validation", "this is no HTTP request that can be read"))
        else:
            self.transport.close()

    def _note(self) -> None:
        """What this connection waits for now."""
        if self.conn.their_state is h11.SEND_BODY:
            now = "body"
        elif self.conn.their_state is h11.IDLE:
            buffered = bool(self.conn.trailing_data[0])
            now = "header" if buffered else "nothing"  # between two requests the idle time-out is uvicorn's
        else:
            now = "nothing"
        if now != self.waits_for:
            self.waits_for, self.since = now, time.monotonic()

    def sweep(self, now: float) -> None:
        """Cuts this connection where it is late."""
        waiting = now - self.since
        if self.waits_for == "header" and waiting > self.limits.read_seconds:
            seconds = f"{self.limits.read_seconds:g} s: {flag('read_seconds')}"
            self._end(RequestError(408, "deadline", f"the header did not arrive within {seconds}"))
        elif self.waits_for == "body" and waiting > self.limits.read_seconds + BODY_GRACE:
            self._cut("body")
        if not self.transport.get_write_buffer_size():
            self.unsent_since = None
        elif self.unsent_since is None:
            self.unsent_since = now
        elif now - self.unsent_since > self.limits.write_seconds:
            self._cut("answer")

    def _cut(self, what: str) -> None:
        self.metrics.rejections.labels(f"slow {what}").inc()
        line = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it has gone by itself
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # the kernel forgets it too
        self.transport.abort()

    def _end(self, problem: RequestError) -> None:
        """Answers without a request, and closes."""
        body = problem.body()
        reasons = {400: "Bad Request", 408: "Request Timeout", 503: "Service Unavailable"}
        head = (
            f"HTTP/1.1 {problem.status} {reasons[problem.status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        self.waits_for, self.since = "nothing", time.monotonic()
        self.metrics.requests.labels("connection", str(problem.status)).inc()
        self.transport.write(head.encode() + body)
        self.transport.close()


async def sweep(connections: set[Any], limits: Limits) -> None:
    """Looks at all connections for ever."""
    every = min(0.5, limits.read_seconds / 4, limits.write_seconds / 4)
    while True:
        await asyncio.sleep(every)
        now = time.monotonic()
        for connection in list(connections):
            connection.sweep(now)


def _unread(connection: int) -> bool:
    """Whether something has come on a connection, its end included."""
    if not hasattr(select, "poll"):
        return bool(select.select([connection], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))
