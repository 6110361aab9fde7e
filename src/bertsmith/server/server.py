"""The HTTP server: uvicorn with deadlines for slow clients and an orderly shutdown.

uvicorn itself waits forever for a header, for a body, and for a client to read its response. Here every connection
records what it waits for and since when; a periodic sweep closes the connections that are late.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import re
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bertsmith.errors import BertsmithError, StoppedError
from bertsmith.inference.predictor import Predictor
from bertsmith.server.app import build
from bertsmith.server.errors import RETRY_AFTER, ErrorType, RequestError
from bertsmith.server.middleware import HEADERS, OVERFLOW, Gateway
from bertsmith.server.monitoring import LibraryLogHandler, Log, RequestContext
from bertsmith.server.settings import Limits, flag

BACKLOG = 1024
OVERFLOW_CONNECTIONS = 32  # over the limit that may wait for a header
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,9})[ \t]*\r\n")
HEADER_BYTES = 16 << 10
SEND_BUFFER = 256 << 10  # kernel bytes per connection: the default lets every slow reader hold megabytes
SWITCH_INTERVAL = 0.0002  # seconds between thread switches: a model releases the GIL after every operation
UNREAD_GRACE = 1.0  # seconds for a busy event loop to read a request on an idle connection
BODY_GRACE = 1.5  # seconds: the middleware answers a slow body first; after this the connection is aborted


class DeadlineProtocol(H11Protocol):
    """HTTP/1.1 connection with deadlines. Each server has a subclass with its own `gateway`."""

    gateway: Gateway

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits, self.metrics = self.gateway.limits, self.gateway.metrics
        self.waits_for, self.since = "header", time.monotonic()
        self.unsent_since: float | None = None
        self.closes = False  # after a rejection
        self.early = b""  # data that arrived before a rejection was sent
        self.overflows = False  # the server has its maximum of connections without this one

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts a connection. Those over the limit are for health checks; if too many wait, the oldest is closed."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self.overflows, self.app = True, self._overflow_app
            every: set[Any] = self.connections
            waiting = [one for one in every if one.overflows and one.waits_for == "header" and not one.has_unread()]
            if len(waiting) > OVERFLOW_CONNECTIONS:
                min(waiting, key=lambda one: float(one.since))._abort("overflow")

    async def _overflow_app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.gateway({**scope, OVERFLOW: True}, receive, send)

    def data_received(self, data: bytes) -> None:
        """Ignores data that arrives after the deadline."""
        if self.transport.is_closing():
            return
        if self.waits_for == "rejection":
            self.early += data
            if len(self.early) > HEADER_BYTES:
                self.flow.pause_reading()
        elif not self._reject_unparsed(data):
            super().data_received(data)
            self._update_state()

    def _reject_unparsed(self, data: bytes) -> bool:
        """Rejects a request to an overloaded server before anything is parsed, if it has arrived completely.

        Rejections must not take the time of the requests that are computed.
        """
        if not self.gateway.service.near_capacity or not data.startswith(b"POST /") or self.overflows:
            return False
        head, _, body = data.partition(b"\r\n\r\n")
        head = head.lower() + b"\r\n"
        length = CONTENT_LENGTH.findall(head)
        complete = len(length) == 1 and int(length[0]) == len(body) and self.conn.their_state is h11.IDLE
        if not complete or self.conn.trailing_data[0] or b"\r\ntransfer-encoding:" in head or b"\r\nexpect:" in head:
            return False
        rejected = self.gateway.reject_unparsed(data[5 : data.index(b" ", 5)].decode("latin-1"), len(body))
        if rejected is None:
            return False
        context, error, seconds = rejected
        self._unset_keepalive_if_required()
        self.waits_for, self.since = "rejection", time.monotonic()
        self.closes = error.close or b"\r\nconnection: close" in head or b" http/1.0\r\n" in head
        self.gateway.rejections.add(seconds, self._send_rejection, context, error)
        return True

    def _send_rejection(self, context: RequestContext, error: RequestError) -> None:
        self.gateway.finish_rejection(context, error)
        if self.transport.is_closing():
            return
        close = self.closes or self.gateway.service.draining
        head, body = _rejection_bytes(error.status, error.error_type, error.message, context.openai, close)
        self.transport.write(b"%sx-request-id: %s\r\n\r\n%s" % (head, context.id.encode(), body))
        self.waits_for, self.since = "idle", time.monotonic()
        early, self.early = self.early, b""
        if close:
            self.transport.close()
        elif early:
            self.flow.resume_reading()
            self.data_received(early)

    def shutdown(self) -> None:
        """Closes an idle connection; one that waits for a rejection is closed after it."""
        self.closes = True
        if self.waits_for != "rejection":
            super().shutdown()

    def has_unread(self) -> bool:
        """Whether the socket has data that a busy event loop has not read yet."""
        connection = self.transport.get_extra_info("socket")
        return connection is not None and not self.transport.is_closing() and _has_unread(connection.fileno())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_state()

    def timeout_keep_alive_handler(self) -> None:
        """Closes an idle connection, unless it has a request that a busy event loop has not read yet."""
        if self.has_unread():
            self.timeout_keep_alive_task = self.loop.call_later(UNREAD_GRACE, self.timeout_keep_alive_handler)
            return
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()  # close() would wait for the event loop, while the client may send a request
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Responds to malformed HTTP."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            self._respond_and_close(RequestError(400, "validation", "this is not a valid HTTP request"))
        else:
            self.transport.close()

    def _update_state(self) -> None:
        if self.conn.their_state is h11.SEND_BODY:
            state = "body"
        elif self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            state = "header"
        else:
            state = "nothing"  # between requests uvicorn's own keep-alive timeout applies
        if state != self.waits_for:
            self.waits_for, self.since = state, time.monotonic()

    def check_deadlines(self, now: float) -> None:
        """Closes this connection if it is late."""
        waiting = now - self.since
        if self.waits_for == "header" and waiting > self.limits.read_seconds:
            seconds = f"{self.limits.read_seconds:g} s ({flag('read_seconds')})"
            self._respond_and_close(RequestError(408, "deadline", f"the header did not arrive within {seconds}"))
        elif self.waits_for == "idle" and waiting > self.limits.idle_seconds:
            self.timeout_keep_alive_handler()
        elif self.waits_for == "body" and waiting > self.limits.read_seconds + BODY_GRACE:
            self._abort("slow body")
        if not self.transport.get_write_buffer_size():
            self.unsent_since = None
        elif self.unsent_since is None:
            self.unsent_since = now
        elif now - self.unsent_since > self.limits.write_seconds:
            self._abort("slow reader")

    def _abort(self, reason: str) -> None:
        self.metrics.rejections.labels(reason).inc()
        connection = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # closed already; otherwise the kernel drops its buffer too
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _respond_and_close(self, error: RequestError) -> None:
        """Responds without a complete request, and closes."""
        self.waits_for, self.since = "nothing", time.monotonic()
        self.metrics.requests.labels("connection", str(error.status)).inc()
        self.transport.write(_response_bytes(error, error.body(), {"connection": "close"}))
        self.transport.close()


def _response_bytes(error: RequestError, body: bytes, headers: Mapping[str, str]) -> bytes:
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{lines}\r\n".encode() + body


@lru_cache(64)
def _rejection_bytes(status: int, kind: ErrorType, message: str, openai: bool, close: bool) -> tuple[bytes, bytes]:
    """The header of a rejection, without its end, and its body."""
    error = RequestError(status, kind, message)
    headers = HEADERS | RETRY_AFTER | ({"connection": "close"} if close else {})
    head, _, body = _response_bytes(error, error.body(openai=openai), headers).partition(b"\r\n\r\n")
    return head + b"\r\n", body


async def sweep_connections(connections: set[Any], limits: Limits) -> None:
    """Checks the deadlines of all connections, forever."""
    interval = min(0.5, limits.read_seconds / 4, limits.write_seconds / 4)
    while True:
        await asyncio.sleep(interval)
        now = time.monotonic()
        for connection in list(connections):
            connection.check_deadlines(now)


def _has_unread(descriptor: int) -> bool:
    """Whether a socket has data, or its end, to read."""
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Called before models are loaded, so that a wrong address fails at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise BertsmithError(f"--host {host} is not a known address") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        reasons = {
            errno.EADDRINUSE: f"port {port} of {host} is in use: choose another --port",
            errno.EACCES: f"port {port} requires privileges: choose a --port over 1023",
            errno.EADDRNOTAVAIL: f"--host {host} is not an address of this machine",
        }
        reason = reasons.get(getattr(error, "errno", None) or 0)
        raise BertsmithError(reason or f"{host} port {port} cannot be used: {error}") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with deadlines; the first signal drains it, the second stops it at once."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.limits = gateway, gateway.limits
        protocol = type("Protocol", (DeadlineProtocol,), {"gateway": gateway})
        config = uvicorn.Config(
            gateway,
            http=protocol,
            ws="none",
            proxy_headers=False,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=gateway.limits.idle_seconds,  # type: ignore[arg-type] # fractions work too
            timeout_graceful_shutdown=gateway.limits.drain_seconds,  # type: ignore[arg-type] # fractions work too
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        super().__init__(config)
        self.lost = 0  # accepted requests without a response
        self.ready = threading.Event()
        self._sweep: asyncio.Task[None] | None = None
        library = logging.getLogger("uvicorn.error")
        library.handlers, library.propagate = [LibraryLogHandler(gateway.log)], False
        library.setLevel(logging.WARNING)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._sweep = asyncio.create_task(sweep_connections(self.server_state.connections, self.limits))
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts nothing new, and finishes the requests in progress."""
        self.gateway.service.draining = True
        in_progress = self.gateway.in_progress
        self.gateway.log.event("stopping", f"stopping: {in_progress} requests in progress", in_progress=in_progress)
        until = asyncio.get_running_loop().time() + self.limits.drain_seconds
        await super().shutdown(sockets)
        while self.gateway.in_progress and not self.force_exit and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        self.lost = self.gateway.in_progress + self.gateway.aborted
        if self._sweep is not None:
            self._sweep.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Does not record the signal, so that uvicorn does not raise it again: a drained server exits with 0."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.gateway.service.draining = True


