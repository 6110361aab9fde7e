"""All attacks on a server in one table: errors, goodput of well-behaved clients meanwhile, and memory.

    pytest -m slow tests/faults/test_server_attacks.py

With BERTSMITH_REPORT=FILE the table is also written to this file, as markdown.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
from faults.hostile_requests import AUTHORIZED, KEY
from faults.server_attacks import BYPASSED, NOT_CUT, SLOW, abandoned, by_schema, hand_made, large, slow_clients
from faults.server_campaigns import overload_at_work
from faults.server_fixtures import TEXTS, Process
from faults.server_load import Load, closed_loop
from server.http_fixtures import post

EXAMPLES = int(os.environ.get("BERTSMITH_ATTACK_EXAMPLES", "100"))  # of each route, by its schema
GOOD = [post("/embed", {"inputs": text, "model": "words"}, Authorization=AUTHORIZED) for text in TEXTS]
MIN_GOODPUT = 0.5  # on a machine that may be busy
MAX_MEMORY = 1 << 30
COLUMNS = ("campaign", "cases", "500", "503", "tracebacks", "goodput meanwhile", "peak memory")


@dataclass
class Row:
    """The result of one campaign."""

    name: str
    statuses: Counter[int]
    tracebacks: int
    goodput: float  # of well-behaved clients, relative to that before
    memory: int

    def cells(self) -> list[str]:
        errors = sum(count for status, count in self.statuses.items() if status >= 500 and status != 503)
        counts = (self.statuses.total(), errors, self.statuses[503], self.tracebacks)
        return [self.name, *(f"{count:,}" for count in counts), f"{self.goodput:.0%}", f"{self.memory / 2**20:.0f} MiB"]

    def problems(self) -> list[str]:
        found = {
            "responses with 500": any(status >= 500 and status != 503 for status in self.statuses),
            "tracebacks": self.tracebacks > 0,
            "responses without a valid key": self.statuses[BYPASSED] > 0,
            "slow clients that were not cut": self.statuses[NOT_CUT] > 0,
            f"goodput of {self.goodput:.0%}": self.goodput < MIN_GOODPUT,
            f"{self.memory >> 20} MiB of memory": self.memory > MAX_MEMORY,
        }
        return [f"{self.name}: {problem}" for problem, wrong in found.items() if wrong]


class Attacked:
    """A server with all models, and a process that attacks it while two clients send valid requests."""

    def __init__(self, stack: ExitStack) -> None:
        limits = {"read_seconds": 3.0, "write_seconds": 3.0, "idle_seconds": 3.0}
        self.process = stack.enter_context(Process(cost=0.01, all_models=True, api_key=KEY, **limits))
        self.pool = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        self.pool.submit(int).result()  # starts it
        self.address = self.process.wait_until_ready()

    def by(self, name: str, attack: Callable[[str], Counter[int]]) -> Row:
        Path(f"/proc/{self.process.process.pid}/clear_refs").write_text("5")  # resets the peak
        logged = self.process.tracebacks()
        before, during, statuses = asyncio.run(_meanwhile(self.address, self.pool, attack))
        assert httpx.get(f"{self.address}/health", timeout=20).status_code == 200
        tracebacks, peak = self.process.tracebacks() - logged, self.process.memory("VmHWM")
        return Row(name, statuses, tracebacks, during.goodput / before.goodput, peak)


async def _meanwhile(
    address: str, pool: ProcessPoolExecutor, attack: Callable[[str], Counter[int]]
) -> tuple[Load, Load, Counter[int]]:
    before, during = await closed_loop(address, GOOD, callers=2, seconds=2.0), Load()
    attacking = asyncio.get_running_loop().run_in_executor(pool, attack, address)
    while not attacking.done():
        during.samples += (await closed_loop(address, GOOD, callers=2, seconds=0.5)).samples
    return before, during, await attacking


def overloaded(factor: float) -> Row:
    outcome = overload_at_work(factor=factor, share=MIN_GOODPUT, seconds=10.0)
    facts = outcome.facts
    share = facts["goodput"] / facts["capacity"]
    return Row(f"overload, {factor:g} ×", Counter(facts["statuses"]), facts["tracebacks"], share, facts["peak"])


def table(rows: list[Row]) -> str:
    lines = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)], *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@pytest.mark.slow
def test_attacks_on_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        server = Attacked(stack)
        rows = [
            server.by("by schema, all routes", partial(by_schema, examples=EXAMPLES)),
            server.by("hand-made", hand_made),
            *(server.by(f"slow clients: {kind}", partial(slow_clients, kind=kind)) for kind in SLOW),
            server.by("1.9 MB within the limits", large),
            server.by("abandoned", abandoned),
        ]
        assert server.process.end() == 0
    rows += [overloaded(4.0), overloaded(16.0)]
    report = table(rows)
    with capsys.disabled():
        print(f"\n{report}\nload average: {os.getloadavg()[0]:.1f}")
    if "BERTSMITH_REPORT" in os.environ:
        Path(os.environ["BERTSMITH_REPORT"]).write_text(report, encoding="utf-8")
    problems = [problem for row in rows for problem in row.problems()]
    assert not problems, "\n".join(problems)
