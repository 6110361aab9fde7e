"""The command line in many short-lived processes: one interpreter imports torch once and forks for every call.

A fork is safe only with a single thread: the server computes nothing itself, limits every library to one thread, and
checks before each fork. As a program this file is the server, with JSON lines as protocol; `Server` is its client.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Self

TESTS = Path(__file__).resolve().parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PACKAGES = ("cli", "tokenizers", "data", "encoders", "objectives", "training", "model_io", "recipes")
LONGEST = 60.0  # seconds after which a call counts as hung
HUNG = -1000  # exit status of a hung call

Patch = tuple[str, dict[str, Any]]  # a function of pretrain_patches.py and its arguments


@dataclass(frozen=True)
class Ended:
    """Result of a call: exit status, negative for a signal, and standard error."""

    status: int
    errors: str
    busy: float = 0.0  # seconds of CPU time


@dataclass(frozen=True)
class Call:
    """A running call."""

    server: Server
    pid: int
    errors: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def begun(self) -> Path:
        """A file created when the command starts."""
        return self.errors.with_suffix(".begun")

    def send(self, number: int) -> None:
        """Sends a signal; a finished call stays a zombie until `wait`, so its pid is not reused."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = LONGEST) -> Ended:
        """Waits for the end; a call that does not end is killed with status HUNG."""
        reply = self.server.send_request(wait=self.pid, seconds=seconds)
        return Ended(reply["status"], self.errors.read_text(encoding="utf-8"), reply["busy"])

    def work(self, seconds: float) -> None:
        """Waits until the call has used so much CPU time, independent of the load of the machine."""
        deadline = time.monotonic() + seconds * 40
        while self._worked() < seconds and time.monotonic() < deadline and not self._ended():
            time.sleep(0.001)

    def _ended(self) -> bool:
        path = Path(f"/proc/{self.pid}/stat")
        return path.exists() and path.read_text().rpartition(")")[2].split()[0] == "Z"

    def _worked(self) -> float:
        path = Path(f"/proc/{self.pid}/schedstat")  # the first field: nanoseconds of the main thread
        return int(path.read_text().split()[0]) / 1e9 if path.exists() else time.monotonic() - self.began


class Server:
    """`with Server(folder) as server: server.call(["pretrain", ...])`; `folder` receives the output of calls."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.calls = folder, 0
        python_path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": python_path, "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # it exits at the end of its input

    def ready(self) -> None:
        """Waits until everything is imported."""
        self.send_request(ready=True)

    def send_request(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        assert reply, "the fork server has died: see its standard error"
        return json.loads(reply)

    def start(
        self, words: Sequence[object], *patches: Patch, environment: Mapping[str, str] | None = None, limit: int = 0
    ) -> Call:
        """Starts `bertsmith words...` in a forked process; `limit` is the file size limit in bytes."""
        self.calls += 1
        errors = self.folder / f"errors-{self.calls}.txt"
        errors.touch()
        reply = self.send_request(
            words=[str(word) for word in words],
            patches=patches,
            environment=dict(environment or {}),
            errors=str(errors),
            limit=limit,
        )
        return Call(self, reply["pid"], errors)

    def call(self, words: Sequence[object], *patches: Patch, limit: int = 0) -> Ended:
        """Runs a command to its end."""
        return self.start(words, *patches, limit=limit).wait()


def serve() -> None:
    """Handles requests until the end of input."""
    _import_everything()
    children: set[int] = set()
    reply: dict[str, Any]
    for line in sys.stdin:
        request = json.loads(line)
        if "ready" in request:
            reply = {}
        elif "wait" in request:
            reply = _wait(request["wait"], request["seconds"])
            children.discard(request["wait"])
        else:
            reply = {"pid": _fork(request)}
            children.add(reply["pid"])
        print(json.dumps(reply), flush=True)
    for child in children:
        os.kill(child, signal.SIGKILL)


def _import_everything() -> None:
    """Imports everything that the command needs, so that calls do not spend time on it."""
    for name in PACKAGES:
        package = import_module(f"bertsmith.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"bertsmith.{name}."):
            import_module(module.name)
    for name in (
        "bertsmith.reports.terminal",
        "faults.pretrain_patches",
        "rich.table",
        "torch.distributed",
        "torch._dynamo",
    ):
        import_module(name)  # the last one is for ranks: needed by torch's DistributedDataParallel
    from command_line import call

    assert (
        call("pretrain", "no/such", "--data", "nowhere", "--output", "nowhere").returncode == 78
    )  # imported by the parser
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # garbage collection in a child would copy every page it touches


def _fork(request: dict[str, Any]) -> int:
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else threading.active_count()
    assert threads == 1, f"{threads} threads: a fork would copy the locks that the others hold"
    child = os.fork()
    if not child:
        _become(request)
    return child


def _become(request: dict[str, Any]) -> None:
    """Turns this process into the command; does not return."""
    import resource

    from faults import pretrain_patches

    from bertsmith import cli

    errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    devnull = os.open(os.devnull, os.O_RDWR)
    for old, new in ((devnull, 0), (devnull, 1), (errors, 2)):
        os.dup2(old, new)
    os.environ.update(request["environment"])
    sys.argv = ["bertsmith", *request["words"]]
    if request["limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    for name, arguments in request["patches"]:
        getattr(pretrain_patches, name)(**arguments)
    status: Any = 1
    Path(request["errors"]).with_suffix(".begun").touch()
    try:
        cli.main()
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        traceback.print_exc()
    # Exits without the module teardown, which takes torch two seconds, after waiting for threads.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)


def _wait(child: int, seconds: float) -> dict[str, float]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return {"status": os.waitstatus_to_exitcode(status), "busy": usage.ru_utime + usage.ru_stime}
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"status": HUNG, "busy": 0.0}


if __name__ == "__main__":
    serve()