def serve(gateway: Gateway, listener: socket.socket) -> None:
    """Serves until a signal; raises `StoppedError` if accepted requests could not be finished."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    server, log, drain_seconds = Server(gateway), gateway.log, gateway.limits.drain_seconds
    names, address = ", ".join(gateway.service.models), address_of(listener)
    log.event("serving", f"serving {names} on {address}", models=names, address=address)
    if gateway.api_key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        log.event("open", "anyone who can reach this address can use the server: --api-key-file requires a key")
    server.run([listener])
    log.event("stopped", f"stopped: {server.lost} requests lost", lost=server.lost)
    if server.force_exit:
        os._exit(StoppedError.exit_code)  # worker threads may still run
    finished = gateway.service.close(seconds=drain_seconds)
    if server.lost or not finished:
        raise StoppedError(f"{server.lost} requests were not finished within --drain-seconds {drain_seconds:g}")


@contextlib.contextmanager
def running(models: Mapping[str, Predictor], *, log: Log | None = None, **options: Any) -> Iterator[str]:
    """A server in a thread of this process, on a free port; yields its URL. Options as in `build`."""
    listener, log = listen("127.0.0.1", 0), log or Log(quiet=True, write=lambda line: None)
    server = Server(build(models, log=log, **options))
    thread = threading.Thread(target=server.run, args=([listener],), name="bertsmith-server")
    thread.start()
    try:
        server.ready.wait()
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        server.gateway.service.close(seconds=server.limits.drain_seconds)
