"""The kernel that learns fastest is taken; one that fails or is slower is avoided."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from model_world import random_batch

from bertsmith.nn import attention, attention_choice
from bertsmith.nn.attention import choose_kernel
from bertsmith.nn.attention_choice import Shape, settle
from bertsmith.nn.quickest import ROUNDS

SHAPE = Shape(heads=2, head_width=16, dropout=0.1, causal=False)
CUDA = {"device": "cuda", "dtype": torch.bfloat16, "full": False, "head_width": 64, "dropout": 0.1, "explicit": False}


class OutOfResources(Exception):
    """As triton's, which is no RuntimeError."""


@pytest.fixture(autouse=True)
def forgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attention, "HAS_TRITON", True)
    yield
    attention.AVOIDED.clear()


def settled(monkeypatch: pytest.MonkeyPatch, *taken: float | None) -> dict[str, float | None]:
    """As on a device where learning takes the kernel `explicit` and nothing else does; the clock tells what it took."""
    monkeypatch.setattr(attention_choice, "choose_kernel", lambda learns, **how: "explicit" if learns else "masked")
    times = iter(taken)

    def clock(run: Callable[[], Any]) -> float:
        run()
        seconds = next(times)
        if seconds is None:
            raise OutOfResources("shared memory")
        return seconds

    return settle(random_batch([12, 9, 23, 7], length=24, pack=True), SHAPE, torch.float32, clock=clock)


def test_the_faster_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(monkeypatch, *[1.0, 2.0] * ROUNDS) == {"explicit": 1.0, "masked": 2.0}
    assert set() == attention.AVOIDED


def test_the_shortest_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(monkeypatch, 9.0, 2.0, *[1.0, 8.0] * (ROUNDS - 1)) == {"explicit": 1.0, "masked": 2.0}
    assert set() == attention.AVOIDED


@pytest.mark.parametrize("ours", [3.0, None], ids=["slower", "fails"])
def test_a_slower_or_failing_one_is_avoided(ours: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [None, *[2.0] * ROUNDS] if ours is None else [ours, 2.0] * ROUNDS
    assert settled(monkeypatch, *taken) == {"explicit": ours, "masked": 2.0}
    assert {"explicit"} == attention.AVOIDED


def test_what_is_avoided_is_not_chosen() -> None:
    assert choose_kernel(**CUDA, learns=True) == "packed"  # type: ignore[arg-type]
    attention.AVOIDED.add("packed")
    assert choose_kernel(**CUDA, learns=True) == "masked"  # type: ignore[arg-type]


def test_nothing_is_measured_where_there_is_no_choice() -> None:
    attention.AVOIDED.add("packed")
    batch = random_batch([12, 9], length=24, pack=True)
    assert settle(batch, SHAPE, torch.float32, clock=lambda run: pytest.fail("measured")) == {}
    assert set() == attention.AVOIDED  # a run measures for itself
