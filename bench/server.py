"""Vectors over HTTP: texts a second of a server under many clients, against its own predictor without any server.

PYTHONPATH=src python bench/server.py --texts FILE --vocabulary vocab.txt [--size base] [--clients 32] [--at-once 1]

FILE has one text a line, in an order that is not sorted by length; vocab.txt is a WordPiece vocabulary; weights are
drawn at random. The same requests of `--at-once` texts go to the predictor, one after the other, and to the server,
from clients in a process of their own, each asking again when it is answered. "all at once" is the predictor with all
texts in one call: what batching can give at most. Rounds are interleaved; medians. Ratios are to "one by one", of wall
time and of the time of all cores that this process took, the clients' not counted.
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
    """Seconds of every request; the clients share the work."""
    place, left, taken = urllib.parse.urlsplit(address), iter(bodies), []

    async def one() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for body in left:
            began = time.perf_counter()
            head = f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.split(b"content-length:")[1].split(b"\r\n")[0]))
            assert b" 200 " in answer.split(b"\r\n")[0], answer
            taken.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))
    return taken


def run_client(told: str) -> None:
    """The process of the clients: for each line on standard input, one round."""
    facts = json.loads(told)
    bodies = [json.dumps({"inputs": texts}).encode() for texts in facts["requests"]]
    for _ in sys.stdin:
        began = time.perf_counter()
        taken = sorted(asyncio.run(client(facts["address"], bodies, facts["clients"])))
        wall = time.perf_counter() - began
        p50, p99 = (taken[int(len(taken) * share)] for share in (0.5, 0.99))
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


def main(given: argparse.Namespace) -> None:
    from bertsmith.server.server import SWITCH, running
    from bertsmith.server.settings import Limits

    sys.setswitchinterval(SWITCH)  # as `bertsmith serve` does
    predictor = predictor_of(given.size, given.vocabulary)
    texts = [line for line in given.texts.read_text(encoding="utf-8").splitlines() if line][: given.count]
    requests = [texts[begin : begin + given.at_once] for begin in range(0, len(texts), given.at_once)]
    limits = Limits(max_requests=max(128, given.clients), max_queued_tokens=10**6, deadline=600)
    with running({"bert": predictor}, limits=limits) as address, tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told.json")
        told.write_text(json.dumps({"address": address, "requests": requests, "clients": given.clients}))
        command = [sys.executable, __file__, "--client", str(told)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as apart:
            taken, waits = rounds(predictor, texts, requests, apart, given.rounds)
    tokens = sum(predictor.tokens_in(texts))
    print(
        f"bert/{given.size}, {len(texts)} texts of {tokens / len(texts):.0f} tokens, {given.at_once} a request, "
        f"{given.clients} clients, load {os.getloadavg()[0]:.1f}"
    )
    for name, walls in taken.items():
        wall, cores = medians(walls)
        wall_ratio, core_ratio = (
            one / own for one, own in zip(medians(taken["one by one"]), (wall, cores), strict=True)
        )
        print(
            f"  {name:14s} {len(texts) / wall:9.2f} texts/s x{wall_ratio:5.2f}   {cores:8.2f} core s x{core_ratio:5.2f}"
        )
    print(f"  server: one request, p50 {1000 * waits['p50']:.1f} ms, p99 {1000 * waits['p99']:.1f} ms")


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    walls, cores = zip(*pairs, strict=True)
    return statistics.median(walls), statistics.median(cores)


def rounds(
    predictor: Any, texts: list[str], requests: list[list[str]], apart: Any, count: int
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, float]]:
    """Seconds, and seconds of all cores, of each way in each round; and how long requests to the server took."""
    waits: dict[str, float] = {}

    def served() -> None:
        apart.stdin.write("\n")
        apart.stdin.flush()
        waits.update(json.loads(apart.stdout.readline()))

    ways: dict[str, Callable[[], Any]] = {
        "one by one": lambda: [predictor.encode(one, normalize=True) for one in requests],
        "all at once": lambda: predictor.encode(texts, normalize=True),
        "server": served,
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(count + 1):
        for name, way in ways.items():
            wall, cores = time.perf_counter(), time.process_time()
            way()
            if number:  # the first round warms up
                taken[name].append((time.perf_counter() - wall, time.process_time() - cores))
    return taken, waits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--vocabulary", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", type=Path)
    chosen = parser.parse_args()
    if chosen.client:
        run_client(chosen.client.read_text())
    else:
        main(chosen)
