"""Eight bits or sixteen: both blocks run, the faster one is taken, and what does not run is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_world import VOCABULARY, pretraining

from bertsmith.encoders import albert, modern
from bertsmith.model_io.model import Model
from bertsmith.nn.float8_choice import block_of, measure, wins
from bertsmith.nn.quickest import Times
from bertsmith.nn.transformer import Block, PreNormBlock
from bertsmith.objectives import masked_lm


def model_of(kind: str, **more: object) -> Model:
    """A model without weights, as a run looks at it before it begins."""
    narrow = {"layers": 2, "width": 32, "heads": 2, "vocab_size": VOCABULARY.size, **more}
    encoder = {"modern": modern, "albert": albert}[kind].Config(**narrow)
    with torch.device("meta"):
        return Model.build(encoder, [masked_lm.Config()])


MODELS: dict[str, Callable[[], Model]] = {
    "bert": lambda: pretraining(layers=2, width=32, heads=2),
    "albert": lambda: model_of("albert"),
    "albert, halves apart": lambda: model_of("albert", sharing="attention"),
    "norms before": lambda: model_of("modern", gated=False, rotary=False, biases=True),
}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("name", MODELS)
def test_both_are_run_there_and_back(name: str) -> None:
    ran = []

    def clock(run: Callable[[], object]) -> float:
        run()
        ran.append(run)
        return [1.0, 2.0, 3.0, 1.5, 2.0, 1.7][len(ran) - 1]

    block = block_of(MODELS[name]())
    assert block is not None
    assert measure(block, 4, 16, torch.device("cpu"), clock=clock, compiles=False) == {"bf16": 1.0, "fp8": 1.5}


def test_what_does_not_run_takes_no_time() -> None:
    def clock(run: Callable[[], object]) -> float:
        raise RuntimeError("no such instruction")

    block = block_of(MODELS["bert"]())
    assert block is not None
    times = measure(block, 2, 16, torch.device("cpu"), clock=clock, compiles=False)
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


def test_the_block_that_eight_bits_would_serve() -> None:
    assert type(block_of(MODELS["bert"]())) is Block
    assert type(block_of(MODELS["norms before"]())) is PreNormBlock
    alone = block_of(MODELS["albert, halves apart"]())
    assert alone is not None
    assert alone.attention is None
    assert block_of(pretraining(layers=2, width=32, heads=2, activation="relu")) is None
    assert block_of(model_of("modern")) is None  # gates
