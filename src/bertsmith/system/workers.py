"""Work in other processes: an ordered map over work units, on this machine or on Ray, and worker processes that call
one function for the threads of this process.
"""

from __future__ import annotations

import io
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
from itertools import chain, islice
from multiprocessing.context import SpawnContext, SpawnProcess
from queue import SimpleQueue
from types import ModuleType
from typing import IO, Any, TypeVar

from bertsmith.errors import BertsmithError, ConfigError, StoppedError

Unit = TypeVar("Unit")
Result = TypeVar("Result")

ENGINES = ("local", "ray")
RUN_TIMEOUT = 7 * 24 * 3600.0  # seconds, if a unit is a training run
HEADER = 8  # bytes before a message of `FunctionWorkers` that hold its size
PREFETCH = 2  # units submitted per worker, so that no worker waits while a result is consumed
GRACE = 20.0  # seconds in which a terminated worker may save its work

_starting = threading.Lock()
_stopping = threading.Event()  # in a worker: a unit was stopped, and no further unit starts


def ordered_map(
    function: Callable[[Unit], Result],
    units: Iterable[Unit],
    *,
    workers: int = 1,
    engine: str = "local",
    timeout: float = 600.0,
) -> Generator[Result, None, None]:
    """Yields `function(unit)` for every unit, in the order of the units.

    A single unit is computed in this process. Scripts need no `if __name__ == "__main__"`: workers do not import the
    main module. At most `PREFETCH` units per worker are in memory at once. A worker that dies, or returns nothing
    within `timeout` seconds, ends the map with `StoppedError`, which names the unit. Anything that ends the map early,
    Ctrl-C included, also ends the workers, which first save training runs in progress. Close the generator to stop
    early.
    """
    if workers < 1:
        raise ConfigError(f"workers={workers} must be at least 1")
    if engine == "ray":
        return _over_ray(function, units, workers=workers, timeout=timeout)
    if engine != "local":
        raise ConfigError(f"engine={engine} must be one of {', '.join(ENGINES)}")
    if workers == 1:
        return (function(unit) for unit in units)
    return _over_processes(function, units, workers=workers, timeout=timeout)


def default_workers() -> int:
    """The number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _over_processes(
    function: Callable[[Unit], Result], units: Iterable[Unit], *, workers: int, timeout: float
) -> Generator[Result, None, None]:
    units = iter(units)
    first = list(islice(units, 2))
    if len(first) < 2:
        yield from map(function, first)
        return
    pool = ProcessPoolExecutor(workers, mp_context=_Context(), initializer=_initialize_worker)
    waiting: deque[Future[Result]] = deque()
    taken = 0
    try:
        for unit in chain(first, units):
            waiting.append(pool.submit(_work, _pickled((function, unit))))
            if len(waiting) >= workers * PREFETCH:
                yield waiting.popleft().result(timeout=timeout)
                taken += 1
        while waiting:
            yield waiting.popleft().result(timeout=timeout)
            taken += 1
    except BrokenProcessPool as error:
        raise _worker_lost(taken, "a worker process was killed (often by the system, out of memory)") from error
    except FutureTimeout as error:
        _end_pool(pool, grace=0.0)
        raise _worker_lost(taken, f"no worker returned a result within {timeout:g} s") from error
    except GeneratorExit:  # closed; a caller that consumed all results need not have exhausted the generator
        if waiting:
            _end_pool(pool)
        raise
    except BaseException:
        _end_pool(pool)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Process(SpawnProcess):
    """A process that does not import the main module of its parent, whose work would start again."""

    @staticmethod
    def _Popen(process: Any) -> Any:
        with _starting:
            main = sys.modules["__main__"]
            unnamed = ModuleType("__main__")
            unnamed.__dict__.update(vars(main), __spec__=None, __file__=None)
            sys.modules["__main__"] = unnamed
            try:
                return SpawnProcess._Popen(process)
            finally:
                sys.modules["__main__"] = main


class _Context(SpawnContext):
    """Spawns, because tokenizers and torch have threads, and a fork of a threaded process can hang."""

    Process = _Process


def _pickled(value: Any) -> bytes:
    """The value pickled; an error if a worker could not load it because it refers to the main module."""
    data = pickle.dumps(value, protocol=5)
    if b"__main__" in data:  # perhaps only as text
        _ImportCheck(io.BytesIO(data)).load()
    return data


class _ImportCheck(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            raise ConfigError(
                f"worker processes cannot import {name} from your script or notebook: "
                "define it in a module, and import it"
            )
        return super().find_class(module, name)


def _work(pickled: bytes) -> Any:
    """Calls a function with a unit in a worker, which may have received another unit before one is stopped."""
    if _stopping.is_set():
        raise StoppedError("stopped before it started")
    function, unit = pickle.loads(pickled)
    try:
        return function(unit)
    except StoppedError:
        _stopping.set()
        raise


def _initialize_worker() -> None:
    """Leaves Ctrl-C to the parent, ends with the parent, and uses one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _end_with_parent() -> None:
    """Workers hold both ends of their pipe, so they do not notice on their own that the parent was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _end_pool(pool: ProcessPoolExecutor, grace: float = GRACE) -> None:
    """Terminates the workers and waits for them: a process with live workers does not exit."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + grace
    try:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0.0))
    finally:  # immediately after a second Ctrl-C
        for process in processes:
            process.kill()


