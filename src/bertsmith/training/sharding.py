"""Where weights, gradients and moments lie when ranks train together: whole on every rank, or split over them.

Either way a checkpoint holds whole tensors, so that a run can go on the other way or on another number of ranks. What
is split is in `splitting`, because a run on one device should not wait a second for what that needs of torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from bertsmith.training.optimizers.optimizer import Weight, weights_of
from bertsmith.training.world import World
from bertsmith.types import Batch, Loss


class Parallelism(Protocol):
    """How the ranks hold one model."""

    parameters: dict[str, nn.Parameter]  # that autograd knows

    def __call__(self, batch: Batch) -> Loss:
        """The loss of a hidden batch, to learn from; the same on all ranks as far as exchanges go."""

    def evaluate(self, batch: Batch) -> Loss:
        """The loss of a hidden batch, to be told only."""

    def rewrap(self) -> None:
        """To be called when other parameters than before want gradients."""

    def gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """Round a backward pass: ranks average their gradients with the `last` one of a step."""

    def weights(self, depths: Sequence[nn.Module]) -> list[Weight]:
        """What an optimiser on this rank changes."""

    def gradient_norm(self, weights: Sequence[Weight]) -> Tensor:
        """The norm [] of all gradients together; each weight has its own from here on."""

    def gather_full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors of `name` or `kind/name`, for rank 0 at least. All ranks must ask."""

    def local_shard(self, key: str, whole: Tensor) -> Tensor:
        """What this rank holds of a whole tensor of `name` or `kind/name`."""

    def load_weights(self, pieces: Mapping[str, Tensor]) -> None:
        """Takes over weights and buffers by name."""


class DataParallel:
    """Every rank holds everything and gradients are averaged (DDP); so does one process alone."""

    def __init__(self, model: nn.Module, world: World, *, compiles: bool) -> None:
        self.model, self.world, self.compiles = model.to(world.device), world, compiles
        self.parameters = dict(model.named_parameters())
        self._wrapped: nn.Module
        self._forward: Any
        self.rewrap()

    def __call__(self, batch: Batch) -> Loss:
        """See `Holding`."""
        found: Loss = self._forward(batch)
        return found

    def evaluate(self, batch: Batch) -> Loss:
        """See `Holding`."""
        found: Loss = self.model(batch)
        return found

    def rewrap(self) -> None:
        """See `Holding`."""
        self._wrapped = self.world.data_parallel(self.model)
        self._forward = torch.compile(self._wrapped, dynamic=False) if self.compiles else self._wrapped

    def gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """See `Holding`."""
        silent = isinstance(self._wrapped, DistributedDataParallel) and not last
        return cast(DistributedDataParallel, self._wrapped).no_sync() if silent else nullcontext()

    def weights(self, depths: Sequence[nn.Module]) -> list[Weight]:
        """The parameters themselves."""
        return weights_of(self.parameters, depths)

    def gradient_norm(self, weights: Sequence[Weight]) -> Tensor:
        """See `Holding`."""
        return get_total_norm([weight.tensor.grad for weight in weights if weight.tensor.grad is not None])

    def gather_full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors themselves."""
        return dict(tensors)

    def local_shard(self, key: str, whole: Tensor) -> Tensor:
        """The whole."""
        return whole

    def load_weights(self, pieces: Mapping[str, Tensor]) -> None:
        """See `Holding`."""
        self.model.load_state_dict(dict(pieces))
