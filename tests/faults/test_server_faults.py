"""The server under faults (F9 to F12, F18); deliberately broken builds are detected.

The short campaigns run with every test on a machine that may be busy: a failing one is retried once. The long ones are
marked slow, run with `make faults` against a server in a subprocess, and need an otherwise idle machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import httpx
import pytest
from faults.server_campaigns import (
    Outcome,
    malformed,
    overload,
    overload_at_work,
    secrets_stay_private,
    slow_callers,
    stop_under_load,
)
from faults.server_fixtures import Process, served
from faults.server_load import one_request_each, request
from server.http_fixtures import open_connection, post

from bertsmith.errors import StoppedError
from bertsmith.server.monitoring import Log

SEED = 20


def check(outcome: Outcome) -> None:
    print(outcome)
    assert outcome.landed == outcome.requested > 0, "\n".join([str(outcome), *outcome.failures])
    assert not outcome.failures, "\n".join([str(outcome), *outcome.failures])


def check_twice(campaign: Callable[..., Outcome], **options: Any) -> None:
    outcome = campaign(**options)
    check(campaign(**options) if outcome.failures else outcome)


def check_broken(outcome: Outcome, *words: str) -> None:
    print(outcome, *outcome.failures[:1], sep="\n")
    for word in words:
        assert any(word in failure for failure in outcome.failures), "this campaign does not notice a broken build"


def test_twice_and_eight_times_the_load() -> None:
    check_twice(overload, factor=2.0, share=0.9, seconds=2.0)
    check_twice(overload, factor=8.0, share=0.5, seconds=2.0)


@pytest.mark.slow
def test_an_unbounded_queue_is_detected() -> None:
    check_broken(overload(factor=8.0, share=0.5, seconds=1.0, cost=0.1, defect="unbounded"), "no answer in time")


def test_immediate_rejections_are_detected() -> None:
    check_broken(overload(factor=8.0, share=0.5, seconds=0.5, defect="instant"), "a refusal came after 0.0")


def test_slow_clients() -> None:
    check_twice(slow_callers, count=18, seconds=1.0, within=4.0)


def test_missing_deadlines_are_detected() -> None:
    check_broken(slow_callers(count=6, seconds=0.3, within=2.5, defect="patient"), "not cut within", "header", "reader")


def test_stopped_under_load() -> None:
    check_twice(stop_under_load, callers=16)


def test_dropped_requests_are_detected() -> None:
    check_broken(stop_under_load(callers=16, defect="drops", subprocess_=False), "were lost")


def test_requests_of_disconnected_clients_are_cancelled() -> None:
    lines: list[str] = []
    with served(cost=0.4, log=Log(write=lines.append)) as address:
        callers = [open_connection(address) for _ in range(6)]
        for number, caller in enumerate(callers):
            caller.sendall(post("/embed", {"inputs": "the cat"}))
            time.sleep(0.1 if number == 0 else 0.01)  # the first is in flight, the others are queued
        for caller in callers:
            caller.close()
        deadline = time.monotonic() + 10
        while len(lines) < 6:
            assert time.monotonic() < deadline, lines
            time.sleep(0.02)
        assert (
            sum(" 499 " in line for line in lines) >= 5
        )  # on a busy machine the first may finish before it disconnects
        assert httpx.post(f"{address}/embed", json={"inputs": "a mat"}, timeout=10).status_code == 200
        counted = httpx.get(f"{address}/metrics").text
    assert 'bertsmith_batch_seconds_count{model="words"} 2.0' in counted  # the first and the last


def test_waiting_rejections_are_bounded() -> None:
    with served(cost=0.6, max_requests=1, max_rejections=2, rejection_seconds=0.4) as address:
        load = asyncio.run(one_request_each(address, request({"inputs": "the cat"}), callers=6))
    assert load.statuses == {200: 1, 429: 2, 503: 3}
    assert load.quickest(429) >= 0.4
    assert all(b"overloaded" in sample.body for sample in load.samples if sample.status != 200)


def test_a_busy_server_is_healthy_and_a_hung_one_is_not() -> None:
    for cost, ready in ((0.2, 200), (4.0, 503)):
        brief = mock.patch("bertsmith.server.service.HEALTH_TIMEOUT", 1.5)
        limits = {"max_requests": 1, "batch_tokens": 6}
        with brief, served(cost=cost, **limits) as address, open_connection(address) as caller:
            caller.sendall(post("/embed", {"inputs": ["the cat"] * (1 if cost > 1 else 9)}))
            time.sleep(1.6 if cost > 1 else 0.2)  # a hung one makes no progress
            assert httpx.post(f"{address}/embed", json={"inputs": "the cat"}).status_code == 429
            response = httpx.get(f"{address}/health/ready", timeout=10)
            assert (response.status_code, response.json()["status"]) == (ready, "ok" if ready == 200 else "failing")
            assert httpx.get(f"{address}/health/live").json() == {"status": "ok"}


@pytest.mark.slow
def test_a_second_signal_ends_it_immediately() -> None:
    with Process(cost=5.0, drain_seconds=60) as process, open_connection(process.wait_until_ready()) as caller:
        caller.sendall(post("/embed", {"inputs": "the cat"}))
        time.sleep(0.3)
        process.stop()
        time.sleep(0.5)
        assert process.process.poll() is None
        process.stop()
        assert process.wait(4) == StoppedError.exit_code


def test_requests_beyond_the_drain_time_are_counted_in_the_log() -> None:
    lines: list[str] = []
    with ExitStack() as stack:  # the caller is closed after the server
        server = ExitStack()
        address = server.enter_context(served(cost=0.8, log=Log(write=lines.append), drain_seconds=0.05))
        caller = stack.enter_context(open_connection(address))
        caller.sendall(post("/embed", {"inputs": "the cat"}))
        time.sleep(0.2)
        server.close()
    (line,) = (line for line in lines if "uvicorn" in line)
    assert "Cancel 1 running task(s)" in line


def test_malformed_bytes() -> None:
    check(malformed(count=60, seed=SEED))


def test_missing_input_validation_is_detected() -> None:
    check_broken(malformed(count=20, seed=SEED, defect="credulous"), "500")


def test_secrets_are_not_logged() -> None:
    check(secrets_stay_private())


def test_logged_secrets_are_detected() -> None:
    check_broken(secrets_stay_private(defect="talkative"), "the text is in")


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "share"), [(2.0, 0.9), (8.0, 0.5)])
def test_long_overload(factor: float, share: float) -> None:
    check(overload(factor=factor, share=share, seconds=20.0, cost=0.01, subprocess_=True))


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "share"), [(4.0, 0.9), (16.0, 0.75)])
def test_overload_of_a_real_model(factor: float, share: float) -> None:
    check(overload_at_work(factor=factor, share=share, seconds=20.0, repeat=12))  # the clients must keep up the rate


@pytest.mark.slow
def test_many_slow_clients() -> None:
    check(slow_callers(count=300, seconds=5.0, within=10.0, subprocess_=True))


@pytest.mark.slow
@pytest.mark.parametrize("callers", [1, 4, 16, 64, 128])
def test_repeated_stops(callers: int) -> None:
    for _ in range(5):  # the signal may arrive between two requests of one client
        outcome = stop_under_load(callers=callers, cost=0.08 if callers < 16 else 0.02)
        if outcome.landed or outcome.failures:
            break
    check(outcome)


@pytest.mark.slow
def test_requests_dropped_by_a_process_are_detected() -> None:
    check_broken(stop_under_load(callers=16, defect="drops"), "status 75", "were lost")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_malformed_bytes(seed: int) -> None:
    check(malformed(count=200, seed=seed, subprocess_=True))