def _worker_lost(unit: int, reason: str) -> StoppedError:
    return StoppedError(
        f"{reason} at work unit {unit}; finished work is kept: "
        "run the same command again, with fewer workers if memory is short"
    )


def _over_ray(
    function: Callable[[Unit], Result], units: Iterable[Unit], *, workers: int, timeout: float
) -> Generator[Result, None, None]:
    try:
        import ray
    except ImportError as error:
        raise BertsmithError("engine ray needs Ray: pip install 'bertsmith[ray]'") from error
    starts_ray = not ray.is_initialized()
    if starts_ray:
        # with RAY_ADDRESS this joins a cluster, else it starts a local one for this call
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers}
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False, **local)
    task = ray.remote(max_retries=2)(_call)
    shared = ray.put(function)
    waiting: deque[Any] = deque()
    taken = 0
    try:
        for unit in units:
            waiting.append(task.remote(shared, unit))
            if len(waiting) >= workers * PREFETCH:
                yield ray.get(waiting.popleft(), timeout=timeout)
                taken += 1
        while waiting:
            yield ray.get(waiting.popleft(), timeout=timeout)
            taken += 1
    except ray.exceptions.GetTimeoutError as error:
        raise _worker_lost(taken, f"no Ray worker returned a result within {timeout:g} s") from error
    except ray.exceptions.WorkerCrashedError as error:
        raise _worker_lost(taken, "a Ray worker was killed") from error
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    finally:
        if starts_ray:
            ray.shutdown()


def _call(function: Callable[[Unit], Result], unit: Unit) -> Result:
    return function(unit)


class WorkerDied(Exception):
    """A process of `FunctionWorkers` has ended."""


class FunctionWorkers:
    """Processes that each hold a copy of a function and call it for threads of this process, which share one GIL.

    They read arguments until the pipe closes: however this process ends, they end too.
    """

    def __init__(self, function: Callable[..., Any], workers: int) -> None:
        pickled = _pickled(function)
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        self._processes = [
            # a new session: Ctrl-C reaches only this process
            subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **variables},
                start_new_session=True,
            )
            for _ in range(workers)
        ]
        self._end = weakref.finalize(self, _end_processes, self._processes)
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self._processes:
            assert process.stdin is not None
            _write(process.stdin, pickled)
            self._idle.put(process)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in the first idle process; returns its result or raises its exception."""
        request = pickle.dumps((args, kwargs), protocol=5)
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _write(process.stdin, request)
            response = _read(process.stdout)
        except (OSError, ValueError) as error:  # it ended, or another thread closed the workers
            raise WorkerDied from error
        finally:
            self._idle.put(process)
        if response is None:
            raise WorkerDied
        succeeded, result = pickle.loads(response)
        if succeeded:
            return result
        raise result

    def close(self) -> None:
        """Ends the processes; garbage collection of this object does so too."""
        self._end()


def _end_processes(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with suppress(OSError):  # unread data
                stream.close()  # type: ignore[union-attr]


def _write(stream: IO[bytes], data: bytes) -> None:
    stream.write(len(data).to_bytes(HEADER, "little"))
    stream.write(data)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message, or None at the end of the stream."""
    header = stream.read(HEADER)
    size = int.from_bytes(header, "little")
    data = stream.read(size) if len(header) == HEADER else b""
    return data if len(header) == HEADER and len(data) == size else None


def _serve() -> None:
    """The main function of a process of `FunctionWorkers`; its standard output goes to standard error."""
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pickled = _read(requests)
    function = pickle.loads(pickled) if pickled is not None else None
    while function is not None and (request := _read(requests)) is not None:
        args, kwargs = pickle.loads(request)
        try:
            response = True, function(*args, **kwargs)
        except Exception as error:
            response = False, error
        _write(responses, pickle.dumps(response, protocol=5))


if __name__ == "__main__":
    _serve()
