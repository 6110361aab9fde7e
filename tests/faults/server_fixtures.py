"""Servers for fault tests: in this process or in another, with a model of known latency, or deliberately broken.

As a program it starts one: `python server_fixtures.py SETTINGS`, see `Process`.
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
from server.http_fixtures import all_predictors, predictor

from bertsmith.inference.forward import Backend, ModelInput, Query
from bertsmith.inference.predictor import Predictor
from bertsmith.server import middleware, server
from bertsmith.server.app import build
from bertsmith.server.monitoring import Log
from bertsmith.server.settings import Limits

TESTS = Path(__file__).resolve().parents[1]
TEXTS = ("the cat sat", "a cat on the mat", "서울은 한국의 수도이다", "the mat")
EXPECTED_TOKENS = 6  # approximate, per text


class Costly:
    """Wraps a model with a fixed latency per item, independent of the machine."""

    def __init__(self, backend: Any, cost: float) -> None:
        self.backend, self.cost = backend, cost
        self.batch_tokens: int = backend.batch_tokens

    def run(self, task: Query, items: Sequence[ModelInput]) -> list[Any]:
        """Runs the wrapped model."""
        began = time.monotonic()
        results: list[Any] = self.backend.run(task, items)
        time.sleep(max(0.0, began + self.cost * len(items) - time.monotonic()))
        return results


def costly(cost: float) -> Predictor:
    """A model with a throughput of 1 / cost texts per second."""
    built = predictor("words")
    slow: Backend = Costly(built.backend, cost)
    return Predictor(built.model, built.tokenizer, backend=slow)


def heavy() -> Predictor:
    """A model that keeps a core busy: some tens of texts per second."""
    return Predictor(model("masked_lm", layers=6, width=512, heads=8), tokenizer())


@contextlib.contextmanager
def broken(defect: str) -> Iterator[None]:
    """A build without one of its safeguards, which the campaign must detect."""
    with contextlib.ExitStack() as stack:
        if defect == "instant":  # rejections are sent immediately

            def reject_immediately(self: Any, problem: Any) -> Any:
                problem.delayed = False
                return problem, 0.0

            stack.enter_context(mock.patch.object(middleware.Gateway, "delay_of", reject_immediately))
        elif defect == "patient":  # no deadlines

            async def never(connections: Any, limits: Any) -> None:
                await asyncio.sleep(3600)

            stack.enter_context(mock.patch.object(server, "sweep_connections", never))
            stack.enter_context(mock.patch.object(server.DeadlineProtocol, "check_deadlines", return_value=None))
        elif defect == "drops":  # requests in flight are dropped when the server is stopped
            original_init = server.Server.__init__

            def hasty(self: Any, *args: Any, **options: Any) -> None:
                original_init(self, *args, **options)
                self.config.timeout_graceful_shutdown = 0

            stack.enter_context(mock.patch.object(server.Server, "__init__", hasty))
        elif defect == "credulous":  # bodies are assumed to be valid JSON
            stack.enter_context(mock.patch.object(middleware, "parse_json", lambda body, limits: json.loads(body)))
        elif defect == "talkative":  # the log contains request bodies
            original_request = Log.request

            def more(self: Log, visit: Any) -> None:
                original_request(self, visit)
                self.write(repr(visit.body))

            stack.enter_context(mock.patch.object(Log, "request", more))
        else:
            assert defect in ("", "unbounded")
        yield


def limits_of(defect: str, **options: Any) -> Limits:
    """Limits; an unbounded build has no queue limit."""
    return Limits(**options | ({"max_queued_tokens": 10**9, "max_requests": 2000} if defect == "unbounded" else {}))


@contextlib.contextmanager
def served(*, cost: float = 0.0, defect: str = "", log: Log | None = None, **limits: Any) -> Iterator[str]:
    """A server in this process; yields its address."""
    with (
        broken(defect),
        server.running({"words": costly(cost)}, limits=limits_of(defect, **limits), log=log) as address,
    ):
        yield address


class Process:
    """A server in a subprocess."""

    def __init__(
        self,
        *,
        cost: float = 0.0,
        heavy: bool = False,
        defect: str = "",
        all_models: bool = False,
        api_key: str = "",
        **limits: Any,
    ) -> None:
        facts = {"cost": cost, "heavy": heavy, "broken": defect, "limits": limits, "all": all_models, "key": api_key}
        settings = json.dumps(facts)
        paths = os.pathsep.join([str(TESTS), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, __file__, settings],
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
        """Its address, once it responds."""
        assert self.ready.wait(60)
        assert self.address, "\n".join(self.lines)
        host, port = self.address.removeprefix("http://").split(":")
        for _ in range(500):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
                return self.address
            time.sleep(0.01)
        raise AssertionError("it does not listen")

    def stop(self) -> None:
        """Sends the stop signal."""
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 30) -> int:
        """Waits for the exit; returns the exit status."""
        status = self.process.wait(seconds)
        self.reader.join(5)
        return status

    def end(self) -> int:
        """Stops it and waits for the exit."""
        self.stop()
        return self.wait()

    def memory(self, field: str = "VmRSS") -> int:
        """Resident memory in bytes; its peak with VmHWM."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) << 10

    def tracebacks(self) -> int:
        """How many tracebacks it has logged."""
        return sum("Traceback (most recent" in line for line in self.lines)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join(5)
        assert self.process.stderr is not None
        self.process.stderr.close()


def main(settings: str) -> None:
    facts = json.loads(settings)
    with broken(facts["broken"]):
        limits = limits_of(facts["broken"], **facts["limits"])
        listener = server.listen("127.0.0.1", 0)
        models = {"words": heavy() if facts["heavy"] else costly(facts["cost"])}
        models |= {name: one for name, one in all_predictors().items() if facts["all"] and name != "words"}
        server.serve(build(models, limits=limits, log=Log(), api_key=facts["key"] or None), listener)


if __name__ == "__main__":
    from bertsmith.errors import BertsmithError

    try:
        main(sys.argv[1])
    except BertsmithError as error:
        sys.exit(error.exit_code)
