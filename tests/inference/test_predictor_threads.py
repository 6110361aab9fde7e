"""Threads that share a predictor, or an engine, get the results that each would get alone."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from inference.predictor_fixtures import LONG, TAGS, TEXTS, random_model, tokenizer

from bertsmith.errors import BertsmithError
from bertsmith.inference.deadline import DeadlineExceeded, deadline
from bertsmith.inference.engine import BatchStats, Engine, Overloaded
from bertsmith.inference.fill_mask import mask_log_probs
from bertsmith.inference.predictor import Predictor
from bertsmith.objectives import choose, classify, masked_lm, next_sentence, span, tag

THREADS = 8
SHORT_AND_LONG = pytest.mark.parametrize("seconds", [1.5, pytest.param(30, marks=pytest.mark.slow)])
Ask = Callable[[Predictor], Any]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    heads = [classify.Config(labels=("no", "yes")), tag.Config(labels=TAGS), span.Config(), choose.Config()]
    return Predictor(random_model(*heads, masked_lm.Config(), next_sentence.Config()), tokenizer())


WORDS = ("iron", "gold", "red thing", "blue", "smith")
ASKED: list[Ask] = [
    *(lambda one, word=word: one.embed([f"the {word}", *TEXTS, LONG]).vectors for word in WORDS),  # type: ignore[misc]
    lambda one: one.encode(TEXTS, pooling="first", layers=[-2]),
    lambda one: one.embed_all([LONG, "gold"]).vectors,
    lambda one: one.predict_proba([*TEXTS, LONG]),
    lambda one: [found["score"] for found in one.rank("red iron", TEXTS)],
    lambda one: [[found["score"] for found in some] for some in one.ner([LONG, *TEXTS])],
    lambda one: [found["score"] for found in one.answer("which thing", LONG, top_k=5)],
    lambda one: one.choose("the smith has", ["iron", "a thing of gold", "red"])["probabilities"],
    lambda one: [found["score"] for found in one.fill_mask("the [MASK] [MASK] is red")],
    lambda one: [found["score"] for found in one.fill_mask("the [MASK] is", targets=["iron", "gold"])],
    lambda one: one.next_sentence("the smith", "has iron")["is_next"],
    lambda one: one.attention("the smith has red iron").weights,
]


def numbers(found: Any) -> np.ndarray[Any, Any]:
    if isinstance(found, list):
        return np.concatenate([numbers(one) for one in found]) if found else np.zeros(0)
    return np.asarray(found, np.float64).reshape(-1)


def expect_equal(predictor: Predictor, serial: list[np.ndarray[Any, Any]], *, seconds: float) -> int:
    """Runs all queries repeatedly in several threads; returns the number of compared results."""
    counts = itertools.count()
    until = time.monotonic() + seconds

    def caller(first: int) -> None:
        for turn in itertools.count(first):
            number = turn * 5 % len(ASKED)
            # the batch changes the order of sums, and so the last bits
            assert np.allclose(numbers(ASKED[number](predictor)), serial[number], rtol=1e-5, atol=1e-6)
            next(counts)
            if time.monotonic() > until and turn - first >= len(ASKED) - THREADS:  # all of them, on a slow machine too
                return

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(caller, number) for number in range(THREADS)]:
            done.result(120)
    return next(counts)


@pytest.fixture(scope="module")
def serial(predictor: Predictor) -> list[np.ndarray[Any, Any]]:
    return [numbers(ask(predictor)) for ask in ASKED]


@SHORT_AND_LONG
def test_threads_share_a_predictor(predictor: Predictor, serial: list[Any], seconds: float) -> None:
    assert expect_equal(predictor, serial, seconds=seconds) > THREADS


@SHORT_AND_LONG
def test_threads_share_an_engine(predictor: Predictor, serial: list[Any], seconds: float) -> None:
    batches: list[BatchStats] = []
    with Engine(predictor.backend, batch_tokens=256, observe=batches.append) as engine:
        shared = predictor.with_backend(engine)
        assert shared.model is predictor.model
        assert expect_equal(shared, serial, seconds=seconds) > THREADS
        assert engine.queued_tokens == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "bertsmith-engine"]
    assert {batch.query for batch in batches} == {"embeddings", "token embeddings", "logits", "attention"}
    assert max(batch.tokens for batch in batches) <= 256
    assert predictor.backend is not engine, "the first one still computes for itself"


def test_swapped_results_are_detected(predictor: Predictor, serial: list[Any]) -> None:
    class Exchanging:
        def run(self, query: Any, inputs: Any) -> list[Any]:
            return predictor.backend.run(query, inputs)[::-1]

    with Engine(Exchanging()) as engine, pytest.raises((AssertionError, ValueError, IndexError)):
        expect_equal(predictor.with_backend(engine), serial, seconds=0)


def test_every_method_respects_the_deadline(predictor: Predictor) -> None:
    with Engine(predictor.backend) as engine, deadline(0):
        for ask in ASKED:
            with pytest.raises(DeadlineExceeded):
                ask(predictor.with_backend(engine))
        assert engine.queued_tokens == 0
    assert issubclass(Overloaded, BertsmithError)


def test_invalid_ids_fail_only_their_request(predictor: Predictor, serial: list[Any]) -> None:
    """Ids outside the token table, passed directly to the engine beside valid ones."""
    with Engine(predictor.backend) as engine, ThreadPoolExecutor(4) as pool:
        wrong = predictor.with_backend(engine)
        row = predictor.tokenizer.frame(predictor.tokenizer.encode("gold"), max_length=8)
        row.ids[1] = 10_000
        bad = [pool.submit(mask_log_probs, wrong, [row], [1]) for _ in range(4)]
        good = [pool.submit(ASKED[number], wrong) for number in (0, 7, 12)]
        for one in bad:
            with pytest.raises(BertsmithError, match="outside the encoder's table"):
                one.result(30)
        for number, one in zip((0, 7, 12), good, strict=True):
            assert np.allclose(numbers(one.result(30)), serial[number], rtol=1e-5, atol=1e-6)
