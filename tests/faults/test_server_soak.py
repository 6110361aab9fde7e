"""A server under load for hours: its latency and its memory stay constant.

    BERTSMITH_SOAK_MINUTES=120 pytest -m slow tests/faults/test_server_soak.py

Two hours where the variable is not set.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from faults.server_fixtures import TEXTS, Process
from faults.server_load import Line, request

MINUTES = float(os.environ.get("BERTSMITH_SOAK_MINUTES", "120"))
CALLERS = 16
FLAT = 24 << 20  # allowed growth in bytes from the middle to the last third; the first third warms up
BREAK = (
    b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{nonsense"
)
INVALID = (BREAK, request({"inputs": "x" * 70_000}), request({"input": "the cat"}), request({"inputs": []}, "/nowhere"))


@dataclass
class Soak:
    """Measurements."""

    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)  # between two memory samples

    def thirds(self, values: list[int]) -> tuple[float, float]:
        """The medians of the middle and of the last third."""
        size = len(values) // 3
        return statistics.median(values[size : 2 * size]), statistics.median(values[2 * size :])


def random_request(random_: random.Random) -> bytes:
    """A random request; one in ten is invalid."""
    if random_.random() < 0.1:
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


async def soaked(address: str, process: Process, *, seconds: float, sample: float) -> Soak:
    soak, until = Soak(), time.monotonic() + seconds

    async def caller(number: int) -> None:
        random_, line = random.Random(number), Line(address)
        while time.monotonic() < until:
            soak.statuses[(await line.send_request(random_request(random_))).status] += 1
            if random_.random() < 0.02:
                line.close()  # and reconnect
        line.close()

    async def watch() -> None:
        before = 0
        while time.monotonic() < until:
            await asyncio.sleep(sample)
            soak.memory.append(process.memory())
            soak.answered.append(soak.statuses[200] - before)
            before = soak.statuses[200]

    await asyncio.gather(watch(), *(caller(number) for number in range(CALLERS)))
    return soak


@pytest.mark.slow
def test_memory_and_latency_are_constant_for_hours() -> None:
    with Process() as process:
        address = process.wait_until_ready()
        soak = asyncio.run(soaked(address, process, seconds=60 * MINUTES, sample=max(2 * MINUTES / 3, 1.0)))
        assert process.end() == 0
    (early_memory, late_memory), (early_rate, late_rate) = soak.thirds(soak.memory), soak.thirds(soak.answered)
    memory = f"{early_memory / 2**20:.1f} then {late_memory / 2**20:.1f} MiB"
    print(f"{MINUTES:g} minutes, {dict(soak.statuses)}, {memory}, {early_rate} then {late_rate} responses per sample")
    assert soak.statuses[200] > 100 * MINUTES
    assert set(soak.statuses) <= {200, 400, 404, 413, 422, 429, 503}
    assert late_memory <= early_memory + FLAT
    assert late_rate >= 0.8 * early_rate
