"""The batching engine: order, fairness, limits, deadlines, errors and shutdown."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import DeadlineExceeded, RequestTooLarge, deadline
from bertsmith.inference.engine import BatchStats, Engine, EngineClosed, Overloaded
from bertsmith.inference.forward import ModelInput

BUDGET = 50


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """No test waits forever."""
    with deadline(10):
        yield


@dataclass(frozen=True)
class NameQuery:
    """Returns the names of its inputs."""

    label: str = "plain"
    name: ClassVar[str] = "names"
    one_per_batch: ClassVar[bool] = False
    objective: ClassVar[str] = ""

    def forward(self, model: Any, batch: Any) -> Any:
        raise AssertionError("the backend is replaced")


class LargeQuery(NameQuery):
    """A query with large results."""

    one_per_batch: ClassVar[bool] = True


def make_input(name: str, tokens: int = 10) -> ModelInput:
    rows: Any = ((name,) * tokens,)
    return ModelInput(rows)


def make_inputs(name: str, count: int, tokens: int = 10) -> list[ModelInput]:
    return [make_input(f"{name}{number}", tokens) for number in range(count)]


class NameBackend:
    """Returns the name of each input, records batches, and can be paused."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.queries: list[Any] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)

    def run(self, query: Any, inputs: Sequence[ModelInput]) -> list[Any]:
        names: list[Any] = [one.rows[0][0] for one in inputs]  # type: ignore[index]
        self.batches.append(names)
        self.queries.append(query)
        self.entered.release()
        assert self.go.wait(20)
        if any(name.startswith("broken") for name in names):
            raise ZeroDivisionError("an input is broken")
        return names


