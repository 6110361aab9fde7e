"""Fault campaigns on a server (F9 to F12, F18): overload, slow clients, stop signals, malformed bytes, secrets.

Every campaign takes `defect`, the name of a deliberately broken build ("" for the real one), and returns an `Outcome`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import time
import urllib.parse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
from faults.server_fixtures import EXPECTED_TOKENS, TEXTS, Process, served
from faults.server_load import Load, at_rate, closed_loop, request
from server.http_fixtures import post, send_raw

from bertsmith.server.monitoring import Log

REQUESTS = [request({"inputs": text}) for text in TEXTS]
WAITS = 0.5  # seconds of queued work
REJECTED = 0.2  # seconds before a rejection is sent


@dataclass
class Outcome:
    """How a campaign went. It is valid only if `landed == requested`."""

    name: str
    options: dict[str, Any]
    requested: int = 0
    landed: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, right: bool, problem: str) -> None:
        """Records a problem with the command that reruns the campaign."""
        if not right:
            options = " ".join(f"{name}={value}" for name, value in self.options.items())
            replay = f"PYTHONPATH=src:tests python tests/faults/replay_server.py {self.name} {options}"
            self.failures.append(f"{self.name}: {problem}\n  replay: {replay}")

    def __str__(self) -> str:
        return f"{self.name} {self.options}: {self.landed} of {self.requested} faults landed, {self.facts}"


def overload(
    *, factor: float, share: float, seconds: float, cost: float = 0.05, defect: str = "", subprocess_: bool = False
) -> Outcome:
    """A load of `factor` times the capacity: goodput of at least `share` of the capacity, with bounded latency."""
    outcome = Outcome(
        "overload",
        {
            "factor": factor,
            "share": share,
            "seconds": seconds,
            "cost": cost,
            "defect": defect,
            "subprocess_": subprocess_,
        },
    )
    limits = _limits(int(WAITS / cost * EXPECTED_TOKENS))
    with contextlib.ExitStack() as stack:
        if subprocess_:
            address = stack.enter_context(Process(cost=cost, defect=defect, **limits)).wait_until_ready()
        else:
            address = stack.enter_context(served(cost=cost, defect=defect, **limits))
        calm, load, after = asyncio.run(_overloaded(address, REQUESTS, seconds, rate=factor / cost))
    _check_load(outcome, calm, load, after, share=share)
    return outcome


def overload_at_work(*, factor: float, share: float, seconds: float, repeat: int = 3, defect: str = "") -> Outcome:
    """The same with a model that computes: rejections must not take its CPU time.

    The more often a text is repeated, the lower the capacity, and with it the rate that the clients must keep up.
    """
    outcome = Outcome("overload_at_work", {"factor": factor, "share": share, "seconds": seconds, "defect": defect})
    requests = [request({"inputs": f"{text} " * repeat, "truncate": True}) for text in TEXTS]
    with Process(heavy=True, defect=defect, **_limits(12 * repeat * EXPECTED_TOKENS)) as process:
        address = process.wait_until_ready()
        calm, load, after = asyncio.run(_overloaded(address, requests, seconds, factor=factor))
        peak, tracebacks = process.memory("VmHWM"), process.tracebacks()
    _check_load(outcome, calm, load, after, share=share)
    outcome.facts |= {"peak": peak, "tracebacks": tracebacks}
    return outcome


def _limits(max_queued_tokens: int) -> dict[str, Any]:
    return {"max_queued_tokens": max_queued_tokens, "max_requests": 64, "deadline": 3.0, "rejection_seconds": REJECTED}


def _check_load(outcome: Outcome, calm: Load, load: Load, after: float, *, share: float) -> None:
    outcome.requested = outcome.landed = len(load.samples)
    outcome.facts = {
        "capacity": round(calm.goodput, 1),
        "goodput": round(load.goodput, 1),
        "statuses": dict(load.statuses),
        "slowest": round(load.slowest(), 2),
        "recovered": round(after, 2),
    }
    outcome.expect(calm.statuses.keys() == {200}, f"without overload: {dict(calm.statuses)}")
    outcome.expect(load.statuses.keys() <= {200, 429, 503}, f"statuses {dict(load.statuses)}")
    outcome.expect(load.goodput >= share * calm.goodput, f"{load.goodput:.1f} of {calm.goodput:.1f} a second answered")
    outcome.expect(load.slowest() <= 2 * WAITS + 1.0, f"answers took up to {load.slowest():.2f} s")
    late = sum(b'"deadline"' in sample.body for sample in load.samples)
    outcome.expect(not late, f"{late} requests were let in and got no answer in time")
    outcome.expect(load.quickest(429) >= 0.9 * REJECTED, f"a refusal came after {load.quickest(429):.3f} s")
    outcome.expect(load.statuses[429] + load.statuses[503] > 0, "nothing was refused: this was no overload")
    outcome.expect(after <= 5, f"it took {after:.1f} s to recover")


async def _overloaded(
    address: str, requests: list[bytes], seconds: float, *, rate: float = 0.0, factor: float = 0.0
) -> tuple[Load, Load, float]:
    calm = await closed_loop(address, requests, callers=9, seconds=min(seconds, 4.0) / 2)
    load = await at_rate(address, requests, rate=rate or factor * calm.goodput, seconds=seconds)
    ended = time.monotonic()
    while True:
        probe = await closed_loop(address, requests, callers=1, seconds=0.01)
        if probe.statuses.keys() == {200}:
            return calm, load, time.monotonic() - ended


def slow_callers(*, count: int, seconds: float, within: float, defect: str = "", subprocess_: bool = False) -> Outcome:
    """Endlessly slow headers, bodies and readers: all are cut `within` seconds without affecting other clients."""
    outcome = Outcome(
        "slow_callers",
        {"count": count, "seconds": seconds, "within": within, "defect": defect, "subprocess_": subprocess_},
    )
    limits = {"read_seconds": seconds, "write_seconds": seconds}
    with contextlib.ExitStack() as stack:
        if subprocess_:
            address = stack.enter_context(Process(cost=0.02, defect=defect, **limits)).wait_until_ready()
        else:
            address = stack.enter_context(served(cost=0.02, defect=defect, **limits))
        calm, busy, cuts = asyncio.run(_slowed(address, count, within))
    late = [name for name, cut in cuts if cut is None]
    outcome.requested, outcome.landed = count, len(cuts)
    outcome.facts = {
        "p99 before": round(calm.slowest(), 3),
        "p99 during": round(busy.slowest(), 3),
        "last cut": max((round(cut, 2) for _, cut in cuts if cut is not None), default=None),
    }
    outcome.expect(not late, f"{len(late)} were not cut within {within} s: {sorted(set(late))}")
    outcome.expect(busy.statuses.keys() == {200}, f"others got {dict(busy.statuses)}")
    bound = 2 * calm.slowest() + (0 if subprocess_ else 0.5)  # in one process the clients' work counts too
    outcome.expect(busy.slowest() <= bound, f"others' p99 went from {calm.slowest():.3f} to {busy.slowest():.3f} s")
    return outcome


async def _slowed(address: str, count: int, within: float) -> tuple[Load, Load, list[tuple[str, float | None]]]:
    calm = await closed_loop(address, REQUESTS, callers=2, seconds=1.0)
    kinds = [("reader", _slow_reader), *[("header", _slow_header)] * 3, *[("body", _slow_body)] * 2]
    slow = []
    busy = asyncio.create_task(closed_loop(address, REQUESTS, callers=2, seconds=within + count * 0.01))
    for number in range(count):
        slow.append(asyncio.create_task(_until_cut(address, *kinds[number % 6], within)))
        await asyncio.sleep(0.01)
    return calm, await busy, await asyncio.gather(*slow)


async def _until_cut(address: str, name: str, trickle: Any, within: float) -> tuple[str, float | None]:
    """Seconds until the server closed a slow connection; None if it did not."""
    url = urllib.parse.urlsplit(address)
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    began = time.monotonic()
    with line:
        await asyncio.get_running_loop().sock_connect(line, (url.hostname, url.port))
        watch = select.poll()
        watch.register(line, select.POLLRDHUP)
        sends = trickle()
        while time.monotonic() - began < within:
            try:
                await asyncio.get_running_loop().sock_sendall(line, next(sends, b""))
            except OSError:
                return name, time.monotonic() - began
            await asyncio.sleep(0.1)
            if watch.poll(0):
                return name, time.monotonic() - began
    return name, None


def _slow_header() -> Any:
    yield b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    while True:
        yield b"a"


def _slow_body() -> Any:
    yield post("/embed", b'{"inputs": "', Content_Length="5000")
    while True:
        yield b"a"


def _slow_reader() -> Any:
    yield b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 16


def stop_under_load(*, callers: int, cost: float = 0.04, defect: str = "", subprocess_: bool = True) -> Outcome:
    """Stopped under load: accepted requests are answered and the server exits cleanly. `subprocess_`: by SIGTERM."""
    outcome = Outcome(
        "stop_under_load", {"callers": callers, "cost": cost, "defect": defect, "subprocess_": subprocess_}, requested=1
    )
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        if subprocess_:
            process = stack.enter_context(Process(cost=cost, defect=defect, drain_seconds=10))
            stopped, load, status = asyncio.run(_stopped(process.wait_until_ready(), callers, process.end))
            lines = process.lines
        else:
            server_stack = contextlib.ExitStack()
            address = server_stack.enter_context(
                served(cost=cost, defect=defect, log=Log(write=lines.append), drain_seconds=10.0)
            )
            stopped, load, status = asyncio.run(_stopped(address, callers, lambda: server_stack.close() or 0))
    stop_line = next((line for line in lines if "stopping:" in line), "stopping: 0")
    in_flight = int(stop_line.split("stopping: ")[1].split()[0])
    outcome.landed = int(in_flight > 0)
    lost = [sample for sample in load.samples if sample.sent < stopped - 0.05 and sample.status != 200]
    responses = sum(" POST /embed 200 " in line for line in lines)
    outcome.facts = {"in flight": in_flight, "statuses": dict(load.statuses), "status": status, "lost": len(lost)}
    outcome.expect(status == 0, f"it ended with status {status}: {lines[-1:]}")
    outcome.expect(not lost, f"{len(lost)} accepted requests were lost: {[item.status for item in lost][:8]}")
    outcome.expect(responses == load.statuses[200], f"{responses} were sent, {load.statuses[200]} received")
    return outcome


async def _stopped(address: str, callers: int, stop: Callable[[], int]) -> tuple[float, Load, int]:
    asking = asyncio.create_task(closed_loop(address, REQUESTS, callers=callers, seconds=2.2))
    await asyncio.sleep(1.0)
    stopped = time.monotonic()
    status = await asyncio.to_thread(stop)
    return stopped, await asking, status


VALID_REQUESTS = [
    post("/embed", {"inputs": ["the cat", "a mat"], "truncate": True}),
    post("/fill-mask", {"inputs": "the [MASK] sat", "top_k": 2}),
    post("/v1/embeddings", {"input": [5, 6, 7]}),
    post("/attention", {"inputs": "the cat", "layer": 1}),
    b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n",
]
INSERTS = (b"\x00", b"\xff\xfe", b'"', b"\\ud800", b"NaN", b"\r\n\r\n", b"[" * 500, b"-1", b"9" * 400, b"%00", b"null")


def damaged(number: int, seed: int) -> bytes:
    """A request with a few random changes, determined by number and seed."""
    chance = random.Random(f"{seed} {number}")
    data = bytearray(chance.choice(VALID_REQUESTS))
    for _ in range(chance.randint(1, 4)):
        index = chance.randrange(len(data) + 1)
        change = chance.randrange(5)
        if change == 0:
            data[index : index + 1] = bytes([chance.randrange(256)])
        elif change == 1:
            data[index:index] = chance.choice(INSERTS)
        elif change == 2:
            del data[index : index + chance.randint(1, 30)]
        elif change == 3:
            data[index:index] = data[chance.randrange(len(data) + 1) :][:40]
        else:
            del data[index:]
    body = bytes(data).partition(b"\r\n\r\n")[2]
    if chance.random() < 0.5 and body:  # damage only the body, so that it is parsed
        return post("/embed", body)
    return bytes(data) or b"\r\n"


def malformed(*, count: int, seed: int, defect: str = "", subprocess_: bool = False) -> Outcome:
    """Damaged requests: 4xx responses or a closed connection, and a healthy server afterwards."""
    outcome = Outcome(
        "malformed", {"count": count, "seed": seed, "defect": defect, "subprocess_": subprocess_}, requested=count
    )
    limits = {"read_seconds": 1.0, "idle_seconds": 1.0}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        process = stack.enter_context(Process(defect=defect, **limits)) if subprocess_ else None
        address = process.wait_until_ready() if process else stack.enter_context(served(defect=defect, **limits))
        lone = [post("/embed", b'{"inputs": "\\ud800"}'), post("/tokenize", b'{"inputs": ["\\udfff"]}')]
        list(pool.map(lambda bytes_: send_raw(address, bytes_), [*VALID_REQUESTS, *lone] * 4))  # warm-up
        before = process.memory() if process else 0
        received = list(pool.map(lambda number: send_raw(address, damaged(number, seed)), range(count)))
        received += [send_raw(address, item) for item in lone]
        grown = (process.memory() - before) if process else 0
        well = httpx.get(f"{address}/health", timeout=10).status_code
    outcome.landed = sum(item.status != 200 for item in received[:count]) and count
    statuses = {
        status: sum(item.status == status for item in received) for status in sorted({item.status for item in received})
    }
    outcome.facts = {"statuses": statuses, "grown": f"{grown / 2**20:.1f} MB"}
    wrong = [number for number, item in enumerate(received) if item.status >= 500 and item.status != 503]
    outcome.expect(not wrong, f"statuses {statuses}, the first at number {wrong[:1]}")
    outcome.expect(grown <= 50 << 20, f"the server grew by {grown / 2**20:.0f} MB")
    outcome.expect(well == 200, "the server is not well afterwards")
    return outcome


SECRETS = {"key": "canary-key-0123456789", "text": "canarytext", "env": "canary-env-0123456789"}


def secrets_stay_private(*, defect: str = "") -> Outcome:
    """Secrets in the API key, the environment and the texts do not appear in logs, errors or metrics."""
    outcome = Outcome("secrets_stay_private", {"defect": defect})
    lines: list[str] = []
    output: list[str] = []
    os.environ["BERTSMITH_CANARY"] = SECRETS["env"]
    try:
        with _with_key(defect, Log(write=lines.append)) as client:
            for response in _send_invalid_requests(client):
                outcome.requested += 1
                outcome.landed += response.status_code >= 400
                output.append(f"{response.headers} {response.text}")
            for path in ("/metrics", "/info", "/health", "/docs", "/openapi.json"):
                output.append(client.get(path).text)
    finally:
        del os.environ["BERTSMITH_CANARY"]
    for name, secret in SECRETS.items():
        for where, recorded in (("log", lines), ("answer", output)):
            hits = [line for line in recorded if secret in line.lower()]
            outcome.expect(not hits, f"the {name} is in {len(hits)} of {len(recorded)} {where}s: {hits[:1]}")
    return outcome


@contextlib.contextmanager
def _with_key(defect: str, log: Log) -> Any:
    from faults.server_fixtures import broken
    from server.http_fixtures import client_for

    with broken(defect), client_for("words", "kinds", log=log, api_key=SECRETS["key"]) as client:
        client.headers["authorization"] = f"Bearer {SECRETS['key']}"
        yield client


def _send_invalid_requests(client: httpx.Client) -> Any:
    """Errors of every kind, each with a secret in the request."""
    text, key = SECRETS["text"], SECRETS["key"]
    yield client.post("/embed", json={"inputs": text}, headers={"authorization": f"Bearer {key}{text}"})
    yield client.post(f"/{text}", json={})
    yield client.post(f"/models/{text}/embed", json={"inputs": text})
    yield client.request(text.upper(), "/embed")
    for body in ({"inputs": {text: text}}, {"inputs": [text, 3]}, {text: text}, text, {"inputs": f"{text} " * 80}):
        yield client.post("/embed", json=body)
    for body in (f'{{"inputs": "{text}', f'{{"{text}": 1, "{text}": 2}}', f'{{"inputs": "{text}\\ud800"}}'):
        yield client.post("/embed", content=body, headers={"content-type": "application/json"})
    yield client.post("/embed", content=text, headers={"content-type": text})
    yield client.post("/embed", json={"inputs": text, "model": text})
    yield client.post("/embed", json={"inputs": text, "pooling": text})
    yield client.post("/fill-mask", json={"inputs": f"the [MASK] {text}", "targets": [text]})
    yield client.post("/fill-mask", json={"inputs": text})
    yield client.post("/rerank", json={"query": text, "texts": [text], "model": "kinds", "positive": text})
    yield client.post("/qa", json={"question": text, "context": text})
    yield client.post("/predict", json={"inputs": [[text, text, text]]})
    yield client.post("/attention", json={"inputs": text, "layer": 99})
