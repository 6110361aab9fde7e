"""Whole steps replayed as CUDA graphs, for models so small that launching kernels takes longer than computing them.

A step of a new shape is computed eagerly a few times, then captured once with static tensors for the batch, the
learning rates and the host's values. Every later step of that shape fills these tensors and replays the graph.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.training.distributed import World
from bertsmith.training.optimizers import DeviceLearningRate, LearningRates
from bertsmith.types import Batch

WARMUP_STEPS = 3  # of a shape before the capture: compilation and allocation of the optimizer state
MAX_GRAPHS = 4


@dataclass(frozen=True)
class StepOutput:
    """The result of a step, on the device."""

    names: tuple[str, ...]
    values: Tensor  # [names]
    weights: Mapping[str, float]  # of the loss terms
    rows: int


HostValues = Callable[[], Mapping[str, Tensor]]  # that the host adds to the output
Compute = Callable[[Sequence[Batch], LearningRates, HostValues], StepOutput]


@dataclass(frozen=True)
class _Capture:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    rates: LearningRates
    host_values: Mapping[str, Tensor]
    output: StepOutput

    def replay(self, batch: Batch, rates: LearningRates, host_values: Mapping[str, float]) -> StepOutput:
        for static, new in zip(self.batch.tensors(), batch.tensors(), strict=True):
            static.copy_(new, non_blocking=True)
        for held, rate in dict(zip(self.rates, rates, strict=True)).items():  # each learning rate once
            if isinstance(held, DeviceLearningRate) and rate is not None:
                held.tensor.fill_(rate)
        for name, value in host_values.items():
            self.host_values[name].fill_(value)
        self.graph.replay()
        return self.output


class CudaGraphs:
    """Steps of one micro-batch on one device."""

    def __init__(self, compute: Compute, world: World) -> None:
        """`compute` computes one step without synchronizing and without seeding a generator."""
        self._compute, self._world = compute, world
        self._seen: Counter[Hashable] = Counter()
        self._captures: dict[Hashable, _Capture] = {}
        self._available = True

    def forget(self) -> None:
        """Drops all graphs; needed when the optimizer state has moved in memory."""
        self._seen.clear()
        self._captures.clear()

    def __call__(
        self,
        batch: Batch,
        rates: LearningRates,
        host_values: Mapping[str, float],
        *,
        prepare: Callable[[], None] = lambda: None,
    ) -> StepOutput | None:
        """One replayed step; None where it must be computed eagerly. The output is valid until the next step.

        `prepare` is called before a capture.
        """
        key = _shape(batch), _pattern(rates)
        self._seen[key] += 1
        if not self._available or self._seen[key] <= WARMUP_STEPS:
            return None
        if key not in self._captures:
            prepare()
            try:
                capture = self._capture(batch, rates, host_values)
            except RuntimeError as error:
                self._available = False
                reason = str(error).partition("\n")[0]
                warnings.warn(f"steps run without CUDA graphs, which is slower: {reason}", stacklevel=2)
                return None
            if len(self._captures) >= MAX_GRAPHS:
                del self._captures[next(iter(self._captures))]
            self._captures[key] = capture
        return self._captures[key].replay(batch, rates, host_values)

    def _capture(self, batch: Batch, rates: LearningRates, host_values: Mapping[str, float]) -> _Capture:
        device = self._world.device
        static = batch.map(lambda tensor: tensor.to(device, copy=True))
        tensors = {rate: torch.zeros((), device=device) for rate in rates if rate is not None}
        held = [None if rate is None else DeviceLearningRate(rate, tensors[rate]) for rate in rates]
        host_tensors = {name: self._world.scalar(value) for name, value in host_values.items()}
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # this thread alone: others copy batches into pinned memory meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = self._compute([static], held, lambda: host_tensors)
        return _Capture(graph, static, held, host_tensors, output)


def _shape(batch: Batch) -> Hashable:
    """Everything about a batch but its values."""
    names = tuple(batch.labels), tuple(batch.indices)
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in batch.tensors())
    return names, shapes, batch.max_seqlen, batch.dense, batch.equal_length_runs


def _pattern(rates: LearningRates) -> Hashable:
    """Which layer groups are frozen, and which have the same learning rate."""
    return tuple(None if rate is None else list(rates).index(rate) for rate in rates)
