"""The state that a stateful encoder carries from step to step: one row of each tensor for each row of a step.

The rows of a step are columns of text. Micro-batch k of rank r has rows of its own, so that the state of all ranks,
gathered in the order of the columns, can be resumed with other micro-batches and on another number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertsmith.training.distributed import World
from bertsmith.training.parallelism import State


class RecurrentState:
    """The state of this rank's rows, by micro-batch. The tensors stay where they are, as CUDA graphs need."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parts: list[State] = []
        self._loaded: State = ()  # of all columns, until the sizes of the micro-batches are known

    def parts(self, rows: Sequence[int]) -> list[State | None]:
        """The state of each micro-batch of a step, which have so many rows; None at the start of the run."""
        if self._loaded:
            self._parts = self._split(self._loaded, rows)
            self._loaded = ()
        return list(self._parts) if self._parts else [None] * len(rows)

    def update(self, states: Sequence[State], skip: Tensor) -> None:
        """After a step: the state of each micro-batch; unchanged where `skip` [] is 1."""
        if not self._parts:
            self._parts = [tuple(map(torch.zeros_like, state)) for state in states]
        for before, after in zip(self._parts, states, strict=True):
            for target, value in zip(before, after, strict=True):
                target.copy_(torch.where(skip > 0, target, value))

    def gather(self) -> State:
        """The state of all columns in their order; all ranks must call it."""
        if self._loaded or not self._parts:
            return self._loaded
        by_tensor = zip(*self._parts, strict=True)
        return tuple(torch.cat([self._world.gather_rows(part) for part in parts]) for parts in by_tensor)

    def load(self, state: State) -> None:
        """Restores the state of all columns."""
        self._parts, self._loaded = [], state

    def _split(self, state: State, rows: Sequence[int]) -> list[State]:
        parts: list[State] = []
        start = 0
        for count in rows:
            first = start + self._world.rank * count
            parts.append(tuple(tensor[first : first + count].to(self._world.device, copy=True) for tensor in state))
            start += count * self._world.size
        assert all(len(tensor) == start for tensor in state), "the state has a row for each row of a step"
        return parts
