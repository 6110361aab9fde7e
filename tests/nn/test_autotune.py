"""The attention kernel and the precision that train fastest are chosen; candidates that fail are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from model_fixtures import VOCABULARY, pretraining_model, random_batch

from bertsmith.encoders import albert, modern
from bertsmith.model_io.model import Model
from bertsmith.nn import attention
from bertsmith.nn.attention import AttentionShape, choose_kernel
from bertsmith.nn.autotune import ROUNDS, Times, find_fp8_block, fp8_is_faster, time_fp8, tune_attention
from bertsmith.nn.transformer import Block, PreNormBlock
from bertsmith.objectives import masked_lm

SHAPE = AttentionShape(heads=2, head_width=16, dropout=0.1, causal=False)
CUDA: dict[str, Any] = {
    "device": "cuda",
    "dtype": torch.bfloat16,
    "dense": False,
    "head_width": 64,
    "dropout": 0.1,
    "return_attentions": False,
}


class OutOfResources(Exception):
    """Like triton's, which is not a RuntimeError."""


@pytest.fixture(autouse=True)
def reset_disabled_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(attention, "HAS_TRITON", True)
    yield
    attention.DISABLED_KERNELS.clear()


def tuned(monkeypatch: pytest.MonkeyPatch, *taken: float | None) -> Times:
    """`tune_attention` where training would use the eager kernel; the clock reports these seconds, None: failure."""
    monkeypatch.setattr(attention, "choose_kernel", lambda requires_grad, **_: "eager" if requires_grad else "masked")
    times = iter(taken)

    def clock(run: Callable[[], object]) -> float:
        run()
        seconds = next(times)
        if seconds is None:
            raise OutOfResources("shared memory")
        return seconds

    return tune_attention(random_batch([12, 9, 23, 7], length=24, pack=True), SHAPE, torch.float32, clock=clock)


def test_the_faster_kernel_stays_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(monkeypatch, *[1.0, 2.0] * ROUNDS) == {"eager": 1.0, "masked": 2.0}
    assert set() == attention.DISABLED_KERNELS


def test_the_minimum_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuned(monkeypatch, 9.0, 2.0, *[1.0, 8.0] * (ROUNDS - 1)) == {"eager": 1.0, "masked": 2.0}
    assert set() == attention.DISABLED_KERNELS


@pytest.mark.parametrize("eager_seconds", [3.0, None], ids=["slower", "fails"])
def test_a_slower_or_failing_kernel_is_disabled(eager_seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [None, *[2.0] * ROUNDS] if eager_seconds is None else [eager_seconds, 2.0] * ROUNDS
    assert tuned(monkeypatch, *taken) == {"eager": eager_seconds, "masked": 2.0}
    assert {"eager"} == attention.DISABLED_KERNELS


def test_a_disabled_kernel_is_not_chosen() -> None:
    assert choose_kernel(**CUDA, requires_grad=True) == "triton"
    attention.DISABLED_KERNELS.add("triton")
    assert choose_kernel(**CUDA, requires_grad=True) == "masked"


def test_nothing_is_measured_where_only_one_kernel_is_possible() -> None:
    attention.DISABLED_KERNELS.add("triton")
    batch = random_batch([12, 9], length=24, pack=True)
    assert tune_attention(batch, SHAPE, torch.float32, clock=lambda run: pytest.fail("measured")) == {}
    assert set() == attention.DISABLED_KERNELS  # each run measures anew


def meta_model(kind: str, **more: object) -> Model:
    """A model on the meta device, as a run has it before it starts."""
    narrow = {"layers": 2, "width": 32, "heads": 2, "vocab_size": VOCABULARY.size, **more}
    encoder = {"modern": modern, "albert": albert}[kind].Config(**narrow)
    with torch.device("meta"):
        return Model.build(encoder, [masked_lm.Config()])


MODELS: dict[str, Callable[[], Model]] = {
    "bert": lambda: pretraining_model(layers=2, width=32, heads=2),
    "albert": lambda: meta_model("albert"),
    "albert, attention shared": lambda: meta_model("albert", sharing="attention"),
    "pre-norm": lambda: meta_model("modern", gated=False, positions="learned", biases=True),
}


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("name", MODELS)
def test_both_precisions_run_forward_and_backward(name: str) -> None:
    ran = []

    def clock(run: Callable[[], object]) -> float:
        run()
        ran.append(run)
        return [1.0, 2.0, 3.0, 1.5, 2.0, 1.7][len(ran) - 1]

    block = find_fp8_block(MODELS[name]())
    assert block is not None
    assert time_fp8(block, 4, 16, torch.device("cpu"), clock=clock, compiles=False) == {"bf16": 1.0, "fp8": 1.5}


def test_a_precision_that_fails_has_no_time() -> None:
    def clock(run: Callable[[], object]) -> float:
        raise RuntimeError("no such instruction")

    block = find_fp8_block(MODELS["bert"]())
    assert block is not None
    times = time_fp8(block, 2, 16, torch.device("cpu"), clock=clock, compiles=False)
    assert times == {"bf16": None, "fp8": None}
    assert not fp8_is_faster(times)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"bf16": 1.0, "fp8": 0.8}, True),
        ({"bf16": 1.0, "fp8": 0.99}, False),  # not worth the precision
        ({"bf16": 1.0, "fp8": None}, False),
        ({"bf16": None, "fp8": 1.0}, True),
    ],
)
def test_fp8_must_save_more_than_three_percent(times: Times, expected: bool) -> None:
    assert fp8_is_faster(times) is expected


def test_the_first_block_that_supports_fp8_is_found() -> None:
    assert type(find_fp8_block(MODELS["bert"]())) is Block
    assert type(find_fp8_block(MODELS["pre-norm"]())) is PreNormBlock
    feed_forward_alone = find_fp8_block(MODELS["albert, attention shared"]())
    assert feed_forward_alone is not None
    assert feed_forward_alone.attention is None
    assert find_fp8_block(pretraining_model(layers=2, width=32, heads=2, activation="relu")) is None
    assert find_fp8_block(meta_model("modern")) is None  # gated
