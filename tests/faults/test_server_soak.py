"""A server under load for hours: its latency and its memory stay constant.

    BERTSMITH_SOAK_MINUTES=120 pytest -s -m slow tests/faults/test_server_soak.py

Two hours where the variable is not set. `BERTSMITH_REPORT=FILE` appends the measurements as JSON lines while it runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from faults.server_fixtures import TEXTS, Process
from faults.server_load import Line, Sample, request

MINUTES = float(os.environ.get("BERTSMITH_SOAK_MINUTES", "120"))
CALLERS, PAUSE = 16, 0.3  # mean seconds between two requests of a caller
SLOW_CALLERS, ABANDONING_CALLERS = 4, 2
FLAT = 24 << 20  # allowed growth in bytes from the middle to the last third; the first third warms up
BREAK = (
    b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{nonsense"
)
LARGE = {"inputs": ["a b " * 15_000] * 32}  # within every limit of the default server except the tokens of a request
OVERSIZED = (request({"inputs": "x" * 70_000}), request(LARGE, "/tokenize"), request(LARGE, "/fill-mask"))
INVALID = (BREAK, request({"input": "the cat"}), request({"inputs": []}, "/nowhere"))


@dataclass
class Window:
    """Measurements between two looks at the server."""

    minutes: float  # since the start
    memory: int  # bytes
    answered: int
    median: float  # seconds, of the answered requests
    p99: float


@dataclass
class Soak:
    """Measurements."""

    statuses: Counter[int] = field(default_factory=Counter)
    abandoned: int = 0
    cut: int = 0  # slow connections that the server closed
    latencies: list[float] = field(default_factory=list)  # since the last window
    windows: list[Window] = field(default_factory=list)

    def count(self, sample: Sample) -> None:
        self.statuses[sample.status] += 1
        if sample.status == 200:
            self.latencies.append(sample.seconds)

    def look(self, minutes: float, memory: int) -> Window:
        """Ends a window."""
        latencies, self.latencies = sorted(self.latencies) or [0.0], []
        p99 = latencies[int(0.99 * len(latencies))]
        self.windows.append(Window(minutes, memory, len(latencies), statistics.median(latencies), p99))
        return self.windows[-1]

    def thirds(self, name: str) -> tuple[float, float]:
        """The medians of the middle and of the last third."""
        values, size = [getattr(window, name) for window in self.windows], len(self.windows) // 3
        return statistics.median(values[size : 2 * size]), statistics.median(values[2 * size :])


def random_request(random_: random.Random) -> bytes:
    """A random request; one in ten is invalid, one in a hundred oversized."""
    kind = random_.random()
    if kind < 0.01:
        return random_.choice(OVERSIZED)
    if kind < 0.11:
        return random_.choice(INVALID)
    texts = [" ".join(random_.choices(TEXTS, k=random_.randint(1, 6))) for _ in range(random_.randint(1, 8))]
    path, value = random_.choice(
        [
            ("/embed", {"inputs": texts, "truncate": True}),
            ("/tokenize", {"inputs": texts}),
            ("/fill-mask", {"inputs": f"{texts[0][:40]} [MASK]"}),
            ("/similarity", {"inputs": {"source_sentence": texts[0], "sentences": texts}, "truncate": True}),
            ("/v1/embeddings", {"input": texts[:2], "model": "words"}),
        ]
    )
    return request(value, path)


async def soaked(address: str, process: Process, *, seconds: float, sample: float, report: Path | None) -> Soak:
    soak, began = Soak(), time.monotonic()
    until = began + seconds

    async def caller(number: int) -> None:
        random_, line = random.Random(number), Line(address)
        while time.monotonic() < until:
            soak.count(await line.send_request(random_request(random_)))
            if random_.random() < 0.02:
                line.close()  # and reconnect
            await asyncio.sleep(random_.expovariate(1 / PAUSE))
        line.close()

    async def abandoning_caller(number: int) -> None:
        random_ = random.Random(-number)
        while time.monotonic() < until:
            _, writer = await asyncio.open_connection(*_host(address))
            writer.write(random_.choice(OVERSIZED) if random_.random() < 0.1 else random_request(random_))
            await asyncio.sleep(random_.choice([0.0, 0.002, 0.02]))
            writer.transport.abort()
            soak.abandoned += 1
            await asyncio.sleep(random_.expovariate(1 / (4 * PAUSE)))

    async def slow_caller() -> None:
        text = request({"inputs": "the cat"})
        while time.monotonic() < until:
            reader, writer = await asyncio.open_connection(*_host(address))
            response = asyncio.create_task(reader.read())  # ends when the server closes the connection
            for byte in text:
                writer.write(bytes([byte]))
                await asyncio.wait({response}, timeout=1)
                if response.done() or time.monotonic() > until:
                    break
            soak.cut += response.done()
            response.cancel()
            writer.close()

    async def watch() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(sample)
            window = soak.look((time.monotonic() - began) / 60, process.memory())
            if report:
                with report.open("a") as file:
                    file.write(json.dumps(asdict(window)) + "\n")

    callers = [caller(number) for number in range(CALLERS)]
    others = [*(slow_caller() for _ in range(SLOW_CALLERS)), *map(abandoning_caller, range(ABANDONING_CALLERS))]
    await asyncio.gather(watch(), *callers, *others)
    return soak


def _host(address: str) -> tuple[str, int]:
    host, port = address.removeprefix("http://").split(":")
    return host, int(port)


@pytest.mark.slow
def test_memory_and_latency_are_constant_for_hours() -> None:
    report = os.environ.get("BERTSMITH_REPORT")
    settings = {"seconds": 60 * MINUTES, "sample": max(2 * MINUTES / 3, 1.0)}
    with Process() as process:
        address = process.wait_until_ready()
        soak = asyncio.run(soaked(address, process, **settings, report=Path(report) if report else None))
        assert process.end() == 0
    (early_memory, late_memory), (early_rate, late_rate) = soak.thirds("memory"), soak.thirds("answered")
    medians, p99s = ([1000 * value for value in soak.thirds(name)] for name in ("median", "p99"))
    print(f"{MINUTES:g} minutes, {dict(soak.statuses)}, {soak.abandoned} abandoned, {soak.cut} slow connections closed")
    print(f"middle and last third: {early_memory / 2**20:.1f} and {late_memory / 2**20:.1f} MiB")
    print(f"  {early_rate:g} and {late_rate:g} responses per sample of {settings['sample']:g} s")
    print(f"  median {medians[0]:.1f} and {medians[1]:.1f} ms, p99 {p99s[0]:.1f} and {p99s[1]:.1f} ms")
    assert soak.statuses[200] > 100 * MINUTES
    assert set(soak.statuses) <= {200, 400, 404, 413, 422, 429, 503}
    assert soak.cut > 0
    assert not any("Traceback" in line for line in process.lines)
    assert late_memory <= early_memory + FLAT
    assert late_rate >= 0.8 * early_rate
