"""The server: listens, serves until it is told to stop, and then finishes what it has taken on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from bertsmith.errors import BertsmithError, StoppedError
from bertsmith.inference.predictor import Predictor
from bertsmith.server.app import build
from bertsmith.server.middleware import Gateway
from bertsmith.server.monitoring import Log, Through
from bertsmith.server.protocol import DeadlineProtocol, sweep
from bertsmith.server.settings import Limits

BACKLOG = 1024
HEADER_BYTES = 16 << 10
SEND_BUFFER = 256 << 10  # bytes of the kernel for each connection: otherwise slow readers would hold megabytes each
LIBRARY = "uvicorn.error"
SWITCH = 0.0002  # seconds until a thread must let another one on: a model asks for that after every operation


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address, before any model is opened: an address that is taken is told at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise BertsmithError(f"--host {host} is no address that can be found") from None
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        found.bind(address)
    except (OSError, OverflowError) as error:
        found.close()
        reasons = {
            errno.EADDRINUSE: f"port {port} of {host} is in use: choose another --port",
            errno.EACCES: f"port {port} needs more rights than this user has: choose a --port over 1023",
            errno.EADDRNOTAVAIL: f"--host {host} is no address of this machine",
        }
        known = reasons.get(getattr(error, "errno", None) or 0)
        raise BertsmithError(known or f"{host} port {port} cannot be used: {error}") from None
    return found


def address_of(listener: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with deadlines; the first signal lets it finish, the second ends it at once."""

    def __init__(self, guard: Gateway, *, log: Log) -> None:
        self.guard, self.log, self.limits = guard, log, guard.limits
        protocol = type("Protocol", (DeadlineProtocol,), {"limits": guard.limits, "metrics": guard.metrics})
        settings = uvicorn.Config(
            guard,
            http=protocol,
            ws="none",
            proxy_headers=False,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=guard.limits.idle_seconds,  # type: ignore[arg-type] # it may be a fraction
            timeout_graceful_shutdown=guard.limits.drain_seconds,  # type: ignore[arg-type] # it may be a fraction
            h11_max_incomplete_event_size=HEADER_BYTES,
        )
        super().__init__(settings)
        self.lost = 0  # requests that were taken on and not answered
        self.ready = threading.Event()
        self._sweeping: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self._sweeping = asyncio.create_task(sweep(self.server_state.connections, self.limits))
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes nothing new, finishes what is under way."""
        self.guard.service.draining = True
        self.log.event(
            "stopping", f"stopping: {self.guard.under_way} requests under way", under_way=self.guard.under_way
        )
        until = asyncio.get_running_loop().time() + self.limits.drain_seconds
        await super().shutdown(sockets)
        while self.guard.under_way and not self.force_exit and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        self.lost = self.guard.under_way + self.guard.cut_off
        if self._sweeping is not None:
            self._sweeping.cancel()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals end the server and are then forgotten: having finished is no failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.guard.service.draining = True


def _server(
    models: Sequence[tuple[str, Predictor]], *, limits: Limits, log: Log, api_key: str | None, runs: Path | None
) -> Server:
    guard = build(models, limits=limits, api_key=api_key, runs=runs, log=log)
    library = logging.getLogger(LIBRARY)
    library.handlers, library.propagate = [Through(log)], False
    library.setLevel(logging.WARNING)
    return Server(guard, log=log)


def serve(
    models: Sequence[tuple[str, Predictor]],
    listener: socket.socket,
    *,
    limits: Limits,
    log: Log,
    api_key: str | None = None,
    runs: Path | None = None,
) -> None:
    """Serves until a signal; raises `StoppedError` where something that was taken on could not be finished."""
    sys.setswitchinterval(SWITCH)
    server = _server(models, limits=limits, log=log, api_key=api_key, runs=runs)
    names = ", ".join(name for name, _ in models)
    log.event("serving", f"serving {names} on {address_of(listener)}", models=names, address=address_of(listener))
    if api_key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
        log.event("open", "whoever reaches this address may ask: --api-key-file asks them for a key")
    server.run([listener])
    log.event("stopped", f"stopped: {server.lost} requests lost", lost=server.lost)
    if server.force_exit:
        os._exit(StoppedError.exit_code)  # threads may still be at work, and nobody waits for them
    finished = server.guard.service.close(drain=True, seconds=limits.drain_seconds)
    if server.lost or not finished:
        raise StoppedError(f"{server.lost} requests were not finished within --drain-seconds {limits.drain_seconds:g}")


@contextlib.contextmanager
def running(
    models: Mapping[str, Predictor],
    *,
    limits: Limits | None = None,
    log: Log | None = None,
    api_key: str | None = None,
    runs: Path | None = None,
) -> Iterator[str]:
    """A server in a thread of this process, on a free port, while the block runs; gives its address."""
    listener, log = listen("127.0.0.1", 0), log or Log(quiet=True, write=lambda line: None)
    server = _server(list(models.items()), limits=limits or Limits(), log=log, api_key=api_key, runs=runs)
    thread = threading.Thread(target=server.run, args=([listener],), name="bertsmith-server")
    thread.start()
    try:
        server.ready.wait()
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        server.guard.service.close(drain=True, seconds=server.limits.drain_seconds)
