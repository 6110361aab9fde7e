"""Whole steps replayed as CUDA graphs: most for models so small that handing over kernels takes longer than they do.

A step of a new shape is computed as usual a few times, then recorded once: batch, rates and what the host has to tell
lie in tensors that stay where they are, and every later step of that shape fills them and is one call.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bertsmith.training.optimizers.optimizer import DeviceLearningRate, LearningRates
from bertsmith.training.world import World
from bertsmith.types import Batch

WARM = 3  # steps of a shape before one is recorded: compiling and the optimiser's own tensors come first
MOST = 4  # recordings that are kept


@dataclass(frozen=True)
class StepOutput:
    """What came of a step, on the device."""

    names: tuple[str, ...]
    values: Tensor  # [names]
    weights: Mapping[str, float]  # of the parts of the loss
    rows: int


Told = Callable[[], Mapping[str, Tensor]]  # what the host adds to the outcome
Compute = Callable[[Sequence[Batch], LearningRates, Told], StepOutput]


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    rates: LearningRates
    told: Mapping[str, Tensor]
    outcome: StepOutput

    def replay(self, batch: Batch, rates: LearningRates, told: Mapping[str, float]) -> StepOutput:
        for mine, other in zip(_tensors(self.batch), _tensors(batch), strict=True):
            mine.copy_(other, non_blocking=True)
        for held, rate in dict(zip(self.rates, rates, strict=True)).items():  # each rate once
            if isinstance(held, DeviceLearningRate) and rate is not None:
                held.tensor.fill_(rate)
        for name, value in told.items():
            self.told[name].fill_(value)
        self.graph.replay()
        return self.outcome


class CudaGraphs:
    """Steps of one micro-batch on one device."""

    def __init__(self, compute: Compute, world: World) -> None:
        """`compute` takes one step and neither waits for the device nor seeds a generator."""
        self._compute, self._world = compute, world
        self._seen: Counter[Hashable] = Counter()
        self._recordings: dict[Hashable, _Recording] = {}
        self._works = True

    def forget(self) -> None:
        """For when tensors of the optimiser are no longer where they were."""
        self._seen.clear()
        self._recordings.clear()

    def __call__(
        self,
        batch: Batch,
        rates: LearningRates,
        told: Mapping[str, float],
        *,
        prepare: Callable[[], None] = lambda: None,
    ) -> StepOutput | None:
        """One step; None where it must be computed as usual. The outcome holds until the next one.

        `prepare` is called before a step is recorded.
        """
        key = _shape(batch), _pattern(rates)
        self._seen[key] += 1
        if not self._works or self._seen[key] <= WARM:
            return None
        if key not in self._recordings:
            prepare()
            try:
                recording = self._record(batch, rates, told)
            except RuntimeError as error:
                self._works = False
                reason = str(error).partition("\n")[0]
                warnings.warn(f"steps are not replayed as CUDA graphs, which is slower: {reason}", stacklevel=2)
                return None
            if len(self._recordings) >= MOST:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[key] = recording
        return self._recordings[key].replay(batch, rates, told)

    def _record(self, batch: Batch, rates: LearningRates, told: Mapping[str, float]) -> _Recording:
        device = self._world.device
        mine = _copy(batch, device)
        tensors = {rate: torch.zeros((), device=device) for rate in rates if rate is not None}
        held = [None if rate is None else DeviceLearningRate(rate, tensors[rate]) for rate in rates]
        said = {name: self._world.scalar(value) for name, value in told.items()}
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # of this thread alone: others put batches into pinned memory meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outcome = self._compute([mine], held, lambda: said)
        return _Recording(graph, mine, held, said, outcome)


def _copy(batch: Batch, device: torch.device) -> Batch:
    def copied(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: copied(part) for name, part in value.items()}
        return value.to(device, copy=True) if isinstance(value, Tensor) else value

    return Batch(**{item.name: copied(getattr(batch, item.name)) for item in dataclasses.fields(batch)})


def _tensors(batch: Batch) -> Iterator[Tensor]:
    for item in dataclasses.fields(batch):
        value = getattr(batch, item.name)
        for part in value.values() if isinstance(value, dict) else (value,):
            if isinstance(part, Tensor):
                yield part


def _shape(batch: Batch) -> Hashable:
    """All of a batch but its numbers."""
    names = tuple(batch.labels), tuple(batch.indices)
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in _tensors(batch))
    return names, shapes, batch.max_seqlen, batch.dense, batch.equal_length_runs


def _pattern(rates: LearningRates) -> Hashable:
    """Which parts are asleep, and which learn at the same rate."""
    return tuple(None if rate is None else list(rates).index(rate) for rate in rates)
