"""Many threads, one that computes: order, turns, limits, deadlines, faults and the end."""

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
from bertsmith.inference.engine import BatchStats, DeadlineExceeded, Engine, EngineClosed, Overloaded, deadline
from bertsmith.inference.forward import ModelInput

BUDGET = 50


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """No test waits for ever."""
    with deadline(10):
        yield


@dataclass(frozen=True)
class Spell:
    """A wish for the items' own names."""

    label: str = "plain"
    name: ClassVar[str] = "spell"
    one_per_batch: ClassVar[bool] = False
    objective: ClassVar[str] = ""

    def forward(self, model: Any, batch: Any, items: Sequence[ModelInput]) -> list[Any]:
        raise AssertionError("no model is asked here")


class Huge(Spell):
    """A wish whose results are large."""

    one_per_batch: ClassVar[bool] = True


def item(name: str, tokens: int = 10) -> ModelInput:
    rows: Any = ((name,) * tokens,)
    return ModelInput(rows)


def items(name: str, count: int, tokens: int = 10) -> list[ModelInput]:
    return [item(f"{name}{number}", tokens) for number in range(count)]


class Speller:
    """Gives each item its name, keeps what was computed together, and can be held, broken and slow."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.queries: list[Any] = []
        self.go = threading.Event()
        self.go.set()
        self.entered = threading.Semaphore(0)

    def run(self, wish: Any, items: Sequence[ModelInput]) -> list[Any]:
        names: list[Any] = [one.rows[0][0] for one in items]  # type: ignore[index]
        self.batches.append(names)
        self.queries.append(wish)
        self.entered.release()
        assert self.go.wait(20)
        if any(name.startswith("broken") for name in names):
            raise ZeroDivisionError("an item is broken")
        return names


class Slow(Speller):
    """Takes its time over every batch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def run(self, wish: Any, items: Sequence[ModelInput]) -> list[Any]:
        time.sleep(self.seconds)
        return super().run(wish, items)


@contextmanager
def held(**settings: Any) -> Iterator[tuple[Engine, Speller, Callable[..., Future[list[Any]]]]]:
    """An engine that is held in its first batch, and how one asks it from another thread; `speller.go` lets it go."""
    speller = Speller()
    speller.go.clear()
    with ThreadPoolExecutor(16) as pool:
        engine = Engine(speller, batch_tokens=BUDGET, **settings)

        def ask(what: Sequence[ModelInput], wish: Any = Spell(), seconds: float | None = None) -> Future[list[Any]]:
            before = engine._queued_tokens, len(speller.batches)

            def call() -> list[Any]:
                with deadline(seconds):
                    return engine.run(wish, what)

            found = pool.submit(call)
            until = time.monotonic() + 10
            while (engine._queued_tokens, len(speller.batches)) == before and not found.done():
                assert time.monotonic() < until
                time.sleep(0.001)
            return found

        first = ask(items("first", 1))
        assert speller.entered.acquire(timeout=10)
        try:
            yield engine, speller, ask
        finally:
            speller.go.set()
            engine.close(timeout=10)
        assert first.result(10) == ["first0"]
    assert not engine._thread.is_alive()


def expect_own_results(engine: Any, *, callers: int = 8, turns: int = 60) -> None:
    """Raises where anybody gets anything but what they asked for, in order."""

    def caller(number: int) -> None:
        draw = random.Random(number)
        for turn in range(turns):
            asked = [item(f"{number}.{turn}.{place}", draw.randint(1, 30)) for place in range(draw.randint(1, 12))]
            expected = [one.rows[0][0] for one in asked]  # type: ignore[index]
            assert engine.run(Spell(draw.choice("abc")), asked) == expected

    with ThreadPoolExecutor(callers) as pool:
        for done in [pool.submit(caller, number) for number in range(callers)]:
            done.result(60)


def test_everyone_gets_their_own_in_order() -> None:
    speller = Slow(0.0005)
    with Engine(speller, batch_tokens=BUDGET) as engine:
        expect_own_results(engine)
        assert engine.queued_tokens == 0
    names = [name for batch in speller.batches for name in batch]
    assert len(set(names)) == len(names), "nothing is computed twice"
    callers = [{name.split(".")[0] for name in batch} for batch in speller.batches]
    assert max(map(len, callers)) > 1, "several callers shared a batch"


