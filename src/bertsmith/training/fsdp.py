"""Weights, gradients and optimizer state sharded over the ranks (FSDP2)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import Weight, weights_of
from bertsmith.training.parallelism import DataParallel, State
from bertsmith.training.step import exact_dtype
from bertsmith.types import Batch, Loss


class FSDP(DataParallel):
    """Each rank holds its share of the rows of every tensor; a layer group is gathered only while it computes.

    The middle layer groups are gathered one after another. Embeddings and heads stay gathered from the forward to the
    backward pass, because both ends of it read the embedding table.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module], world: World, *, compiles: bool) -> None:
        self.model, self.world = model, world
        _broadcast_from_rank_0(model, world)
        mesh = init_device_mesh(world.device.type, (world.size,))
        for layer in layers:
            if isinstance(layer, nn.ModuleList | nn.ModuleDict):
                continue  # their forward is never called: their modules are sharded with embeddings and heads
            if compiles:
                # the layer alone: collectives before and after it are not for the compiler
                layer.forward = torch.compile(layer.forward, dynamic=False)
            fully_shard(layer, mesh=mesh)
        self.root = _Root(model)
        fully_shard(self.root, mesh=mesh)  # moves to the device what it shards, layer by layer
        self.parameters = dict(model.named_parameters())

    def __call__(self, batch: Batch, state: State | None = None) -> Loss:
        return Loss(*self.root(batch))

    def evaluate(self, batch: Batch, state: State | None = None) -> Loss:
        loss = self(batch)
        cast(FSDPModule, self.root).reshard()  # as a backward pass would do
        return loss

    def rewrap(self) -> None:
        """Nothing: FSDP checks `requires_grad` in each pass."""

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        """Before the `last` pass, each rank accumulates full gradients."""
        cast(FSDPModule, self.root).set_requires_gradient_sync(last)
        yield

    def weights(self, groups: Sequence[nn.Module], *, top: Collection[nn.Parameter] = ()) -> list[Weight]:
        """This rank's rows, as parameters that share memory with the model."""
        return [
            replace(weight, tensor=nn.Parameter(_local(weight.tensor), requires_grad=False))
            for weight in weights_of(self.parameters, groups, top=top)
        ]

    def gradient_norm(self, weights: Sequence[Weight]) -> Tensor:
        for weight in weights:
            gradient = self.parameters[weight.name].grad
            weight.tensor.grad = None if gradient is None else _local(gradient)
        local = get_total_norm([weight.tensor.grad for weight in weights if weight.tensor.grad is not None])
        square = local.to(self.world.device, exact_dtype(self.world.device)).square()
        return self.world.all_reduce({"square": square})["square"].sqrt().float()

    def gather_full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On the CPU of rank 0, one after another; empty elsewhere."""
        gathered: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            like = self.parameters.get(_name(key))
            full = tensor if like is None else _full(tensor, cast(DTensor, like.data))
            if self.world.is_main:
                gathered[key] = full.detach().cpu()
        return gathered

    def local_shard(self, key: str, full: Tensor) -> Tensor:
        """Rows as FSDP distributes them, none where there are too few."""
        like = self.parameters.get(_name(key))
        if like is None:
            return full
        if like.shape != full.shape:
            shapes = f"{list(full.shape)}, but {_name(key)} has {list(like.shape)}"
            raise DataError(f"the checkpoint belongs to another model: {key} has the shape {shapes}")
        rows = full.chunk(self.world.size)
        return rows[self.world.rank].clone() if self.world.rank < len(rows) else full[:0].clone()

    @torch.no_grad()
    def load_weights(self, shards: Mapping[str, Tensor]) -> None:
        for name, tensor in self.model.state_dict().items():
            _local(tensor).copy_(shards[name])


class _Root(nn.Module):
    """The model with its loss as plain dicts, in which FSDP finds the tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[dict[str, Any], ...]:
        loss: Loss = self.model(batch)
        return loss.sums, loss.counts, loss.correct, loss.weights


@torch.no_grad()
def _broadcast_from_rank_0(model: nn.Module, world: World) -> None:
    """The same initial weights on all ranks, as DDP does."""
    for tensor in model.state_dict().values():
        received = tensor.to(world.device)
        dist.broadcast(received, src=0)
        tensor.copy_(received)


def _local(tensor: Tensor) -> Tensor:
    """This rank's rows of a sharded tensor, in the same memory; the tensor itself if it is not sharded."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _full(rows: Tensor, like: DTensor) -> Tensor:
    if isinstance(rows, DTensor):
        return rows.full_tensor()
    sharded = DTensor.from_local(
        rows, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return sharded.full_tensor()


def _name(key: str) -> str:
    """The parameter's name in `name` or `kind/name`."""
    return key.rpartition("/")[2]
