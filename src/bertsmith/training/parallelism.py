"""Where weights, gradients and optimizer state live: replicated on every rank (DDP) or sharded over the ranks (FSDP2).

Checkpoints hold full tensors either way, so that a run can resume the other way or on another number of ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from bertsmith.nn.sparse_rows import sum_rows
from bertsmith.training.distributed import World
from bertsmith.training.optimizers import Weight, weights_of
from bertsmith.types import Batch, Loss

State = tuple[Tensor, ...]  # of a stateful encoder, see `recurrent_state`


class DataParallel:
    """Every rank holds the full model, and gradients are averaged (DDP); also the form of a single process.

    `parameters` are those that autograd sees, by name.
    """

    def __init__(self, model: nn.Module, world: World, *, compiles: bool) -> None:
        self.model, self.world, self.compiles = model.to(world.device), world, compiles
        self.parameters = dict(model.named_parameters())
        self._wrapped: nn.Module
        self._forward: Any
        self.rewrap()

    def __call__(self, batch: Batch, state: State | None = None) -> Loss:
        """The loss of a corrupted batch, for training; `state` of a stateful encoder."""
        loss: Loss = self._forward(batch) if state is None else self._forward(batch, state)
        return loss

    def evaluate(self, batch: Batch, state: State | None = None) -> Loss:
        """The loss of a corrupted batch, without a backward pass."""
        loss: Loss = self.model(batch) if state is None else self.model(batch, state)
        return loss

    def rewrap(self) -> None:
        """To be called after `requires_grad` of parameters has changed."""
        self._wrapped = self.world.data_parallel(self.model)
        self._forward = torch.compile(self._wrapped, dynamic=False) if self.compiles else self._wrapped

    def gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """The context of a backward pass; ranks average their gradients in the `last` one of a step."""
        local = isinstance(self._wrapped, DistributedDataParallel) and not last
        return cast(DistributedDataParallel, self._wrapped).no_sync() if local else nullcontext()

    def weights(self, groups: Sequence[nn.Module], *, top: Collection[nn.Parameter] = ()) -> list[Weight]:
        """The weights that the optimizer of this rank updates; see `weights_of`."""
        return weights_of(self.parameters, groups, top=top)

    def use_sparse_gradients(self) -> None:
        """Gradients of embedding tables hold only the rows that a step reads: a large table is mostly not read."""
        if self.world.size > 1 or self.world.device.type not in ("cpu", "cuda") or self.compiles:
            return
        for module in self.model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                module.sparse = True

    def gradient_norm(self, weights: Sequence[Weight]) -> Tensor:
        """The global norm [] of all gradients; from here on `tensor.grad` of each weight is set."""
        gradients = [(weight.tensor, weight.tensor.grad) for weight in weights if weight.tensor.grad is not None]
        sparse = [(tensor, gradient) for tensor, gradient in gradients if gradient.is_sparse]
        summed, norms = sum_rows([gradient for _, gradient in sparse])
        for (tensor, _), gradient in zip(sparse, summed, strict=True):
            tensor.grad = gradient
        return get_total_norm([*norms, *(gradient for _, gradient in gradients if not gradient.is_sparse)])

    def gather_full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Full tensors of `name` or `kind/name`, on rank 0 at least. All ranks must call it."""
        return dict(tensors)

    def local_shard(self, key: str, full: Tensor) -> Tensor:
        """This rank's part of the full tensor of `name` or `kind/name`."""
        return full

    def load_weights(self, shards: Mapping[str, Tensor]) -> None:
        """Copies weights and buffers by name."""
        self.model.load_state_dict(dict(shards))
