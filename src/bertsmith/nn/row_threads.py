"""Loops over parts of rows on the CPU, in as many threads as torch's operations use.

The operations of a part run in one thread: operations that are divided over threads wait for all of them each time.
Small parts stay in the cache of a core, but every operation of a thread waits for the interpreter, which another thread
may hold: with two threads, few large parts are faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import TypeVar

import torch

ROWS = 4096  # of a part, at most; measured for vectors of width 100 and 200: LOG.md, "Word vectors"

Result = TypeVar("Result")
_threads = 0  # of loops within `one_thread_per_operation`; 0 outside of it


def for_parts(function: Callable[[int, int], Result], rows: int, device: torch.device) -> list[Result]:
    """The results of function(first, last) for all parts of the rows, see `run`."""
    return run([partial(function, *part) for part in parts(rows, device)], device)


def parts(rows: int, device: torch.device, *, multiple: int = 1) -> list[tuple[int, int]]:
    """The first row of each part and the one after its last; all rows are one part on a GPU.

    The number of parts is even, so that two threads have equally many. Each part but the last has a multiple of
    `multiple` rows.
    """
    count = 2 * -(-rows // (2 * ROWS)) if device.type == "cpu" and rows > ROWS else 1
    size = max(-(-rows // (count * multiple)) * multiple, 1)
    return [(first, min(first + size, rows)) for first in range(0, rows, size)]


def run(calls: Sequence[Callable[[], Result]], device: torch.device) -> list[Result]:
    """The results of all calls, which must not depend on each other; on a GPU one after the other.

    Without gradients and autocast: they are settings of a thread.
    """
    results: dict[int, Result] = {}
    remaining = iter(enumerate(calls))

    def work() -> None:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for number, call in remaining:
                results[number] = call()

    if device.type != "cpu" or len(calls) <= 1:
        work()
    else:
        with one_thread_per_operation() as threads:
            others = [_pool(threads).submit(work) for _ in range(min(threads, len(calls)) - 1)]
            try:
                work()
            finally:
                for other in others:
                    other.result()
    return [results[number] for number in range(len(calls))]


@contextmanager
def one_thread_per_operation() -> Iterator[int]:
    """Torch's operations run in one thread; yields the number of threads that they ran in before, which loops use."""
    global _threads
    if _threads:
        yield _threads
        return
    _threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield _threads
    finally:
        torch.set_num_threads(_threads)
        _threads = 0


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rows")