class SlowBackend(NameBackend):
    """Sleeps before every batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def run(self, query: Any, inputs: Sequence[ModelInput]) -> list[Any]:
        time.sleep(self.seconds)
        return super().run(query, inputs)


@contextmanager
def paused_engine(**settings: Any) -> Iterator[tuple[Engine, NameBackend, Callable[..., Future[list[Any]]]]]:
    """An engine paused in its first batch, and a function that submits from another thread; `backend.go` resumes it."""
    backend = NameBackend()
    backend.go.clear()
    with ThreadPoolExecutor(16) as pool:
        engine = Engine(backend, batch_tokens=BUDGET, **settings)

        def submit(
            inputs: Sequence[ModelInput], query: Any = NameQuery(), seconds: float | None = None
        ) -> Future[list[Any]]:
            before = engine.queued_tokens, len(backend.batches)

            def call() -> list[Any]:
                with deadline(seconds):
                    return engine.run(query, inputs)

            found = pool.submit(call)
            until = time.monotonic() + 10
            while (engine.queued_tokens, len(backend.batches)) == before and not found.done():
                assert time.monotonic() < until
                time.sleep(0.001)
            return found

        first = submit(make_inputs("first", 1))
        assert backend.entered.acquire(timeout=10)
        try:
            yield engine, backend, submit
        finally:
            backend.go.set()
            engine.close(timeout=10)
        assert first.result(10) == ["first0"]
    assert not engine._thread.is_alive()


def expect_own_results(engine: Any, *, callers: int = 8, rounds: int = 60) -> None:
    """Fails if a caller gets other results than its own, in order."""

    def caller(number: int) -> None:
        draw = random.Random(number)
        for round_ in range(rounds):
            inputs = [
                make_input(f"{number}.{round_}.{index}", draw.randint(1, 30)) for index in range(draw.randint(1, 12))
            ]
            expected = [one.rows[0][0] for one in inputs]  # type: ignore[index]
            assert engine.run(NameQuery(draw.choice("abc")), inputs) == expected

    with ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(caller, number) for number in range(callers)]:
            done.result(60)


def test_every_caller_gets_its_own_results_in_order() -> None:
    backend = SlowBackend(0.0005)
    with Engine(backend, batch_tokens=BUDGET) as engine:
        expect_own_results(engine)
        assert engine.queued_tokens == 0
    names = [name for batch in backend.batches for name in batch]
    assert len(set(names)) == len(names), "nothing is computed twice"
    callers = [{name.split(".")[0] for name in batch} for batch in backend.batches]
    assert max(map(len, callers)) > 1, "several callers shared a batch"


class ShufflingBackend(NameBackend):
    """Returns the results of a batch in another order."""

    def run(self, query: Any, inputs: Sequence[ModelInput]) -> list[Any]:
        found = super().run(query, inputs)
        return found[1:] + found[:1]


def test_shuffled_results_are_detected() -> None:
    with Engine(ShufflingBackend(), batch_tokens=BUDGET) as engine, pytest.raises(AssertionError):
        expect_own_results(engine, callers=2, rounds=20)


def test_an_empty_request_runs_nothing() -> None:
    backend = NameBackend()
    with Engine(backend) as engine:
        assert engine.run(NameQuery(), []) == []
    assert backend.batches == []


def test_queued_requests_share_the_next_batch() -> None:
    with paused_engine() as (engine, backend, submit):
        waiting = [submit(make_inputs(name, 1)) for name in "abcde"]
        other = submit(make_inputs("other", 1), NameQuery("another"))
        assert engine.queued_tokens == 60
        backend.go.set()
        assert [one.result(10) for one in waiting] == [[f"{name}0"] for name in "abcde"]
        assert other.result(10) == ["other0"]
    assert backend.batches[1:] == [["a0", "b0", "c0", "d0", "e0"], ["other0"]]
    assert [query.label for query in backend.queries] == ["plain", "plain", "another"]


def test_batches_are_bounded_and_a_large_input_runs_alone() -> None:
    with paused_engine() as (_, backend, submit):
        found = submit([make_input("a"), make_input("large", 3 * BUDGET), *make_inputs("b", 9)])
        backend.go.set()
        assert found.result(10) == ["a", "large", *(f"b{number}" for number in range(9))]
    assert [len(batch) for batch in backend.batches] == [1, 1, 1, 5, 4]


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    """With the same query it shares the next batch; with another it has the one after."""
    with paused_engine() as (_, backend, submit):
        large = submit(make_inputs("large", 100))
        small, other = submit(make_inputs("small", 2)), submit(make_inputs("other", 2), NameQuery("another"))
        backend.go.set()
        assert small.result(10) == ["small0", "small1"]
        assert other.result(10) == ["other0", "other1"]
        assert large.result(10) == [f"large{number}" for number in range(100)]
    assert backend.batches[1] == ["large0", "large1", "large2", "small0", "small1"]
    assert backend.batches[2] == ["other0", "other1"]
    assert len(backend.batches) == 23


def test_requests_with_different_queries_take_turns() -> None:
    """Of several large requests none is served twice before every other was served once."""
    with paused_engine(max_queued_tokens=10_000) as (_, backend, submit):
        found = [submit(make_inputs(name, 40), NameQuery(name)) for name in "abc"]
        last = submit(make_inputs("z", 1), NameQuery("z"))
        backend.go.set()
        assert last.result(10) == ["z0"]
        assert [len(one.result(10)) for one in found] == [40, 40, 40]
    order = [query.label for query in backend.queries[1:]]
    assert order[:7] == ["a", "b", "c", "z", "a", "b", "c"]


def test_requests_with_one_query_share_batches_evenly() -> None:
    with paused_engine(max_queued_tokens=10_000) as (_, backend, submit):
        found = [submit(make_inputs(name, 10)) for name in "abcdefg"]  # seven shares of 7 tokens: one input each
        backend.go.set()
        assert all(len(one.result(10)) == 10 for one in found)
    assert [[name[0] for name in batch] for batch in backend.batches[1:4]] == [
        list("abcde"),
        list("fgabc"),
        list("defga"),
    ]


def test_queries_with_large_results_run_one_input_per_batch() -> None:
    with paused_engine() as (_, backend, submit):
        found = submit(make_inputs("a", 3), LargeQuery())
        backend.go.set()
        assert found.result(10) == ["a0", "a1", "a2"]
    assert backend.batches[1:] == [["a0"], ["a1"], ["a2"]]


def test_a_full_queue_raises_overloaded() -> None:
    with paused_engine(max_queued_tokens=100) as (engine, backend, submit):
        kept = submit(make_inputs("kept", 9))
        with pytest.raises(Overloaded, match="120 tokens would be queued; the limit is 100") as refused:
            engine.run(NameQuery(), make_inputs("more", 6))
        assert (refused.value.queued, refused.value.limit) == (120, 100)
        assert isinstance(refused.value, BertsmithError)
        assert engine.queued_tokens == 90
        also = submit(make_inputs("also", 1))
        backend.go.set()
        assert (len(kept.result(10)), len(also.result(10))) == (9, 1)
        assert len(engine.run(NameQuery(), make_inputs("whale", 40))) == 40, "an empty queue accepts any size"
    assert "more0" not in [name for batch in backend.batches for name in batch]


def test_a_large_request_does_not_keep_small_ones_out() -> None:
    with paused_engine(max_queued_tokens=300) as (engine, backend, submit):
        large = submit(make_inputs("large", 30))  # an empty queue is never full
        small = [submit(make_inputs("small", 1)) for _ in range(5)]
        assert engine.tokens_ahead(10) == 60
        with pytest.raises(Overloaded):
            submit(make_inputs("second", 20)).result(10)
        backend.go.set()
        assert [len(one.result(10)) for one in [large, *small]] == [30, 1, 1, 1, 1, 1]


def test_requests_that_cannot_finish_in_time_are_not_started() -> None:
    backend = SlowBackend(0.1)  # 500 tokens per second
    with Engine(backend, batch_tokens=BUDGET) as engine:
        for batches in (1, 0):  # the first request measures the speed
            began, before = time.monotonic(), len(backend.batches)
            with (
                deadline(1),
                pytest.raises(RequestTooLarge, match=r"5,000 tokens, at most \d+, which is about what [\d.]+ s"),
            ):
                engine.run(NameQuery(), make_inputs("large", 500))
            assert time.monotonic() - began < 0.8
            assert len(backend.batches) - before <= 2 * batches
        with deadline(1):
            assert len(engine.run(NameQuery(), make_inputs("fits", 20))) == 20


def test_a_request_may_be_limited() -> None:
    backend = NameBackend()
    with Engine(backend) as engine, deadline(5, max_tokens=100), pytest.raises(RequestTooLarge, match="at most 100"):
        engine.run(NameQuery(), make_inputs("large", 11))
    assert not backend.batches


def test_expired_requests_are_never_computed() -> None:
    with paused_engine() as (engine, backend, submit):
        late, patient = submit(make_inputs("late", 3), seconds=0.05), submit(make_inputs("patient", 1), seconds=20)
        with pytest.raises(DeadlineExceeded):
            late.result(10)
        assert engine.queued_tokens == 10
        backend.go.set()
        assert patient.result(10) == ["patient0"]
        with deadline(0), pytest.raises(DeadlineExceeded):
            engine.run(NameQuery(), make_inputs("over", 1))
    assert [name for batch in backend.batches for name in batch] == ["first0", "patient0"]


def test_a_request_that_expires_halfway_drops_the_rest() -> None:
    """The rest of a request that expires is not computed."""
    backend = SlowBackend(0.02)
    with Engine(backend, batch_tokens=BUDGET) as engine:
        with deadline(0.1), pytest.raises(DeadlineExceeded):
            engine.run(LargeQuery(), make_inputs("late", 200))
        assert engine.queued_tokens == 0
        assert engine.run(NameQuery(), make_inputs("next", 1)) == ["next0"]
    assert len(backend.batches) < 40


def test_requests_can_be_cancelled() -> None:
    with paused_engine() as (engine, backend, _):
        inside = threading.Event()
        own_deadline: list[Any] = []

        def call() -> Any:
            with deadline(None) as own:
                own_deadline.append(own)
                inside.set()
                return engine.run(NameQuery(), make_inputs("gone", 3))

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(call)
            assert inside.wait(10)
            while engine.queued_tokens != 30:
                time.sleep(0.001)
            own_deadline[0].cancelled = True
            backend.go.set()
            with pytest.raises(DeadlineExceeded):
                found.result(10)
        assert engine.queued_tokens == 0
    assert backend.batches == [["first0"]]


def test_a_failing_input_fails_only_its_request() -> None:
    with paused_engine() as (engine, backend, submit):
        good, bad, also = (
            submit(make_inputs("good", 1)),
            submit([make_input("x"), make_input("broken")]),
            submit(make_inputs("also", 1)),
        )
        backend.go.set()
        assert (good.result(10), also.result(10)) == (["good0"], ["also0"])
        with pytest.raises(ZeroDivisionError, match="an input is broken"):
            bad.result(10)
        with pytest.raises(ZeroDivisionError):
            engine.run(NameQuery(), [make_input("broken"), *make_inputs("rest", 30)])
        assert engine.run(NameQuery(), make_inputs("later", 1)) == ["later0"]
        assert engine.queued_tokens == 0
    assert backend.batches[1:5] == [["good0", "x", "broken", "also0"], ["good0"], ["x", "broken"], ["also0"]]
    assert not any("rest9" in batch for batch in backend.batches), "the rest of a failed request is dropped"


def test_every_batch_is_observed() -> None:
    observed: list[BatchStats] = []

    def observe(stats: BatchStats) -> None:
        observed.append(stats)
        raise RuntimeError("the observer failed")

    with Engine(NameBackend(), batch_tokens=BUDGET, observe=observe) as engine:
        engine.run(NameQuery(), make_inputs("a", 7))
        engine.run(NameQuery(), make_inputs("b", 1, tokens=3))
    assert [(stats.query, stats.inputs, stats.tokens) for stats in observed] == [
        ("names", 5, 50),
        ("names", 2, 20),
        ("names", 1, 3),
    ]
    assert all(stats.seconds >= 0 for stats in observed)


def test_closing_drains_the_queue() -> None:
    with paused_engine() as (engine, backend, submit):
        waiting = [submit(make_inputs(name, 8)) for name in "abc"]
        with ThreadPoolExecutor(1) as pool:
            closed = pool.submit(engine.close)
            while not engine._closed:
                time.sleep(0.001)
            with pytest.raises(EngineClosed):
                engine.run(NameQuery(), make_inputs("late", 1))
            backend.go.set()
            assert closed.result(10) is True
        assert [len(one.result(10)) for one in waiting] == [8, 8, 8]


@pytest.mark.parametrize("settings", [{"drain": False, "timeout": 0.05}, {"drain": True, "timeout": 0.05}])
def test_closing_without_drain_fails_queued_requests(settings: dict[str, Any]) -> None:
    with paused_engine() as (engine, backend, submit):
        waiting = submit(make_inputs("a", 8))
        assert engine.close(**settings) is False
        with pytest.raises(EngineClosed):
            waiting.result(10)
        assert engine.queued_tokens == 0
        backend.go.set()
        engine._thread.join(10)
    assert backend.batches == [["first0"]]


def test_closed_engines_leave_no_thread() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        with Engine(NameBackend()) as engine:
            engine.run(NameQuery(), make_inputs("a", 1))
    assert set(threading.enumerate()) == before
