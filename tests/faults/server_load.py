"""Clients of a server on plain sockets: a fixed number at once, or a fixed rate."""

from __future__ import annotations

import asyncio
import json
import select
import time
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NO_RESPONSE = 0  # status of a request whose connection closed before the full response
REFUSED = -1  # status if no connection could be made


@dataclass(frozen=True)
class Sample:
    """One request: its status, send time and latency."""

    status: int
    sent: float  # by time.monotonic
    seconds: float
    body: bytes = b""


@dataclass
class Load:
    """The results of many requests."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(sample.status for sample in self.samples)

    @property
    def goodput(self) -> float:
        """Responses per second, from the first request to the last response."""
        began = min((sample.sent for sample in self.samples), default=0.0)
        ends = [sample.sent + sample.seconds for sample in self.samples if sample.status == 200]
        return len(ends) / (max(ends) - began) if ends else 0.0

    def slowest(self, share: float = 0.99, status: int = 200) -> float:
        """Latency quantile of the responses with a status."""
        latencies = sorted(sample.seconds for sample in self.samples if sample.status == status)
        return latencies[min(int(len(latencies) * share), len(latencies) - 1)] if latencies else 0.0

    def quickest(self, status: int) -> float:
        """Minimum latency of the responses with a status."""
        return min((sample.seconds for sample in self.samples if sample.status == status), default=float("inf"))


class Line:
    """One persistent connection."""

    def __init__(self, address: str) -> None:
        self.place = urllib.parse.urlsplit(address)
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send_request(self, request: bytes) -> Sample:
        """Sends a request and reads the response."""
        began = time.monotonic()
        if self.streams is not None and self._ended():
            self.close()
        try:
            if self.streams is None:
                self.streams = await asyncio.open_connection(self.place.hostname, self.place.port)
        except OSError:
            return Sample(REFUSED, began, time.monotonic() - began)
        reader, writer = self.streams
        sent = time.monotonic()
        try:
            writer.write(request)
            await writer.drain()
            sent = time.monotonic()
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = await reader.readexactly(size)
            if b"connection: close" in head:
                self.close()
            return Sample(int(head.split(b" ", 2)[1]), sent, time.monotonic() - began, body)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Sample(NO_RESPONSE, sent, time.monotonic() - began)

    def _ended(self) -> bool:
        """Whether the server has closed an idle connection; HTTP clients check this before reuse too."""
        reader, writer = self.streams or ()
        poll = select.poll()
        poll.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
        return reader.at_eof() or bool(poll.poll(0))

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def request(value: Any, path: str = "/embed") -> bytes:
    """A POST of JSON."""
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def closed_loop(address: str, requests: Sequence[bytes], *, callers: int, seconds: float) -> Load:
    """`callers` clients, each sending the next request after a response."""
    load, until = Load(), time.monotonic() + seconds

    async def caller(number: int) -> None:
        line = Line(address)
        while time.monotonic() < until:
            sample = await line.send_request(requests[number % len(requests)])
            load.samples.append(sample)
            number += callers
            if sample.status in (NO_RESPONSE, REFUSED):
                await asyncio.sleep(0.01)
        line.close()

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return load


async def one_request_each(address: str, payload: bytes, *, callers: int) -> Load:
    """Concurrent clients, each sending one request."""
    lines = [Line(address) for _ in range(callers)]
    load = Load(list(await asyncio.gather(*(line.send_request(payload) for line in lines))))
    for line in lines:
        line.close()
    return load


async def at_rate(address: str, requests: Sequence[bytes], *, rate: float, seconds: float) -> Load:
    """A fixed request rate, independent of responses."""
    load, began = Load(), time.monotonic()
    free: list[Line] = []
    tasks: list[asyncio.Task[None]] = []

    async def send(number: int) -> None:
        line = free.pop() if free else Line(address)
        load.samples.append(await line.send_request(requests[number % len(requests)]))
        free.append(line)

    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(send(number)))
    await asyncio.gather(*tasks)
    for line in free:
        line.close()
    return load
