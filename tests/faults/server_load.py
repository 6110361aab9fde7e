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

GONE = 0  # the status of a request whose connection ended before its answer was whole
REFUSED = -1  # the status where no connection could be made


@dataclass(frozen=True)
class Sample:
    """One request: its status, when it had been sent, and how long its answer took."""

    status: int
    sent: float  # by time.monotonic
    seconds: float
    body: bytes = b""


@dataclass
class Load:
    """What became of many requests."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def statuses(self) -> Counter[int]:
        return Counter(sample.status for sample in self.samples)

    @property
    def goodput(self) -> float:
        """Answers a second, from the first request to the last answer."""
        began = min((one.sent for one in self.samples), default=0.0)
        ends = [one.sent + one.seconds for one in self.samples if one.status == 200]
        return len(ends) / (max(ends) - began) if ends else 0.0

    def slowest(self, share: float = 0.99, status: int = 200) -> float:
        """Seconds that this share of the answers of a status took at most."""
        found = sorted(sample.seconds for sample in self.samples if sample.status == status)
        return found[min(int(len(found) * share), len(found) - 1)] if found else 0.0

    def quickest(self, status: int) -> float:
        """Seconds of the quickest answer of a status."""
        return min((sample.seconds for sample in self.samples if sample.status == status), default=float("inf"))


class Line:
    """One connection that stays open as long as the server lets it."""

    def __init__(self, address: str) -> None:
        self.place = urllib.parse.urlsplit(address)
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> Sample:
        """Sends a request and reads its answer."""
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
            return Sample(GONE, sent, time.monotonic() - began)

    def _ended(self) -> bool:
        """Whether the server has closed an idle line: HTTP clients look, too, before they use one again."""
        reader, writer = self.streams or ()
        poll = select.poll()
        poll.register(writer.get_extra_info("socket").fileno(), select.POLLIN)
        return reader.at_eof() or bool(poll.poll(0))

    def close(self) -> None:
        """Ends the connection; the next request makes a new one."""
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def request(value: Any, path: str = "/embed") -> bytes:
    """A POST of JSON."""
    body = json.dumps(value).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def at_once(address: str, requests: Sequence[bytes], *, callers: int, seconds: float) -> Load:
    """So many callers, each asking again as soon as it is answered."""
    load, until = Load(), time.monotonic() + seconds

    async def caller(number: int) -> None:
        line = Line(address)
        while time.monotonic() < until:
            sample = await line.ask(requests[number % len(requests)])
            load.samples.append(sample)
            number += callers
            if sample.status in (GONE, REFUSED):
                await asyncio.sleep(0.01)
        line.close()

    await asyncio.gather(*(caller(number) for number in range(callers)))
    return load


async def once_each(address: str, asked: bytes, *, callers: int) -> Load:
    """So many callers at the same time, each asking once."""
    lines = [Line(address) for _ in range(callers)]
    load = Load(list(await asyncio.gather(*(line.ask(asked) for line in lines))))
    for line in lines:
        line.close()
    return load


async def at_rate(address: str, requests: Sequence[bytes], *, rate: float, seconds: float) -> Load:
    """So many requests a second, whether or not those before have been answered."""
    load, began = Load(), time.monotonic()
    free: list[Line] = []
    tasks: list[asyncio.Task[None]] = []

    async def one(number: int) -> None:
        line = free.pop() if free else Line(address)
        load.samples.append(await line.ask(requests[number % len(requests)]))
        free.append(line)

    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)
    for line in free:
        line.close()
    return load
