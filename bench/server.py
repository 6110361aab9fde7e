"""Throughput and latency of embeddings over HTTP with many clients, compared with the predictor without a server.

PYTHONPATH=src python bench/server.py --texts FILE --vocabulary vocab.txt [--size base] [--clients 32] [--batch-size 1]

FILE has one text per line, not sorted by length; vocab.txt is a WordPiece vocabulary; weights are random. The same
requests of `--batch-size` texts are sent to the predictor, one after the other, and to the server, by closed-loop
clients in another process. "one call" is the predictor with all texts in one call: the upper bound of batching. Rounds
are interleaved; medians. Ratios are relative to "sequential", for wall time and CPU time, without the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any


async def client(address: str, bodies: list[bytes], clients: int) -> list[float]:
    """Latency of every request in seconds; the clients share the requests."""
    url, remaining, latencies = urllib.parse.urlsplit(address), iter(bodies), []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        for body in remaining:
            began = time.perf_counter()
            head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            writer.write(head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
            response = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(response.split(b"content-length:")[1].split(b"\r\n")[0]))
            assert b" 200 " in response.split(b"\r\n")[0], response
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return latencies


def run_client(settings: str) -> None:
    """The client process: one round for each line on standard input."""
    facts = json.loads(settings)
    bodies = [json.dumps({"inputs": texts}).encode() for texts in facts["requests"]]
    for _ in sys.stdin:
        began = time.perf_counter()
        latencies = sorted(asyncio.run(client(facts["address"], bodies, facts["clients"])))
        wall = time.perf_counter() - began
        p50, p99 = (latencies[int(len(latencies) * quantile)] for quantile in (0.5, 0.99))
        print(json.dumps({"wall": wall, "p50": p50, "p99": p99}), flush=True)


def predictor_of(size: str, vocabulary: Path) -> Any:
    """A BERT of a published size with random weights."""
    from bertsmith.encoders import bert
    from bertsmith.inference.predictor import Predictor
    from bertsmith.model_io.model import Model
    from bertsmith.objectives import masked_lm
    from bertsmith.tokenizers.wordpiece import WordPiece

    tokenizer = WordPiece.build(vocabulary.read_text(encoding="utf-8").splitlines())
    shape = bert.Config.size(size, vocab_size=tokenizer.vocab_size)
    return Predictor(Model.build(shape, [masked_lm.Config()]), tokenizer)


def main(options: argparse.Namespace) -> None:
    from bertsmith.server.server import SWITCH_INTERVAL, running
    from bertsmith.server.settings import Limits

    sys.setswitchinterval(SWITCH_INTERVAL)  # as `bertsmith serve` does
    predictor = predictor_of(options.size, options.vocabulary)
    texts = [line for line in options.texts.read_text(encoding="utf-8").splitlines() if line][: options.count]
    requests = [texts[start : start + options.batch_size] for start in range(0, len(texts), options.batch_size)]
    limits = Limits(max_requests=max(128, options.clients), max_queued_tokens=10**6, deadline=600)
    with running({"bert": predictor}, limits=limits) as address, tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings.json")
        settings.write_text(json.dumps({"address": address, "requests": requests, "clients": options.clients}))
        command = [sys.executable, __file__, "--client", str(settings)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clients:
            times, latency = rounds(predictor, texts, requests, clients, options.rounds)
    tokens = sum(predictor.count_tokens(texts))
    print(
        f"bert/{options.size}, {len(texts)} texts of {tokens / len(texts):.0f} tokens, "
        f"{options.batch_size} per request, {options.clients} clients, load {os.getloadavg()[0]:.1f}"
    )
    for name, walls in times.items():
        wall, cores = medians(walls)
        wall_ratio, core_ratio = (
            one / own for one, own in zip(medians(times["sequential"]), (wall, cores), strict=True)
        )
        print(
            f"  {name:14s} {len(texts) / wall:9.2f} texts/s x{wall_ratio:5.2f}   {cores:8.2f} CPU s x{core_ratio:5.2f}"
        )
    print(f"  server latency: p50 {1000 * latency['p50']:.1f} ms, p99 {1000 * latency['p99']:.1f} ms")


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cores = zip(*pairs, strict=True)
    return statistics.median(walls), statistics.median(cores)


def rounds(
    predictor: Any, texts: list[str], requests: list[list[str]], clients: Any, count: int
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, float]]:
    """Wall and CPU seconds of each variant in each round, and the latency of the server."""
    latency: dict[str, float] = {}

    def served() -> None:
        clients.stdin.write("\n")
        clients.stdin.flush()
        latency.update(json.loads(clients.stdout.readline()))

    variants: dict[str, Callable[[], Any]] = {
        "sequential": lambda: [predictor.encode(one, normalize=True) for one in requests],
        "one call": lambda: predictor.encode(texts, normalize=True),
        "server": served,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for number in range(count + 1):
        for name, run in variants.items():
            wall, cores = time.perf_counter(), time.process_time()
            run()
            if number:  # the first round warms up
                times[name].append((time.perf_counter() - wall, time.process_time() - cores))
    return times, latency


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", type=Path)
    arguments = parser.parse_args()
    if arguments.client:
        run_client(arguments.client.read_text())
    else:
        main(arguments)
