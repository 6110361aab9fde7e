"""Eight bits or sixteen: both halves run, the faster one is taken, and what does not run is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_world import pretraining

from bertsmith.nn.float8_choice import Times, measure, shape_of, wins


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_both_are_run_there_and_back() -> None:
    ran = []

    def clock(run: Callable[[], object]) -> float:
        run()
        ran.append(run)
        return [1.0, 2.0, 3.0, 1.5][len(ran) - 1]

    assert measure(32, (16, 64), torch.device("cpu"), clock=clock, compiles=False) == {"bf16": 1.0, "fp8": 1.5}


def test_what_does_not_run_takes_no_time() -> None:
    def clock(run: Callable[[], object]) -> float:
        raise RuntimeError("no such instruction")

    times = measure(32, (16, 64), torch.device("cpu"), clock=clock, compiles=False)
    assert times == {"bf16": None, "fp8": None}
    assert not wins(times)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"bf16": 1.0, "fp8": 0.8}, True),
        ({"bf16": 1.0, "fp8": 0.99}, False),  # not worth its digits
        ({"bf16": 1.0, "fp8": None}, False),
        ({"bf16": None, "fp8": 1.0}, True),
    ],
)
def test_it_must_be_worth_it(times: Times, expected: bool) -> None:
    assert wins(times) is expected


def test_the_shape_that_eight_bits_would_serve() -> None:
    model = pretraining(layers=2, width=32, heads=2)
    names = list(model.state_dict())
    assert shape_of(model) == (32, 64)
    assert list(model.state_dict()) == names
    assert shape_of(pretraining(layers=2, width=32, heads=2, activation="relu")) is None
