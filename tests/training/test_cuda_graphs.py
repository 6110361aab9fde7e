"""CUDA graph replay with a fake graph: static inputs, recaptures and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch
from training.training_fixtures import toy_batch

from bertsmith.training import cuda_graphs
from bertsmith.training.cuda_graphs import WARMUP_STEPS, CudaGraphs, HostValues, StepOutput
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import DeviceLearningRate, LearningRates
from bertsmith.types import Batch


class Graph:
    """Fake of torch's CUDA graph: replays the recorded computation on the same tensors."""

    made: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.again: Any = None
        Graph.made.append(self)

    def replay(self) -> None:
        self.again()


class Steps:
    """A step that sums ids, learning rates and host values."""

    def __init__(self) -> None:
        self.values = torch.zeros(3)

    def __call__(self, batches: Sequence[Batch], rates: LearningRates, host_values: HostValues) -> StepOutput:
        def compute() -> None:
            rate = next(rate for rate in rates if rate is not None)
            static_inputs = rate.tensor if isinstance(rate, DeviceLearningRate) else rate
            self.values.copy_(
                torch.stack([batches[0].input_ids.sum(), torch.as_tensor(static_inputs), host_values()["seconds"]])
            )

        compute()
        Graph.made[-1].again = compute
        return StepOutput(("ids", "rate", "seconds"), self.values, {"word": 1.0}, len(batches[0].input_ids))


@pytest.fixture
def graphed_steps(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **how: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    Graph.made.clear()
    return CudaGraphs(Steps(), World())


def take(
    graphed_steps: CudaGraphs,
    step: int,
    *,
    rates: LearningRates = (0.5, 0.5),
    host_values: Mapping[str, float] | None = None,
) -> Any:
    outputs = graphed_steps(toy_batch(step), rates, host_values or {"seconds": float(step)})
    return None if outputs is None else outputs.values.tolist()


def test_a_step_is_captured_once_and_then_replayed(graphed_steps: CudaGraphs) -> None:
    assert [take(graphed_steps, step) for step in range(WARMUP_STEPS)] == [None] * WARMUP_STEPS
    for step in range(WARMUP_STEPS, WARMUP_STEPS + 4):
        rate = 0.25 * step
        assert take(graphed_steps, step, rates=(rate, rate)) == [
            float(toy_batch(step).input_ids.sum()),
            rate,
            float(step),
        ]
    assert len(Graph.made) == 1
    assert take(graphed_steps, 5, rates=(None, 0.5)) is None  # another trainable group: another capture


def test_the_given_batches_are_not_changed(graphed_steps: CudaGraphs) -> None:
    batch = toy_batch(0)
    before = batch.input_ids.clone()
    for _ in range(WARMUP_STEPS + 1):
        graphed_steps(batch, (0.5,), {"seconds": 0.0})
    graphed_steps(toy_batch(1), (0.5,), {"seconds": 0.0})
    assert torch.equal(batch.input_ids, before)


def test_the_number_of_captures_is_limited(graphed_steps: CudaGraphs) -> None:
    for frozen in range(cuda_graphs.MAX_GRAPHS + 2):
        rates = [0.5] * 8
        rates[frozen] = None  # type: ignore[call-overload]
        for _ in range(WARMUP_STEPS + 1):
            outputs = take(graphed_steps, 0, rates=rates)
        assert outputs is not None
    assert len(graphed_steps._captures) == cuda_graphs.MAX_GRAPHS
    graphed_steps.forget()
    assert take(graphed_steps, 0) is None


def test_steps_that_cannot_be_captured_run_eagerly(graphed_steps: CudaGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Graph, **how: object) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nat length")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    for step in range(WARMUP_STEPS):
        take(graphed_steps, step)
    with pytest.warns(UserWarning, match="which is slower: operation not permitted when stream is capturing$"):
        assert take(graphed_steps, WARMUP_STEPS) is None
    assert take(graphed_steps, WARMUP_STEPS + 1) is None