class Shuffling(Speller):
    """A broken one: what is computed together comes back in another order."""

    def run(self, wish: Any, items: Sequence[ModelInput]) -> list[Any]:
        found = super().run(wish, items)
        return found[1:] + found[:1]


def test_a_broken_order_would_be_seen() -> None:
    with Engine(Shuffling(), batch_tokens=BUDGET) as engine, pytest.raises(AssertionError):
        expect_own_results(engine, callers=2, turns=20)


def test_nothing_asked_is_nothing_computed() -> None:
    speller = Speller()
    with Engine(speller) as engine:
        assert engine.run(Spell(), []) == []
    assert speller.batches == []


def test_those_who_wait_share_the_next_batch() -> None:
    with held() as (engine, speller, ask):
        waiting = [ask(items(name, 1)) for name in "abcde"]
        other = ask(items("other", 1), Spell("another"))
        assert engine.queued_tokens == 60
        speller.go.set()
        assert [one.result(10) for one in waiting] == [[f"{name}0"] for name in "abcde"]
        assert other.result(10) == ["other0"]
    assert speller.batches[1:] == [["a0", "b0", "c0", "d0", "e0"], ["other0"]]
    assert [query.label for query in speller.queries] == ["plain", "plain", "another"]


def test_batches_are_bounded_and_a_large_item_stands_alone() -> None:
    with held() as (_, speller, ask):
        found = ask([item("a"), item("large", 3 * BUDGET), *items("b", 9)])
        speller.go.set()
        assert found.result(10) == ["a", "large", *(f"b{number}" for number in range(9))]
    assert [len(batch) for batch in speller.batches] == [1, 1, 1, 5, 4]


def test_a_small_request_does_not_wait_for_all_of_a_large_one() -> None:
    """With the same wish it shares the very next batch; with another it has the next but one."""
    with held() as (_, speller, ask):
        large = ask(items("large", 100))
        small, other = ask(items("small", 2)), ask(items("other", 2), Spell("another"))
        speller.go.set()
        assert small.result(10) == ["small0", "small1"]
        assert other.result(10) == ["other0", "other1"]
        assert large.result(10) == [f"large{number}" for number in range(100)]
    assert speller.batches[1] == ["large0", "large1", "large2", "small0", "small1"]
    assert speller.batches[2] == ["other0", "other1"]
    assert len(speller.batches) == 23


def test_turns_go_round() -> None:
    """Of several large requests none is served twice before every other was served once."""
    with held(max_queued_tokens=10_000) as (_, speller, ask):
        found = [ask(items(name, 40), Spell(name)) for name in "abc"]
        last = ask(items("z", 1), Spell("z"))
        speller.go.set()
        assert last.result(10) == ["z0"]
        assert [len(one.result(10)) for one in found] == [40, 40, 40]
    order = [query.label for query in speller.queries[1:]]
    assert order[:7] == ["a", "b", "c", "z", "a", "b", "c"]


def test_a_crowd_shares_evenly() -> None:
    with held(max_queued_tokens=10_000) as (_, speller, ask):
        found = [ask(items(name, 10)) for name in "abcdefg"]  # seven shares of 7 tokens: one item each, as they fit
        speller.go.set()
        assert all(len(one.result(10)) == 10 for one in found)
    assert [[name[0] for name in batch] for batch in speller.batches[1:4]] == [
        list("abcde"),
        list("fgabc"),
        list("defga"),
    ]


def test_large_results_are_computed_one_by_one() -> None:
    with held() as (_, speller, ask):
        found = ask(items("a", 3), Huge())
        speller.go.set()
        assert found.result(10) == ["a0", "a1", "a2"]
    assert speller.batches[1:] == [["a0"], ["a1"], ["a2"]]


def test_too_much_is_refused_at_once() -> None:
    with held(max_queued_tokens=100) as (engine, speller, ask):
        kept = ask(items("kept", 9))
        with pytest.raises(Overloaded, match="110 tokens would be queued; the limit is 100") as refused:
            engine.run(Spell(), items("more", 2))
        assert (refused.value.queued, refused.value.limit) == (110, 100)
        assert isinstance(refused.value, BertsmithError)
        assert engine.queued_tokens == 90
        also = ask(items("also", 1))
        speller.go.set()
        assert (len(kept.result(10)), len(also.result(10))) == (9, 1)
        assert len(engine.run(Spell(), items("whale", 40))) == 40, "where nothing waits, anything is taken"
    assert "more0" not in [name for batch in speller.batches for name in batch]


