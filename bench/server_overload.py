"""Goodput of an overloaded server, and the CPU time of a rejection.

PYTHONPATH=src python bench/server_overload.py [--factors 4 16] [--rounds 5] [--seconds 2]

A server in another process computes embeddings with a BERT of 4 layers, width 384 and random weights. Rounds alternate
between 9 closed-loop clients, whose throughput is the capacity, and open-loop clients that send `factor` times as many
requests. Goodput is relative to the capacity of the same round, in wall time and per CPU second of the server: the
latter does not depend on what else the machine does. Medians over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.parse
from collections import Counter
from typing import Any, NamedTuple

BODY = json.dumps({"inputs": "the smith heats iron . fire burns . " * 3}).encode()
HEAD = (
    f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
)
REQUEST = HEAD.encode() + BODY
TEXT_TOKENS = 26
QUEUED_TEXTS = 24


class Phase(NamedTuple):
    """Responses by status, and the seconds that they took."""

    statuses: Counter[int]
    wall: float
    cpu: float  # of the server

    @property
    def goodput(self) -> float:
        return self.statuses[200] / self.wall

    @property
    def per_cpu_second(self) -> float:
        return self.statuses[200] / self.cpu


class Connection(asyncio.Protocol):
    """A persistent connection that sends one request at a time."""

    def __init__(self) -> None:
        self.received, self.response = b"", asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def send(self) -> asyncio.Future[int]:
        self.received, self.response = b"", asyncio.get_running_loop().create_future()
        self.transport.write(REQUEST)
        return self.response

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self.finish(int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self.finish(0)

    def finish(self, status: int) -> None:
        if not self.response.done():
            self.response.set_result(status)


class Client:
    """Connections to a server, and its process."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.url = urllib.parse.urlsplit(json.loads(server.stdout.readline()))
        self.free: list[Connection] = []

    def cpu(self) -> float:
        """CPU seconds of the server so far."""
        self.server.stdin.write("\n")
        self.server.stdin.flush()
        return float(self.server.stdout.readline())

    async def request(self) -> int:
        connection = self.free.pop() if self.free else None
        if connection is None or connection.transport.is_closing():
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, self.url.hostname, self.url.port)
        status = await connection.send()
        self.free.append(connection)
        return status

    async def closed_loop(self, clients: int, seconds: float) -> Phase:
        statuses: Counter[int] = Counter()
        began, cpu = time.perf_counter(), self.cpu()

        async def one() -> None:
            while time.perf_counter() - began < seconds:
                statuses[await self.request()] += 1

        await asyncio.gather(*(one() for _ in range(clients)))
        return Phase(statuses, time.perf_counter() - began, self.cpu() - cpu)

    async def open_loop(self, rate: float, seconds: float) -> Phase:
        """Counts what is answered while requests are sent."""
        statuses: Counter[int] = Counter()
        began, cpu = time.perf_counter(), self.cpu()

        async def one() -> None:
            statuses[await self.request()] += 1

        tasks = []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(one()))
        phase = Phase(Counter(statuses), time.perf_counter() - began, self.cpu() - cpu)
        await asyncio.gather(*tasks)
        return phase


async def measure(client: Client, options: argparse.Namespace) -> None:
    results: dict[float, list[tuple[Phase, Phase]]] = {factor: [] for factor in options.factors}
    await client.closed_loop(9, 1.0)
    for _ in range(options.rounds):
        for factor in options.factors:
            calm = await client.closed_loop(9, options.seconds)
            results[factor].append((calm, await client.open_loop(factor * calm.goodput, options.seconds)))
    for factor, pairs in results.items():
        wall = statistics.median(load.goodput / calm.goodput for calm, load in pairs)
        cpu = statistics.median(load.per_cpu_second / calm.per_cpu_second for calm, load in pairs)
        capacity = statistics.median(calm.goodput for calm, _ in pairs)
        costs = []
        for calm, load in pairs:
            rejected = sum(count for status, count in load.statuses.items() if status != 200)
            costs.append((load.cpu - load.statuses[200] / calm.per_cpu_second) / max(rejected, 1))
        print(
            f"{factor:g} x: goodput {wall:.0%} of {capacity:.0f} per second, {cpu:.0%} per CPU second; "
            f"a rejection takes {1000 * statistics.median(costs):.2f} ms; "
            f"{dict(sum((load.statuses for _, load in pairs), Counter()))}",
            flush=True,
        )
    print(f"load average {os.getloadavg()[0]:.1f}")


def serve() -> None:
    """The server process: writes its address, and its CPU time for each line on standard input."""
    from bertsmith.encoders import bert
    from bertsmith.inference.predictor import Predictor
    from bertsmith.model_io.model import Model
    from bertsmith.server.server import SWITCH_INTERVAL, running
    from bertsmith.server.settings import Limits
    from bertsmith.tokenizers.wordpiece import SPECIALS, WordPiece

    sys.setswitchinterval(SWITCH_INTERVAL)  # as `bertsmith serve` does
    words = ["the", "smith", "heats", "iron", "fire", "burns", "."]
    tokenizer = WordPiece.build([*SPECIALS.tokens(), *words])
    config = bert.Config(layers=4, width=384, heads=6, max_positions=64, vocab_size=tokenizer.vocab_size)
    predictor = Predictor(Model.build(config, []), tokenizer)
    limits = Limits(max_queued_tokens=QUEUED_TEXTS * TEXT_TOKENS, deadline=20)
    with running({"bert": predictor}, limits=limits) as address:
        print(json.dumps(address), flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)


def main(options: argparse.Namespace) -> None:
    command = [sys.executable, __file__, "--serve"]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes) as server:
        asyncio.run(measure(Client(server), options))
        assert server.stdin is not None
        server.stdin.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factors", type=float, nargs="+", default=[4.0, 16.0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
    else:
        main(arguments)
