"""Ordered maps over processes: order, bounds, failures that can be named, and the same over Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from bertsmith.errors import ConfigError, DataError, Stopped
from bertsmith.workers import AHEAD, ordered_map


def slow_first(unit: int) -> int:
    time.sleep(0.2 if unit == 0 else 0.0)
    return unit * unit


def fail_at_three(unit: int) -> int:
    if unit == 3:
        raise DataError("unit 3 is broken")
    return unit


def die_at_three(unit: int) -> int:
    if unit == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def hang_at_three(unit: int) -> int:
    if unit == 3:
        time.sleep(60)
    return unit


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_results_come_in_order(workers: int) -> None:
    assert list(ordered_map(slow_first, range(20), workers=workers)) == [unit * unit for unit in range(20)]


def test_only_a_few_units_are_under_way() -> None:
    taken = 0

    def units() -> Iterator[int]:
        nonlocal taken
        for unit in range(1000):
            taken += 1
            yield unit

    results = ordered_map(slow_first, units(), workers=2)
    next(results)
    assert taken <= 2 * AHEAD + 1
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_worker_arrives_as_it_was(workers: int) -> None:
    with pytest.raises(DataError, match="unit 3 is broken"):
        list(ordered_map(fail_at_three, range(6), workers=workers))


def test_a_killed_worker_is_named() -> None:
    results = ordered_map(die_at_three, range(30), workers=2)
    with pytest.raises(Stopped, match=r"a worker process was killed .* at work unit"):
        list(results)


def test_a_hung_worker_ends_within_its_time() -> None:
    began = time.monotonic()
    with pytest.raises(Stopped, match="no worker answered within 2 s at work unit 3"):
        list(ordered_map(hang_at_three, range(6), workers=2, patience=2.0))
    assert time.monotonic() - began < 20


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        ordered_map(slow_first, [], workers=0)
    with pytest.raises(ConfigError, match="the engines are local and ray"):
        ordered_map(slow_first, [], engine="spark")
