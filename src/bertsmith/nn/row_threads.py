"""Loops over parts of rows on the CPU, in as many threads as torch's operations use.

The operations of a part run in one thread, and its tensors fit in the cache of a core. Operations that are divided over
threads wait for all of them each time, and large tensors are read from and written to memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import torch

ROWS = 1024  # of a part; measured for vectors of width 200: LOG.md, "Word vectors"

_threads = 0  # of loops within `one_thread_per_operation`; 0 outside of it


def for_parts(function: Callable[[int, int], None], rows: int, device: torch.device) -> None:
    """Calls function(first, last) for parts of the rows, which must not depend on each other; all at once on a GPU.

    Without gradients and autocast: they are settings of a thread.
    """
    size = ROWS if device.type == "cpu" else max(rows, 1)
    parts = iter([(first, min(first + size, rows)) for first in range(0, rows, size)])

    def work() -> None:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            for first, last in parts:
                function(first, last)

    if rows <= size:
        return work()
    with one_thread_per_operation() as threads:
        others = [_pool(threads).submit(work) for _ in range(min(threads, -(-rows // size)) - 1)]
        try:
            work()
        finally:
            for other in others:
                other.result()


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
