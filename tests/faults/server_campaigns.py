"""What a server must survive (F9 to F12, F18): overload, slow callers, being told to stop, malformed bytes, secrets.

Every campaign takes `how`, the name of a build that is broken on purpose ("" for the real one), and says what it found.
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
from faults.server_load import Load, at_once, at_rate, request
from server.http_fixtures import post, send_raw

from bertsmith.server.monitoring import Log

ASKED = [request({"inputs": text}) for text in TEXTS]
WAITS = 0.5  # seconds of work that may wait
REJECTED = 0.2  # seconds that a refusal waits


@dataclass
class Outcome:
    """How a campaign went. It is honest only if `landed == asked`."""

    name: str
    options: dict[str, Any]
    asked: int = 0
    landed: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, right: bool, problem: str) -> None:
        """Notes a problem, with the command that runs the campaign again."""
        if not right:
            options = " ".join(f"{name}={value}" for name, value in self.options.items())
            replay = f"PYTHONPATH=src:tests python tests/faults/replay_server.py {self.name} {options}"
            self.failures.append(f"{self.name}: {problem}\n  replay: {replay}")

    def __str__(self) -> str:
        return f"{self.name} {self.options}: {self.landed} of {self.asked} faults landed, {self.facts}"


# --- F10 -------------------------------------------------------------------------------------------------------------


def overload(
    *, factor: float, share: float, seconds: float, cost: float = 0.05, how: str = "", apart: bool = False
) -> Outcome:
    """`factor` times what the model can do arrives; `share` of what it can do must still be answered, and soon."""
    outcome = Outcome(
        "overload", {"factor": factor, "share": share, "seconds": seconds, "cost": cost, "how": how, "apart": apart}
    )
    limits = _limits(int(WAITS / cost * EXPECTED_TOKENS))
    with contextlib.ExitStack() as stack:
        if apart:
            address = stack.enter_context(Process(cost=cost, how=how, **limits)).wait_until_ready()
        else:
            address = stack.enter_context(served(cost=cost, how=how, **limits))
        calm, load, after = asyncio.run(_overloaded(address, ASKED, seconds, rate=factor / cost))
    _judge(outcome, calm, load, after, share=share)
    return outcome


def overload_at_work(*, factor: float, share: float, seconds: float, how: str = "") -> Outcome:
    """The same with a model that computes: refusing many must not take the time that it needs."""
    outcome = Outcome("overload_at_work", {"factor": factor, "share": share, "seconds": seconds, "how": how})
    asked = [request({"inputs": f"{text} " * 3}) for text in TEXTS]
    with Process(heavy=True, how=how, **_limits(12 * 3 * EXPECTED_TOKENS)) as process:
        address = process.wait_until_ready()
        calm, load, after = asyncio.run(_overloaded(address, asked, seconds, factor=factor))
    _judge(outcome, calm, load, after, share=share)
    return outcome


def _limits(max_queued_tokens: int) -> dict[str, Any]:
    return {"max_queued_tokens": max_queued_tokens, "max_requests": 64, "deadline": 3.0, "rejection_seconds": REJECTED}


def _judge(outcome: Outcome, calm: Load, load: Load, after: float, *, share: float) -> None:
    outcome.asked = outcome.landed = len(load.samples)
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
    address: str, asked: list[bytes], seconds: float, *, rate: float = 0.0, factor: float = 0.0
) -> tuple[Load, Load, float]:
    calm = await at_once(address, asked, callers=9, seconds=min(seconds, 4.0) / 2)
    load = await at_rate(address, asked, rate=rate or factor * calm.goodput, seconds=seconds)
    ended = time.monotonic()
    while True:
        again = await at_once(address, asked, callers=1, seconds=0.01)
        if again.statuses.keys() == {200}:
            return calm, load, time.monotonic() - ended


# --- F11 -------------------------------------------------------------------------------------------------------------


def slow_callers(*, count: int, seconds: float, within: float, how: str = "", apart: bool = False) -> Outcome:
    """Headers, bodies and readers that take for ever: all are cut `within` seconds, and others do not suffer."""
    outcome = Outcome(
        "slow_callers", {"count": count, "seconds": seconds, "within": within, "how": how, "apart": apart}
    )
    limits = {"read_seconds": seconds, "write_seconds": seconds}
    with contextlib.ExitStack() as stack:
        if apart:
            address = stack.enter_context(Process(cost=0.02, how=how, **limits)).wait_until_ready()
        else:
            address = stack.enter_context(served(cost=0.02, how=how, **limits))
        calm, busy, cuts = asyncio.run(_slowed(address, count, within))
    late = [name for name, cut in cuts if cut is None]
    outcome.asked, outcome.landed = count, len(cuts)
    outcome.facts = {
        "p99 before": round(calm.slowest(), 3),
        "p99 during": round(busy.slowest(), 3),
        "last cut": max((round(cut, 2) for _, cut in cuts if cut is not None), default=None),
    }
    outcome.expect(not late, f"{len(late)} were not cut within {within} s: {sorted(set(late))}")
    outcome.expect(busy.statuses.keys() == {200}, f"others got {dict(busy.statuses)}")
    bound = 2 * calm.slowest() + (0 if apart else 0.5)  # in one process the work of the callers is felt
    outcome.expect(busy.slowest() <= bound, f"others' p99 went from {calm.slowest():.3f} to {busy.slowest():.3f} s")
    return outcome


async def _slowed(address: str, count: int, within: float) -> tuple[Load, Load, list[tuple[str, float | None]]]:
    calm = await at_once(address, ASKED, callers=2, seconds=1.0)
    kinds = [("reader", _slow_reader), *[("header", _slow_header)] * 3, *[("body", _slow_body)] * 2]
    slow = []
    busy = asyncio.create_task(at_once(address, ASKED, callers=2, seconds=within + count * 0.01))
    for number in range(count):
        slow.append(asyncio.create_task(_until_cut(address, *kinds[number % 6], within)))
        await asyncio.sleep(0.01)
    return calm, await busy, await asyncio.gather(*slow)


async def _until_cut(address: str, name: str, trickle: Any, within: float) -> tuple[str, float | None]:
    """Seconds until the server ended a slow caller; None where it did not."""
    place = urllib.parse.urlsplit(address)
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.setblocking(False)
    began = time.monotonic()
    with line:
        await asyncio.get_running_loop().sock_connect(line, (place.hostname, place.port))
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
    yield b"GET /health HTTP/1.1\r\nHost: a\r\nX-Slow: "
    while True:
        yield b"a"


def _slow_body() -> Any:
    yield post("/embed", b'{"inputs": "', Content_Length="5000")
    while True:
        yield b"a"


def _slow_reader() -> Any:
    yield b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 16


# --- F12 -------------------------------------------------------------------------------------------------------------


def stop_under_load(*, callers: int, cost: float = 0.04, how: str = "", apart: bool = True) -> Outcome:
    """Told to stop while many ask: whoever was let in is answered, and the server ends well. `apart`: by SIGTERM."""
    outcome = Outcome("stop_under_load", {"callers": callers, "cost": cost, "how": how, "apart": apart}, asked=1)
    lines: list[str] = []
    with contextlib.ExitStack() as stack:
        if apart:
            process = stack.enter_context(Process(cost=cost, how=how, drain_seconds=10))
            stopped, load, status = asyncio.run(_stopped(process.wait_until_ready(), callers, process.end))
            lines = process.lines
        else:
            here = contextlib.ExitStack()
            address = here.enter_context(served(cost=cost, how=how, log=Log(write=lines.append), drain_seconds=10.0))
            stopped, load, status = asyncio.run(_stopped(address, callers, lambda: here.close() or 0))
    told = next((line for line in lines if "stopping:" in line), "stopping: 0")
    under_way = int(told.split("stopping: ")[1].split()[0])
    outcome.landed = int(under_way > 0)
    lost = [sample for sample in load.samples if sample.sent < stopped - 0.05 and sample.status != 200]
    answered = sum(" POST /embed 200 " in line for line in lines)
    outcome.facts = {"under way": under_way, "statuses": dict(load.statuses), "status": status, "lost": len(lost)}
    outcome.expect(status == 0, f"it ended with status {status}: {lines[-1:]}")
    outcome.expect(not lost, f"{len(lost)} requests that were let in were lost: {[one.status for one in lost][:8]}")
    outcome.expect(answered == load.statuses[200], f"{answered} were answered, {load.statuses[200]} heard it")
    return outcome


async def _stopped(address: str, callers: int, stop: Callable[[], int]) -> tuple[float, Load, int]:
    asking = asyncio.create_task(at_once(address, ASKED, callers=callers, seconds=2.2))
    await asyncio.sleep(1.0)
    stopped = time.monotonic()
    status = await asyncio.to_thread(stop)
    return stopped, await asking, status


# --- F9 --------------------------------------------------------------------------------------------------------------

WHOLE = [
    post("/embed", {"inputs": ["the cat", "a mat"], "truncate": True}),
    post("/fill-mask", {"inputs": "the [MASK] sat", "top_k": 2}),
    post("/v1/embeddings", {"input": [5, 6, 7]}),
    post("/attention", {"inputs": "the cat", "layer": 1}),
    b"GET /info HTTP/1.1\r\nHost: a\r\n\r\n",
]
INSERTS = (b"\x00", b"\xff\xfe", b'"', b"\\ud800", b"NaN", b"\r\n\r\n", b"[" * 500, b"-1", b"9" * 400, b"%00", b"null")


def damaged(number: int, seed: int) -> bytes:
    """A request with a few random changes; the same for the same number and seed."""
    chance = random.Random(f"{seed} {number}")
    found = bytearray(chance.choice(WHOLE))
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(found) + 1)
        change = chance.randrange(5)
        if change == 0:
            found[place : place + 1] = bytes([chance.randrange(256)])
        elif change == 1:
            found[place:place] = chance.choice(INSERTS)
        elif change == 2:
            del found[place : place + chance.randint(1, 30)]
        elif change == 3:
            found[place:place] = found[chance.randrange(len(found) + 1) :][:40]
        else:
            del found[place:]
    body = bytes(found).partition(b"\r\n\r\n")[2]
    if chance.random() < 0.5 and body:  # let the damage be in the body alone, so that it is read
        return post("/embed", body)
    return bytes(found) or b"\r\n"


def malformed(*, count: int, seed: int, how: str = "", apart: bool = False) -> Outcome:
    """Damaged requests: answers of the 400s, or a closed connection, and a server that is as well as before."""
    outcome = Outcome("malformed", {"count": count, "seed": seed, "how": how, "apart": apart}, asked=count)
    limits = {"read_seconds": 1.0, "idle_seconds": 1.0}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        process = stack.enter_context(Process(how=how, **limits)) if apart else None
        address = process.wait_until_ready() if process else stack.enter_context(served(how=how, **limits))
        lone = [post("/embed", b'{"inputs": "\\ud800"}'), post("/tokenize", b'{"inputs": ["\\udfff"]}')]
        list(pool.map(lambda bytes_: send_raw(address, bytes_), [*WHOLE, *lone] * 4))  # so that everything is loaded
        before = process.memory() if process else 0
        heard = list(pool.map(lambda number: send_raw(address, damaged(number, seed)), range(count)))
        heard += [send_raw(address, one) for one in lone]
        grown = (process.memory() - before) if process else 0
        well = httpx.get(f"{address}/health", timeout=10).status_code
    outcome.landed = sum(one.status != 200 for one in heard[:count]) and count
    statuses = {status: sum(one.status == status for one in heard) for status in sorted({one.status for one in heard})}
    outcome.facts = {"statuses": statuses, "grown": f"{grown / 2**20:.1f} MB"}
    wrong = [number for number, one in enumerate(heard) if one.status >= 500 and one.status != 503]
    outcome.expect(not wrong, f"statuses {statuses}, the first at number {wrong[:1]}")
    outcome.expect(grown <= 50 << 20, f"the server grew by {grown / 2**20:.0f} MB")
    outcome.expect(well == 200, "the server is not well afterwards")
    return outcome


# --- F18 -------------------------------------------------------------------------------------------------------------

SECRETS = {"key": "canary-key-0123456789", "text": "canarytext", "env": "canary-env-0123456789"}


def secrets_kept(*, how: str = "") -> Outcome:
    """Secrets in the key, the environment and in texts turn up in no log, no error and no counter."""
    outcome = Outcome("secrets_kept", {"how": how})
    lines: list[str] = []
    said: list[str] = []
    os.environ["BERTSMITH_CANARY"] = SECRETS["env"]
    try:
        with _with_key(how, Log(write=lines.append)) as client:
            for answer in _ask_badly(client):
                outcome.asked += 1
                outcome.landed += answer.status_code >= 400
                said.append(f"{answer.headers} {answer.text}")
            for path in ("/metrics", "/info", "/health", "/docs", "/openapi.json"):
                said.append(client.get(path).text)
    finally:
        del os.environ["BERTSMITH_CANARY"]
    for name, secret in SECRETS.items():
        for where, found in (("log", lines), ("answer", said)):
            hits = [line for line in found if secret in line.lower()]
            outcome.expect(not hits, f"the {name} is in {len(hits)} of {len(found)} {where}s: {hits[:1]}")
    return outcome


@contextlib.contextmanager
def _with_key(how: str, log: Log) -> Any:
    from faults.server_fixtures import broken
    from server.http_fixtures import client_for

    with broken(how), client_for("words", "kinds", log=log, api_key=SECRETS["key"]) as client:
        client.headers["authorization"] = f"Bearer {SECRETS['key']}"
        yield client


def _ask_badly(client: httpx.Client) -> Any:
    """Errors of every kind, each with a secret in what was sent."""
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
