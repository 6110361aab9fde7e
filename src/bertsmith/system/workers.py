"""Work units over processes: results in order, a bounded number under way, the same answer for any number of workers.

Owns process pools, the optional Ray engine, and processes that call one function for the threads of this one. Knows
nothing of text or shards: a unit is whatever the caller hands in.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from queue import SimpleQueue
from typing import IO, Any, TypeVar

from bertsmith.errors import BertsmithError, ConfigError, StoppedError

Unit = TypeVar("Unit")
Result = TypeVar("Result")

ENGINES = ("local", "ray")
RUN_TIMEOUT = 7 * 24 * 3600.0  # seconds of patience where a unit is a training run
HEADER = 8  # bytes before a message of `FunctionWorkers`: its size
AHEAD = 2  # units handed out per worker, so that none waits while a result is being taken
GRACE = 20.0  # seconds in which a worker that is told to end may save what it has

_told_to_end = threading.Event()  # in a worker: a unit was stopped, and no other is to begin


def ordered_map(
    function: Callable[[Unit], Result],
    units: Iterable[Unit],
    *,
    workers: int = 1,
    engine: str = "local",
    patience: float = 600.0,
) -> Generator[Result, None, None]:
    """Yields `function(unit)` for every unit, in the order of the units.

    At most `AHEAD` units per worker are in memory at once. A worker that dies, or returns nothing within `patience`
    seconds, ends the map with `StoppedError`, which names the unit. Anything that ends the map early, Ctrl-C included,
    also ends the workers, which first save training runs in progress. Close the generator to stop early.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers}: at least one is needed")
    if engine == "ray":
        return _over_ray(function, units, workers=workers, patience=patience)
    if engine != "local":
        raise ConfigError(f"engine={engine} is not known; the engines are {' and '.join(ENGINES)}")
    if workers == 1:
        return (function(unit) for unit in units)
    return _over_processes(function, units, workers=workers, patience=patience)


def default_workers() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _over_processes(
    function: Callable[[Unit], Result], units: Iterable[Unit], *, workers: int, patience: float
) -> Generator[Result, None, None]:
    # Spawned, not forked: tokenizers and torch hold threads, and a fork of a threaded process can hang.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_settle_in)
    waiting: deque[Future[Result]] = deque()
    taken = 0
    try:
        for unit in units:
            waiting.append(pool.submit(_work, function, unit))
            if len(waiting) >= workers * AHEAD:
                yield waiting.popleft().result(timeout=patience)
                taken += 1
        while waiting:
            yield waiting.popleft().result(timeout=patience)
            taken += 1
    except BrokenProcessPool as error:
        raise _lost(taken, "a worker process was killed (often by the system, for want of memory)") from error
    except FutureTimeout as error:
        _end_pool(pool, grace=0.0)
        raise _lost(taken, f"no worker answered within {patience:g} s") from error
    except GeneratorExit:  # closed: who has taken all results has not asked whether there are more
        if waiting:
            _end_pool(pool)
        raise
    except BaseException:
        _end_pool(pool)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _work(function: Callable[[Unit], Result], unit: Unit) -> Result:
    """In a worker. It may have got another unit already when one is stopped."""
    if _told_to_end.is_set():
        raise StoppedError("told to end before it began")
    try:
        return function(unit)
    except StoppedError:
        _told_to_end.set()
        raise


def _settle_in() -> None:
    """First thing in a worker: leave Ctrl-C to the parent, end when it is gone, and take one core only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _end_with_parent() -> None:
    """Workers hold both ends of the pipe that work comes by: they would never hear of a parent that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _end_pool(pool: ProcessPoolExecutor, grace: float = GRACE) -> None:
    """Tells the workers to end, and waits until they have: a process that has some left does not end either."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    until = time.monotonic() + grace
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(max(until - time.monotonic(), 0.0))
    finally:  # at once if Ctrl-C comes again
        for process in processes:
            process.kill()


def _lost(unit: int, why: str) -> StoppedError:
    return StoppedError(
        f"{why} at work unit {unit}; what was finished is kept: "
        "run the same command again, with fewer workers if memory is short"
    )


def _over_ray(
    function: Callable[[Unit], Result], units: Iterable[Unit], *, workers: int, patience: float
) -> Generator[Result, None, None]:
    try:
        import ray
    except ImportError as error:
        raise BertsmithError("engine ray needs Ray: pip install 'bertsmith[ray]'") from error
    ours = not ray.is_initialized()
    if ours:
        # An address in RAY_ADDRESS joins that cluster; otherwise a local one is started for this call.
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers}
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False, **local)
    task = ray.remote(max_retries=2)(_call)
    shared = ray.put(function)
    waiting: deque[Any] = deque()
    taken = 0
    try:
        for unit in units:
            waiting.append(task.remote(shared, unit))
            if len(waiting) >= workers * AHEAD:
                yield ray.get(waiting.popleft(), timeout=patience)
                taken += 1
        while waiting:
            yield ray.get(waiting.popleft(), timeout=patience)
            taken += 1
    except ray.exceptions.GetTimeoutError as error:
        raise _lost(taken, f"no Ray worker answered within {patience:g} s") from error
    except ray.exceptions.WorkerCrashedError as error:
        raise _lost(taken, "a Ray worker was killed") from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if ours:
            ray.shutdown()


def _call(function: Callable[[Unit], Result], unit: Unit) -> Result:
    return function(unit)


class WorkerDied(Exception):
    """A process of `FunctionWorkers` is gone."""


class FunctionWorkers:
    """Processes that each hold a copy of a function, and call it for threads of this one that would hold each other up.

    They read what to call it with until nobody can write that any more: whatever ends this process ends them too.
    """

    def __init__(self, function: Callable[..., Any], workers: int) -> None:
        held = pickle.dumps(function, protocol=5)
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self._all = [
            # a session of its own: what stops a run from the keyboard is for this process alone
            subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **path},
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        self._end = weakref.finalize(self, _end, self._all)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._all:
            assert process.stdin is not None
            _write(process.stdin, held)
            self._idle.put(process)

    def __call__(self, *given: Any, **named: Any) -> Any:
        """What the function gives, or raises, by the first process that has nothing to do."""
        question = pickle.dumps((given, named), protocol=5)
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, question)
            answer = _read(process.stdout)
        except (OSError, ValueError) as error:  # gone, or closed by another thread that found one gone
            raise WorkerDied from error
        finally:
            self._idle.put(process)
        if answer is None:
            raise WorkerDied
        good, found = pickle.loads(answer)
        if good:
            return found
        raise found

    def close(self) -> None:
        """Ends the processes, as they end when nobody holds this any more."""
        self._end()


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # what was not read any more
                stream.close()  # type: ignore[union-attr]


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(HEADER, "little"))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message; None where there will be none."""
    header = stream.read(HEADER)
    size = int.from_bytes(header, "little")
    data = stream.read(size) if len(header) == HEADER else b""
    return data if len(header) == HEADER and len(data) == size else None


def _serve() -> None:
    """What a process of `FunctionWorkers` does. Whatever is printed there goes to the standard error."""
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    held = _read(asked)
    function = pickle.loads(held) if held is not None else None
    while function is not None and (question := _read(asked)) is not None:
        given, named = pickle.loads(question)
        try:
            answer = True, function(*given, **named)
        except Exception as error:
            answer = False, error
        _write(answers, pickle.dumps(answer, protocol=5))


if __name__ == "__main__":
    _serve()
