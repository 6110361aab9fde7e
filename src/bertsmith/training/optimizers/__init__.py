"""Optimizers: one file = one optimizer = one `kind` in a recipe. This file is their contract."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

import torch
from torch import Tensor, nn

from bertsmith.errors import DataError

FOLDER = "bertsmith.training.optimizers"
LearningRates = Sequence[float | None]  # by layer group, bottom first; None where it is frozen


class DeviceLearningRate(float):
    """A learning rate with a copy on the device, which a replayed CUDA graph reads."""

    tensor: Tensor

    def __new__(cls, rate: float, tensor: Tensor) -> DeviceLearningRate:
        """`tensor` [] is what kernels read."""
        made = super().__new__(cls, rate)
        made.tensor = tensor.fill_(rate)
        return made


@dataclass(frozen=True, eq=False)
class Weight:
    """One parameter, and what an optimizer may need to know about it."""

    name: str
    tensor: nn.Parameter
    group: int  # its layer group; 0 = bottom
    decays: bool  # matrices and embedding tables do, norms and biases do not
    inner: bool  # a matrix between the embeddings at the bottom and the heads at the top
    stacked: int = 1  # matrices stacked in it, such as those of queries, keys and values

    @property
    def gradient(self) -> Tensor:
        """The gradient of a weight that is updated."""
        assert self.tensor.grad is not None, self.name
        return self.tensor.grad


class Optimizer:
    """Updates weights from their gradients without synchronizing with the device."""

    elementwise = False  # each value of an update depends only on its own weight: works on shards of weights
    sparse = False  # updates only the rows of a table that a sparse gradient holds

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = list(weights)

    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        """One update of every weight with a gradient in a trainable layer group; the others do not even decay.

        Gradients are divided by `divisor` [] (gradient clipping). If `skip` [] is 1, as for a gradient that is not
        finite, no weight and no state changes; otherwise it is 0. Of a `DeviceLearningRate`, kernels read the tensor.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """The state by name; no copies."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restores a `state`."""
        raise NotImplementedError


class OptimizerConfig(Protocol):
    def build(self, weights: Sequence[Weight]) -> Optimizer:
        """The optimizer of these weights, without state."""


def weights_of(
    named: Mapping[str, nn.Parameter], groups: Sequence[nn.Module], *, top: Collection[nn.Parameter] = ()
) -> list[Weight]:
    """The weights of a model with these layer groups, bottom first; every parameter must be in exactly one.

    `top`: parameters of lower modules that belong to the top layer group. A module may have `stacks`: the number of
    matrices stacked in each of its parameters, by name.
    """
    group_of = {id(tensor): index for index, group in enumerate(groups) for tensor in group.parameters()}
    assert sum(len(list(group.parameters())) for group in groups) == len(group_of), "a parameter is in two layer groups"
    assert {id(tensor) for tensor in named.values()} == set(group_of), "a parameter is in no layer group"
    group_of |= dict.fromkeys(map(id, top), len(groups) - 1)
    stacks: dict[int, int] = {}
    for module in (module for group in groups for module in group.modules()):
        for name, count in getattr(module, "stacks", {}).items():
            stacks[id(attrgetter(name)(module))] = count  # a buffer where the module is frozen
    return [
        Weight(
            name=name,
            tensor=tensor,
            group=group_of[id(tensor)],
            decays=tensor.ndim >= 2,
            inner=tensor.ndim == 2 and 0 < group_of[id(tensor)] < len(groups) - 1,
            stacked=stacks.get(id(tensor), 1),
        )
        for name, tensor in named.items()
    ]


def trainable(weights: Sequence[Weight], rates: LearningRates) -> list[tuple[Weight, float]]:
    """The weights that this step updates, with their learning rates."""
    with_gradient = [(weight, rates[weight.group]) for weight in weights if weight.tensor.grad is not None]
    return [(weight, rate) for weight, rate in with_gradient if rate is not None]


def kernel_argument(rate: float) -> float | Tensor:
    """A learning rate as torch's fused kernels take it."""
    return rate.tensor if isinstance(rate, DeviceLearningRate) else rate


def on_device(rate: float, like: Tensor) -> Tensor:
    """A learning rate [] on the device of `like`."""
    value = kernel_argument(rate)
    return value if isinstance(value, Tensor) else torch.full((), value, device=like.device)


def load_by_name(state: Mapping[str, Tensor], prefix: str, weights: Sequence[Weight]) -> dict[str, Tensor]:
    """Copies of the tensors `prefix/name` of a state, by name, on the devices of their weights."""
    known = {weight.name: weight.tensor for weight in weights}
    loaded: dict[str, Tensor] = {}
    for key, value in state.items():
        kind, _, name = key.partition("/")
        if kind != prefix:
            continue
        if name not in known or known[name].shape != value.shape:
            expected = f"has the shape {list(known[name].shape)}" if name in known else "is not a weight of this model"
            raise DataError(f"the state holds {key} of shape {list(value.shape)}, but {name} {expected}")
        loaded[name] = torch.empty_like(known[name], requires_grad=False).copy_(value)
    return loaded
