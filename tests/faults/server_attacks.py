"""Attacks on a server, run in a process of their own next to well-behaved clients; each returns its statuses."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import urllib.parse
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from faults.hostile_requests import AUTHORIZED, NEEDS_KEY, hostile_requests, large_requests
from server.http_fixtures import post, send_raw

CONNECTIONS = 200  # of every kind of slow client
CUT_SECONDS = 12.0  # until which every slow client must be cut; the server's own limits are 3 s
BYPASSED = -200  # status of a request without a valid key that was answered
NOT_CUT = -1
GET = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: {AUTHORIZED}\r\n\r\n".encode()
HEAD = post("/embed", b"", Authorization=AUTHORIZED, Content_Length="5000")
CHUNKED = HEAD.replace(b"Content-Length: 5000", b"Transfer-Encoding: chunked")
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def by_schema(address: str, examples: int) -> Counter[int]:
    """Requests that schemathesis generates from the OpenAPI schema, valid and invalid, to all routes."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    statuses: Counter[int] = Counter()
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    run = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for operation in schema.get_all_operations():

        @run
        @given(case=operation.ok().as_strategy())
        def send(case: schemathesis.Case) -> None:
            statuses[case.call(headers={"Authorization": AUTHORIZED}).status_code] += 1

        send()
    return statuses


def hand_made(address: str) -> Counter[int]:
    requests = hostile_requests()
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(requests, pool.map(partial(send_raw, address), requests.values()), strict=True))
    bypassed = [name for name, answer in answers.items() if name.startswith(NEEDS_KEY) and answer.status == 200]
    return Counter(BYPASSED if name in bypassed else answer.status for name, answer in answers.items())


def large(address: str) -> Counter[int]:
    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(partial(_patient, address), large_requests() * 3))


def _patient(address: str, request: bytes) -> int:
    """As `send_raw`, with more time for the response."""
    url = urllib.parse.urlsplit(address)
    with socket.create_connection((url.hostname or "", url.port or 0), timeout=60) as line:
        with contextlib.suppress(OSError):
            line.sendall(request)
        with contextlib.suppress(OSError):
            head = line.recv(65536)
            return int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return 0


def abandoned(address: str) -> Counter[int]:
    """Clients that leave before the response."""
    url = urllib.parse.urlsplit(address)
    requests = [*large_requests(), *[post("/embed", {"inputs": ["the cat"] * 32}, Authorization=AUTHORIZED)] * 20]

    def leave(number: int) -> None:
        with socket.create_connection((url.hostname or "", url.port or 0), timeout=10) as line:
            line.settimeout(random.Random(number).uniform(0.01, 0.3))
            with contextlib.suppress(OSError):
                line.sendall(requests[number % len(requests)])
                line.recv(1)

    with ThreadPoolExecutor(16) as pool:
        return Counter(0 for _ in pool.map(leave, range(400)))


async def _slow_header(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /info HTTP/1.1\r\nX: ")
    await _trickle(writer, b"a")


async def _slow_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    await _trickle(writer, b" ")


async def _slow_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(CHUNKED)
    await _trickle(writer, b"1\r\n \r\n")


async def _never_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(GET * 40)
    await _trickle(writer, b"")


async def _pipelined_without_reading(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await _trickle(writer, GET * 20)


async def _half_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    writer.write_eof()
    await reader.read()


async def _idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.read()


async def _connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b'{"inputs": ')
    await writer.drain()
    await asyncio.sleep(0.2)
    line = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionResetError


async def _trickle(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(1.0)
        if writer.is_closing() or writer.transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_INFO, 1
        ) not in (b"\x01",):  # not established any more
            raise ConnectionResetError


SLOW: dict[str, Callable[..., object]] = {
    "slow header": _slow_header,
    "slow body": _slow_body,
    "one byte per second, chunked": _slow_chunks,
    "never reading": _never_reading,
    "pipelined without reading": _pipelined_without_reading,
    "half-closed": _half_closed,
    "idle": _idle,
    "connect and wait": _connected,
    "reset in the middle": _reset,
}


def slow_clients(address: str, kind: str) -> Counter[int]:
    """Connections of one kind; 0: cut by the server, NOT_CUT: still open after `CUT_SECONDS`."""

    async def one() -> int:
        url = urllib.parse.urlsplit(address)
        line = socket.socket()
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, (url.hostname, url.port))
        reader, writer = await asyncio.open_connection(sock=line)
        try:
            await asyncio.wait_for(SLOW[kind](reader, writer), CUT_SECONDS)  # type: ignore[arg-type]
        except TimeoutError:
            return NOT_CUT
        except OSError:
            return 0
        finally:
            writer.transport.abort()
        return 0

    async def every() -> list[int]:
        return await asyncio.gather(*(one() for _ in range(CONNECTIONS)))

    return Counter(asyncio.run(every()))
