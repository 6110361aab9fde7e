"""Servers for fault tests: in this process or in another, with a model of known latency, or deliberately broken.

As a program it starts one: `python server_fixtures.py '{"cost": 0.01, "heavy": false, "broken": "", "limits": {}}'`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from model_io.folder_fixtures import model, tokenizer
from server.http_fixtures import predictor

from bertsmith.inference.forward import Backend, ModelInput, Query
from bertsmith.inference.predictor import Predictor
from bertsmith.server import middleware, server
from bertsmith.server.app import build
from bertsmith.server.monitoring import Log
from bertsmith.server.settings import Limits

TESTS = Path(__file__).resolve().parents[1]
TEXTS = ("the cat sat", "a cat on the mat", "서울은 한국의 수도이다", "the mat")
EXPECTED_TOKENS = 6  # of a text, about


class Costly:
    """Computes as another does, and takes so many seconds for each item, however fast the machine is."""

    def __init__(self, backend: Any, cost: float) -> None:
        self.backend, self.cost = backend, cost
        self.batch_tokens: int = backend.batch_tokens

    def run(self, wish: Query, items: Sequence[ModelInput]) -> list[Any]:
        """See `Computing`."""
        began = time.monotonic()
        found: list[Any] = self.backend.run(wish, items)
        time.sleep(max(0.0, began + self.cost * len(items) - time.monotonic()))
        return found


def costly(cost: float) -> Predictor:
    """A model that answers 1 / cost texts a second."""
    made = predictor("words")
    slow: Backend = Costly(made.backend, cost)
    return Predictor(made.model, made.tokenizer, backend=slow)


def heavy() -> Predictor:
    """A model that keeps a core busy: some tens of texts a second."""
    return Predictor(model("masked_lm", layers=6, width=512, heads=8), tokenizer())


@contextlib.contextmanager
def broken(how: str) -> Iterator[None]:
    """A build that lacks one of its precautions, to see that the campaign notices."""
    with contextlib.ExitStack() as stack:
        if how == "instant":  # whoever is refused hears it at once

            async def at_once(self: Any, problem: Any) -> Any:
                return problem

            stack.enter_context(mock.patch.object(middleware.Gateway, "delay", at_once))
        elif how == "patient":  # nobody is ever late

            async def never(connections: Any, limits: Any) -> None:
                await asyncio.sleep(3600)

            stack.enter_context(mock.patch.object(server, "sweep_connections", never))
            stack.enter_context(mock.patch.object(server.DeadlineProtocol, "check_deadlines", return_value=None))
        elif how == "drops":  # what is under way is dropped when the server is told to stop
            made = server.Server.__init__

            def hasty(self: Any, *args: Any, **options: Any) -> None:
                made(self, *args, **options)
                self.config.timeout_graceful_shutdown = 0

            stack.enter_context(mock.patch.object(server.Server, "__init__", hasty))
        elif how == "credulous":  # bodies are taken for JSON
            stack.enter_context(mock.patch.object(middleware, "parse_json", lambda body, limits: json.loads(body)))
        elif how == "talkative":  # the log has what was sent
            told = Log.request

            def more(self: Log, visit: Any) -> None:
                told(self, visit)
                self.write(repr(visit.body))

            stack.enter_context(mock.patch.object(Log, "request", more))
        else:
            assert how in ("", "unbounded")
        yield


def limits_of(how: str, **given: Any) -> Limits:
    """Limits; an unbounded build has none on what waits."""
    return Limits(**given | ({"max_queued_tokens": 10**9, "max_requests": 2000} if how == "unbounded" else {}))


@contextlib.contextmanager
def served(*, cost: float = 0.0, how: str = "", log: Log | None = None, **limits: Any) -> Iterator[str]:
    """A server in this process; gives its address."""
    with broken(how), server.running({"words": costly(cost)}, limits=limits_of(how, **limits), log=log) as address:
        yield address


class Process:
    """A server in a process of its own."""

    def __init__(self, *, cost: float = 0.0, heavy: bool = False, how: str = "", **limits: Any) -> None:
        told = json.dumps({"cost": cost, "heavy": heavy, "broken": how, "limits": limits})
        paths = os.pathsep.join([str(TESTS), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, __file__, told],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        self.lines: list[str] = []
        self.address = ""
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if " serving " in line:
                self.address = line.split(" on ")[1].strip()
                self.ready.set()
        self.ready.set()

    def wait_until_ready(self) -> str:
        """Its address, once it answers."""
        assert self.ready.wait(60)
        assert self.address, "\n".join(self.lines)
        host, port = self.address.removeprefix("http://").split(":")
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
                return self.address
            time.sleep(0.01)
        raise AssertionError("it does not listen")

    def stop(self) -> None:
        """Tells it to stop."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 30) -> int:
        """How it ended."""
        status = self.process.wait(seconds)
        self.reader.join(5)
        return status

    def end(self) -> int:
        """Tells it to stop, and waits until it has."""
        self.stop()
        return self.wait()

    def memory(self) -> int:
        """Bytes that it holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) << 10

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


def main(told: str) -> None:
    facts = json.loads(told)
    with broken(facts["broken"]):
        limits = limits_of(facts["broken"], **facts["limits"])
        listener = server.listen("127.0.0.1", 0)
        made = heavy() if facts["heavy"] else costly(facts["cost"])
        server.serve(build({"words": made}, limits=limits, log=Log()), listener)


if __name__ == "__main__":
    from bertsmith.errors import BertsmithError

    try:
        main(sys.argv[1])
    except BertsmithError as error:
        sys.exit(error.exit_code)
