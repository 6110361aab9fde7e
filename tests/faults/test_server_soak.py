"""A server that is used for hours: it goes on answering as fast as at first, and its memory stays flat.

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
FLAT = 24 << 20  # bytes that the last third may hold more than the middle one; the first third warms up
BREAK = b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{nonsense"
WRONG = (BREAK, request({"inputs": "x" * 70_000}), request({"input": "the cat"}), request({"inputs": []}, "/nowhere"))


@dataclass
class Soak:
    """What was seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)  # between two looks at the memory

    def thirds(self, values: list[int]) -> tuple[float, float]:
        """The medians of the middle and of the last third."""
        size = len(values) // 3
        return statistics.median(values[size : 2 * size]), statistics.median(values[2 * size :])


def asked(random_: random.Random) -> bytes:
    """Something that callers send; one in ten is wrong."""
    if random_.random() < 0.1:
        return random_.choice(WRONG)
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


async def soaked(address: str, process: Process, *, seconds: float, look: float) -> Soak:
    found, until = Soak(), time.monotonic() + seconds

    async def caller(number: int) -> None:
        random_, line = random.Random(number), Line(address)
        while time.monotonic() < until:
            found.statuses[(await line.ask(asked(random_))).status] += 1
            if random_.random() < 0.02:
                line.close()  # and come again by another connection
        line.close()

    async def watch() -> None:
        before = 0
        while time.monotonic() < until:
            await asyncio.sleep(look)
            found.memory.append(process.memory())
            found.answered.append(found.statuses[200] - before)
            before = found.statuses[200]

    await asyncio.gather(watch(), *(caller(number) for number in range(CALLERS)))
    return found


@pytest.mark.slow
def test_memory_and_latency_are_constant_for_hours() -> None:
    with Process() as process:
        address = process.wait_until_ready()
        found = asyncio.run(soaked(address, process, seconds=60 * MINUTES, look=max(2 * MINUTES / 3, 1.0)))
        assert process.end() == 0
    (held, holds), (was, now) = found.thirds(found.memory), found.thirds(found.answered)
    memory = f"{held / 2**20:.1f} then {holds / 2**20:.1f} MiB"
    print(f"{MINUTES:g} minutes, {dict(found.statuses)}, {memory}, {was} then {now} answers between two looks")
    assert found.statuses[200] > 100 * MINUTES
    assert set(found.statuses) <= {200, 400, 404, 413, 422, 429, 503}
    assert holds <= held + FLAT
    assert now >= 0.8 * was
