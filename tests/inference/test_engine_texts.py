"""Texts in the batching engine: tokenized together in its thread; limits, errors and wake-ups of their callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from inference.test_engine import BUDGET, NameBackend, NameQuery, SlowBackend, make_input, make_inputs

from bertsmith.inference.deadline import DeadlineExceeded, RequestTooLarge, deadline
from bertsmith.inference.engine import MAX_CHARACTERS, Engine, EngineClosed, Overloaded
from bertsmith.inference.forward import ENCODED_CHARACTERS, ModelInput
from bertsmith.inference.queued_request import QueuedRequest, wake_in_turn


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """No test waits forever."""
    with deadline(10):
        yield


class Words:
    """One input of 10 tokens for each text, or of as many as its number says (`name:30`). Records its calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.threads: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[ModelInput]:
        self.calls.append(list(texts))
        self.threads.append(threading.current_thread().name)
        if any(text.startswith("unreadable") for text in texts):
            raise UnicodeError("a text cannot be read")
        return [make_input(name, int(tokens or 10)) for name, _, tokens in (text.partition(":") for text in texts)]


@contextmanager
def paused_engine(
    **settings: Any,
) -> Iterator[tuple[Engine, NameBackend, Words, Callable[..., Future[Any]]]]:
    """An engine paused in its first batch, and a function that submits texts from another thread."""
    backend, words = NameBackend(), Words()
    backend.go.clear()
    with ThreadPoolExecutor(32) as pool, Engine(backend, **({"batch_tokens": BUDGET} | settings)) as engine:
        first = pool.submit(engine.run, NameQuery(), make_inputs("first", 1))
        assert backend.entered.acquire(timeout=10)

        def submit(*texts: str, seconds: float | None = 10, max_tokens: int | None = None) -> Future[Any]:
            before = len(engine._queue)

            def call() -> Any:
                with deadline(seconds, max_tokens=max_tokens):
                    inputs, results = engine.run_texts(NameQuery(), texts, words)
                    assert [one.rows[0][0] for one in inputs] == results  # type: ignore[comparison-overlap]
                    return results

            found = pool.submit(call)
            until = time.monotonic() + 10
            while len(engine._queue) == before and not found.done():
                assert time.monotonic() < until
                time.sleep(0.001)
            return found

        try:
            yield engine, backend, words, submit
        finally:
            backend.go.set()
        assert first.result(10) == ["first0"]


def test_the_texts_of_waiting_callers_are_tokenized_in_one_call_and_share_a_batch() -> None:
    with paused_engine() as (engine, backend, words, submit):
        found = [submit("a"), submit("b", "c"), submit("d")]
        assert not words.calls
        assert engine.queued_tokens == 4, "an estimate"
        backend.go.set()
        assert [one.result(10) for one in found] == [["a"], ["b", "c"], ["d"]]
        assert engine.queued_tokens == 0
    assert words.calls == [["a", "b", "c", "d"]]
    assert words.threads == ["bertsmith-engine"]
    assert backend.batches[1:] == [["a", "b", "c", "d"]]


def test_an_error_of_a_text_reaches_only_its_caller() -> None:
    with paused_engine() as (engine, backend, _, submit):
        good, bad, also = submit("good"), submit("fine", "unreadable"), submit("also")
        backend.go.set()
        assert (good.result(10), also.result(10)) == (["good"], ["also"])
        with pytest.raises(UnicodeError, match="a text cannot be read"):
            bad.result(10)
        assert submit("later").result(10) == ["later"]
        assert engine.queued_tokens == 0
    assert "fine" not in [name for batch in backend.batches for name in batch]


def test_long_texts_are_tokenized_by_their_caller() -> None:
    with paused_engine() as (_, backend, words, submit):
        found = submit("x" * (MAX_CHARACTERS + 1))
        assert len(words.calls) == 1, "before the request is queued"
        assert words.threads != ["bertsmith-engine"]
        backend.go.set()
        assert len(found.result(10)) == 1


def test_texts_that_may_exceed_the_limit_of_the_request_are_counted_before_they_are_queued() -> None:
    with paused_engine() as (engine, _, words, submit):
        with pytest.raises(RequestTooLarge, match="20 tokens, at most 15"):
            submit("four", "five", max_tokens=15).result(10)
        assert words.threads != ["bertsmith-engine"]
        assert engine.queued_tokens == 0


