"""Weights, gradients and moments split over ranks (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from bertsmith.errors import DataError
from bertsmith.training.optimizers.optimizer import Weight, weights_of
from bertsmith.training.step import exact_dtype
from bertsmith.training.world import World
from bertsmith.types import Batch, Loss


class FSDP:
    """Each rank holds its share of the rows of every tensor (FSDP2); a part is whole only while it computes.

    Middle parts come together one after the other. What lies below and above them (tables and heads) stays together
    from the forward to the backward pass, because both ends of it want the table.
    """

    def __init__(self, model: nn.Module, parts: Sequence[nn.Module], world: World, *, compiles: bool) -> None:
        self.model, self.world = model, world
        _take_over_from_rank_0(model, world)
        mesh = init_device_mesh(world.device.type, (world.size,))
        for part in parts:
            if isinstance(part, nn.ModuleList | nn.ModuleDict):
                continue  # nothing calls these: what is in them goes with tables and heads
            if compiles:
                # the part alone: the exchanges before and after it are no work for a compiler
                part.forward = torch.compile(part.forward, dynamic=False)
            fully_shard(part, mesh=mesh)
        self.root = _Root(model)
        fully_shard(self.root, mesh=mesh)  # moves to the device what it splits, part by part
        self.parameters = dict(model.named_parameters())

    def __call__(self, batch: Batch) -> Loss:
        return Loss(*self.root(batch))

    def evaluate(self, batch: Batch) -> Loss:
        """See `sharding.Holding`."""
        loss = self(batch)
        cast(FSDPModule, self.root).reshard()  # no backward pass does it
        return loss

    def rewrap(self) -> None:
        """Nothing: each pass looks anew which parameters want gradients."""

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """See `sharding.Holding`. Before the `last` pass, gradients are whole on each rank."""
        cast(FSDPModule, self.root).set_requires_gradient_sync(last)
        yield

    def weights(self, depths: Sequence[nn.Module]) -> list[Weight]:
        """This rank's rows, as parameters that share the model's memory."""
        return [
            replace(weight, tensor=nn.Parameter(_local(weight.tensor), requires_grad=False))
            for weight in weights_of(self.parameters, depths)
        ]

    def gradient_norm(self, weights: Sequence[Weight]) -> Tensor:
        """See `sharding.Holding`."""
        for weight in weights:
            gradient = self.parameters[weight.name].grad
            weight.tensor.grad = None if gradient is None else _local(gradient)
        mine = get_total_norm([weight.tensor.grad for weight in weights if weight.tensor.grad is not None])
        square = self.world.all_reduce({"square": mine.to(self.world.device, exact_dtype(self.world.device)).square()})[
            "square"
        ]
        return square.sqrt().float()

    def gather_full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On the CPU of rank 0, one after the other; nothing on the others."""
        found: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            like = self.parameters.get(_name(key))
            whole = tensor if like is None else _whole(tensor, cast(DTensor, like.data))
            if self.world.is_main:
                found[key] = whole.detach().cpu()
        return found

    def local_shard(self, key: str, whole: Tensor) -> Tensor:
        """See `sharding.Holding`: rows as FSDP counts them out, none where there are too few."""
        like = self.parameters.get(_name(key))
        if like is None:
            return whole
        if like.shape != whole.shape:
            shapes = f"{list(whole.shape)}, but {_name(key)} has {list(like.shape)}"
            raise DataError(f"the checkpoint is of another model: {key} has the shape {shapes}")
        rows = whole.chunk(self.world.size)
        return rows[self.world.rank].clone() if self.world.rank < len(rows) else whole[:0].clone()

    @torch.no_grad()
    def load_weights(self, pieces: Mapping[str, Tensor]) -> None:
        """See `sharding.Holding`."""
        for name, mine in self.model.state_dict().items():
            _local(mine).copy_(pieces[name])


class _Root(nn.Module):
    """A model that tells its loss in dicts, where FSDP finds the tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[dict[str, Any], ...]:
        loss: Loss = self.model(batch)
        return loss.sums, loss.counts, loss.correct, loss.weights


@torch.no_grad()
def _take_over_from_rank_0(model: nn.Module, world: World) -> None:
    """The same new weights on all ranks, as DDP sees to."""
    for tensor in model.state_dict().values():
        there = tensor.to(world.device)
        dist.broadcast(there, src=0)
        tensor.copy_(there)


def _local(tensor: Tensor) -> Tensor:
    """This rank's rows of a split tensor, in the same memory; the tensor itself if it is not split."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _whole(rows: Tensor, like: DTensor) -> Tensor:
    if isinstance(rows, DTensor):
        return rows.full_tensor()
    split = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return split.full_tensor()


def _name(key: str) -> str:
    """Of the parameter that `name` or `kind/name` is about."""
    return key.rpartition("/")[2]
