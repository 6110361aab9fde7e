"""What every optimiser is: gradients are there, weights change. Knows parameters and depths, no model by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from bertsmith.errors import DataError

FOLDER = "bertsmith.training.optimizers"
LearningRates = Sequence[float | None]  # by depth, bottom first; None where a part is asleep


class DeviceLearningRate(float):
    """A rate that lies on the device too, where a step that is replayed finds a later one."""

    tensor: Tensor

    def __new__(cls, rate: float, tensor: Tensor) -> DeviceLearningRate:
        """`tensor` [] is what counts on the device."""
        found = super().__new__(cls, rate)
        found.tensor = tensor.fill_(rate)
        return found


@dataclass(frozen=True, eq=False)
class Weight:
    """One parameter, and what an optimiser may want to know of it."""

    name: str
    tensor: nn.Parameter
    depth: int  # of the part that it belongs to; 0 = bottom
    decays: bool  # matrices and tables do, norms and biases do not
    inner: bool  # a matrix between the tables at the bottom and the heads at the top
    stacked: int = 1  # matrices that lie in it one above the other, as those of queries, keys and values


class Optimizer:
    """Changes weights from their gradients. Nothing here waits for the device."""

    elementwise = False  # no number of an update depends on another place of its weight: pieces of weights do too

    def __init__(self, weights: Sequence[Weight]) -> None:
        self.weights = list(weights)

    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        """One update of every weight that has a gradient and whose part is awake; the others do not even decay.

        Gradients count `divisor` [] times less (that is how they are clipped). Where `skip` [] is 1, as it is when a
        gradient is not finite, no weight and no state changes; else it is 0. Of a `HeldRate` the tensor counts.
        """
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on, by name; no copies."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what another's `state` gave."""
        raise NotImplementedError


class Settings(Protocol):
    """An optimiser's `Config`."""

    def build(self, weights: Sequence[Weight]) -> Optimizer:
        """The optimiser of these weights, at its beginning."""


def weights_of(named: Mapping[str, nn.Parameter], depths: Sequence[nn.Module]) -> list[Weight]:
    """The weights of a model whose parts, bottom first, are `depths`; every parameter must be in exactly one part.

    A module may have `stacks`: how many matrices lie one above the other in each of its parameters, by name.
    """
    places = {id(tensor): depth for depth, part in enumerate(depths) for tensor in part.parameters()}
    assert sum(len(list(part.parameters())) for part in depths) == len(places), "a parameter is in two parts"
    assert {id(tensor) for tensor in named.values()} == set(places), "a parameter is in no part"
    stacks: dict[int, int] = {}
    for module in (module for part in depths for module in part.modules()):
        for name, count in getattr(module, "stacks", {}).items():
            stacks[id(module.get_parameter(name))] = count
    return [
        Weight(
            name=name,
            tensor=tensor,
            depth=places[id(tensor)],
            decays=tensor.ndim >= 2,
            inner=tensor.ndim == 2 and 0 < places[id(tensor)] < len(depths) - 1,
            stacked=stacks.get(id(tensor), 1),
        )
        for name, tensor in named.items()
    ]


def trainable(weights: Sequence[Weight], rates: LearningRates) -> list[tuple[Weight, float]]:
    """The weights that an update concerns, each with its rate."""
    found = [(weight, rates[weight.depth]) for weight in weights if weight.tensor.grad is not None]
    return [(weight, rate) for weight, rate in found if rate is not None]


def kernel_argument(rate: float) -> float | Tensor:
    """A rate as torch's fused kernels take it: of one that is held, what lies on the device."""
    return rate.tensor if isinstance(rate, DeviceLearningRate) else rate


def on_device(rate: float, beside: Tensor) -> Tensor:
    """A rate [] where updates are computed."""
    found = kernel_argument(rate)
    return found if isinstance(found, Tensor) else torch.full((), found, device=beside.device)


def gradient(weight: Weight) -> Tensor:
    """The gradient of a weight that is due."""
    assert weight.tensor.grad is not None, weight.name
    return weight.tensor.grad


def load_by_name(state: Mapping[str, Tensor], prefix: str, weights: Sequence[Weight]) -> dict[str, Tensor]:
    """The tensors `prefix/name` of a state, each beside its weight: same shape, same device, a copy."""
    known = {weight.name: weight.tensor for weight in weights}
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        kind, _, name = key.partition("/")
        if kind != prefix:
            continue
        if name not in known or known[name].shape != value.shape:
            expected = (
                f"has the shape {list(known[name].shape)}" if name in known else "is none of this model's weights"
            )
            raise DataError(f"the state holds {key} of shape {list(value.shape)}, but {name} {expected}")
        found[name] = torch.empty_like(known[name], requires_grad=False).copy_(value)
    return found