def test_one_call_tokenizes_a_limited_number_of_characters() -> None:
    """What is left is tokenized before the next batch, so that no caller waits for the tokenization of all."""
    texts = [f"{number:02}{'x' * 1998}" for number in range(20)]
    with paused_engine(batch_tokens=1000, max_queued_tokens=100_000) as (_, backend, words, submit):
        found = [submit(text) for text in texts]
        backend.go.set()
        assert [one.result(10) for one in found] == [[text] for text in texts]
    assert [len(call) for call in words.calls] == [8, 8, 4]
    assert 8 * len(texts[0]) <= ENCODED_CHARACTERS < 9 * len(texts[0])
    assert [len(batch) for batch in backend.batches] == [1, 8, 8, 4]


def test_a_short_text_does_not_wait_for_all_of_a_large_request() -> None:
    with paused_engine(max_queued_tokens=10_000) as (engine, backend, _, submit), ThreadPoolExecutor(1) as pool:
        large = pool.submit(engine.run, NameQuery(), make_inputs("large", 100))
        while not engine._queue:
            time.sleep(0.001)
        short = submit("short")
        backend.go.set()
        assert short.result(10) == ["short"]
        assert len(large.result(10)) == 100
    assert "short" in backend.batches[1]


def test_expired_texts_are_never_tokenized() -> None:
    with paused_engine() as (engine, backend, words, submit):
        late, patient = submit("late", seconds=0.05), submit("patient")
        with pytest.raises(DeadlineExceeded):
            late.result(10)
        backend.go.set()
        assert patient.result(10) == ["patient"]
        assert engine.queued_tokens == 0
        with pytest.raises(DeadlineExceeded):
            submit("over", seconds=0).result(10)
    assert words.calls == [["patient"]]


def test_tokens_are_counted_exactly_once_texts_are_tokenized() -> None:
    with Engine(NameBackend(), batch_tokens=BUDGET) as engine, deadline(5) as own:
        engine.run_texts(NameQuery(), ["a:7", "b:30"], Words())
        assert own.tokens == 37


def test_texts_whose_tokens_cannot_be_computed_in_time_are_refused() -> None:
    backend = SlowBackend(0.1)  # 500 tokens per second
    with Engine(backend, batch_tokens=BUDGET) as engine:
        engine.run(NameQuery(), make_inputs("measured", 5))
        batches = len(backend.batches)
        with deadline(1), pytest.raises(RequestTooLarge, match=r"5,000 tokens, at most \d+, which is about what 1 s"):
            engine.run_texts(NameQuery(), ["large:5000"], Words())
        assert len(backend.batches) == batches


def test_a_full_queue_refuses_texts() -> None:
    with paused_engine(max_queued_tokens=100) as (_, backend, _, submit):
        kept = submit(*["kept" * 10] * 8)
        with pytest.raises(Overloaded, match="tokens would be queued; the limit is 100"):
            submit(*["more" * 10] * 5).result(10)
        backend.go.set()
        assert len(kept.result(10)) == 8


def test_closing_fails_texts_that_wait() -> None:
    with paused_engine() as (engine, _, words, submit):
        waiting = submit("waiting")
        assert engine.close(drain=False, timeout=0.05) is False
        with pytest.raises(EngineClosed):
            waiting.result(10)
        assert engine.queued_tokens == 0
    assert not words.calls


def test_callers_give_up_while_others_are_woken_in_turn() -> None:
    """A time-out or an interrupt between the end of a request and its turn does not stop the ones after it."""
    requests = [QueuedRequest(NameQuery(), deadline=None) for _ in range(5)]  # type: ignore[arg-type]
    for one in requests:
        one.done = True
    with ThreadPoolExecutor(5) as pool:
        woken = [pool.submit(one.wait, 10) for one in (requests[0], requests[1], requests[4])]
        assert not requests[2].wait(0), "its time is over, but it is done: it waits for its turn"
        left = [pool.submit(one.leave) for one in requests[2:4]]
        wake_in_turn(requests)
        assert all(one.result(10) for one in woken)
        assert [one.result(10) for one in left] == [None, None]
    requests[2].leave()  # a second interrupt


def test_many_callers_with_short_deadlines_lose_no_wake_up() -> None:
    """Deadlines pass at every point of a request's life; every caller gets its own results or the error."""
    words, ended = Words(), {"results": 0, "late": 0}
    with Engine(SlowBackend(0.001), batch_tokens=1000) as engine:  # no full batch, so no measured speed

        def caller(number: int) -> None:
            for round_ in range(30):
                text = f"{number}.{round_}"
                try:
                    with deadline(0.0005 * (round_ % 10)):
                        assert engine.run_texts(NameQuery(), [text], words)[1] == [text]
                    ended["results"] += 1
                except DeadlineExceeded:
                    ended["late"] += 1

        with ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(caller, number) for number in range(8)]:
                one.result(30)
        assert engine.queued_tokens == 0
    assert min(ended.values()) > 0