def test_what_is_late_is_never_computed() -> None:
    with held() as (engine, speller, ask):
        late, patient = ask(items("late", 3), seconds=0.05), ask(items("patient", 1), seconds=20)
        with pytest.raises(DeadlineExceeded):
            late.result(10)
        assert engine.queued_tokens == 10
        speller.go.set()
        assert patient.result(10) == ["patient0"]
        with deadline(0), pytest.raises(DeadlineExceeded):
            engine.run(Spell(), items("over", 1))
    assert [name for batch in speller.batches for name in batch] == ["first0", "patient0"]


def test_late_in_the_middle() -> None:
    """A request that is partly computed when its time is over leaves the rest."""
    speller = Slow(0.02)
    with Engine(speller, batch_tokens=BUDGET) as engine:
        with deadline(0.1), pytest.raises(DeadlineExceeded):
            engine.run(Spell(), items("late", 200))
        assert engine.queued_tokens == 0
        assert engine.run(Spell(), items("next", 1)) == ["next0"]
    assert len(speller.batches) < 40


def test_callers_may_cancel() -> None:
    with held() as (engine, speller, _):
        inside = threading.Event()
        patience: list[Any] = []

        def call() -> Any:
            with deadline(None) as mine:
                patience.append(mine)
                inside.set()
                return engine.run(Spell(), items("gone", 3))

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(call)
            assert inside.wait(10)
            while engine.queued_tokens != 30:
                time.sleep(0.001)
            patience[0].cancel()
            speller.go.set()
            with pytest.raises(DeadlineExceeded):
                found.result(10)
        assert engine.queued_tokens == 0
    assert speller.batches == [["first0"]]


def test_a_broken_item_fails_alone() -> None:
    with held() as (engine, speller, ask):
        good, bad, also = ask(items("good", 1)), ask([item("x"), item("broken")]), ask(items("also", 1))
        speller.go.set()
        assert (good.result(10), also.result(10)) == (["good0"], ["also0"])
        with pytest.raises(ZeroDivisionError, match="an item is broken"):
            bad.result(10)
        with pytest.raises(ZeroDivisionError):
            engine.run(Spell(), [item("broken"), *items("rest", 30)])
        assert engine.run(Spell(), items("later", 1)) == ["later0"]
        assert engine.queued_tokens == 0
    assert speller.batches[1:5] == [["good0", "x", "broken", "also0"], ["good0"], ["x", "broken"], ["also0"]]
    assert not any("rest9" in batch for batch in speller.batches), "what is left of a failed request is dropped"


def test_every_batch_is_told_of() -> None:
    told: list[BatchStats] = []

    def observe(facts: BatchStats) -> None:
        told.append(facts)
        raise RuntimeError("whoever observes has troubles of their own")

    with Engine(Speller(), batch_tokens=BUDGET, observe=observe) as engine:
        engine.run(Spell(), items("a", 7))
        engine.run(Spell(), items("b", 1, tokens=3))
    assert [(facts.query, facts.inputs, facts.tokens) for facts in told] == [
        ("spell", 5, 50),
        ("spell", 2, 20),
        ("spell", 1, 3),
    ]
    assert all(facts.seconds >= 0 for facts in told)


def test_closing_finishes_what_waits() -> None:
    with held() as (engine, speller, ask):
        waiting = [ask(items(name, 8)) for name in "abc"]
        with ThreadPoolExecutor(1) as pool:
            closed = pool.submit(engine.close)
            while not engine._closed:
                time.sleep(0.001)
            with pytest.raises(EngineClosed):
                engine.run(Spell(), items("late", 1))
            speller.go.set()
            assert closed.result(10) is True
        assert [len(one.result(10)) for one in waiting] == [8, 8, 8]


@pytest.mark.parametrize("settings", [{"drain": False, "timeout": 0.05}, {"drain": True, "timeout": 0.05}])
def test_closing_in_haste_tells_those_who_wait(settings: dict[str, Any]) -> None:
    with held() as (engine, speller, ask):
        waiting = ask(items("a", 8))
        assert engine.close(**settings) is False
        with pytest.raises(EngineClosed):
            waiting.result(10)
        assert engine.queued_tokens == 0
        speller.go.set()
        engine._thread.join(10)
    assert speller.batches == [["first0"]]


def test_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        with Engine(Speller()) as engine:
            engine.run(Spell(), items("a", 1))
    assert set(threading.enumerate()) == before
