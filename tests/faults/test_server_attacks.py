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
MIN_GOODPUT = 0.3  # on a machine that may be busy, while attackers let the server compute nothing
MAX_SECONDS = 5.0  # of a valid request, while attackers keep the model busy with the most that is allowed
MAX_MEMORY = 1 << 30
COLUMNS = ("campaign", "cases", "500", "503", "tracebacks", "goodput meanwhile", "slowest", "peak memory")


@dataclass
class Row:
    """The result of one campaign."""

    name: str
    statuses: Counter[int]
    tracebacks: int
    goodput: float  # of well-behaved clients, relative to that before
    slowest: float  # of their responses, in seconds
    memory: int
    failed: int = 0  # of their requests
    computes: bool = False  # the attackers' requests are valid work, which shares the model with the others'

    def cells(self) -> list[str]:
        errors = sum(count for status, count in self.statuses.items() if status >= 500 and status != 503)
        counts = (self.statuses.total(), errors, self.statuses[503], self.tracebacks)
        goodput, memory = f"{self.goodput:.0%}", f"{self.memory / 2**20:.0f} MiB"
        return [self.name, *(f"{count:,}" for count in counts), goodput, f"{self.slowest:.2f} s", memory]

    def problems(self) -> list[str]:
        found = {
            "responses with 500": any(status >= 500 and status != 503 for status in self.statuses),
            "tracebacks": self.tracebacks > 0,
            "responses without a valid key": self.statuses[BYPASSED] > 0,
            "slow clients that were not cut": self.statuses[NOT_CUT] > 0,
            f"{self.failed} valid requests failed": self.failed > 0,
            f"a valid request took {self.slowest:.1f} s": self.slowest > MAX_SECONDS,
            f"goodput of {self.goodput:.0%}": self.goodput < MIN_GOODPUT and not self.computes,
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

    def by(self, name: str, attack: Callable[[str], Counter[int]], *, computes: bool = False) -> Row:
        Path(f"/proc/{self.process.process.pid}/clear_refs").write_text("5")  # resets the peak
        logged = self.process.tracebacks()
        before, during, statuses = asyncio.run(_meanwhile(self.address, self.pool, attack))
        assert httpx.get(f"{self.address}/health", timeout=20).status_code == 200
        tracebacks, peak = self.process.tracebacks() - logged, self.process.memory("VmHWM")
        failed = sum(sample.status != 200 for sample in during.samples)
        goodput, slowest = during.goodput / before.goodput, during.slowest(1.0)
        return Row(name, statuses, tracebacks, goodput, slowest, peak, failed, computes)


async def _meanwhile(
    address: str, pool: ProcessPoolExecutor, attack: Callable[[str], Counter[int]]
) -> tuple[Load, Load, Counter[int]]:
    before, during = await closed_loop(address, GOOD, callers=2, seconds=2.0), Load()
    attacking = asyncio.get_running_loop().run_in_executor(pool, attack, address)
    while not attacking.done():
        during.samples += (await closed_loop(address, GOOD, callers=2, seconds=0.5)).samples
    return before, during, await attacking


def overloaded(factor: float) -> Row:
    outcome = overload_at_work(factor=factor, share=MIN_GOODPUT, seconds=10.0, repeat=12)
    facts = outcome.facts
    share, statuses = facts["goodput"] / facts["capacity"], Counter(facts["statuses"])
    return Row(f"overload, {factor:g} ×", statuses, facts["tracebacks"], share, facts["slowest"], facts["peak"])


def table(rows: list[Row]) -> str:
    lines = [list(COLUMNS), ["---", *["---:"] * (len(COLUMNS) - 1)], *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@pytest.mark.slow
def test_attacks_on_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        server = Attacked(stack)
        rows = [
            server.by("by schema, all routes", partial(by_schema, examples=EXAMPLES)),
            server.by("hand-made", hand_made, computes=True),
            *(server.by(f"slow clients: {kind}", partial(slow_clients, kind=kind)) for kind in SLOW),
            server.by("1.9 MB within the limits", large, computes=True),
            server.by("abandoned", abandoned, computes=True),
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
