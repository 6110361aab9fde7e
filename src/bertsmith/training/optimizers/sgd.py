"""Stochastic gradient descent, for dense and for sparse gradients; CoVe's translation models use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, load_by_name, on_device, trainable


@dataclass(frozen=True, kw_only=True)
class Config:
    """SGD, by default without momentum."""

    momentum: float = 0.0  # decay rate of the momentum, as in torch
    nesterov: bool = False  # Nesterov's momentum in place of the plain one
    weight_decay: float = 0.0  # decoupled; multiplied by the learning rate. Above 0, every row of a table is updated

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1 or self.weight_decay < 0:
            found = f"momentum={self.momentum:g} and weight_decay={self.weight_decay:g}"
            raise ConfigError(f"{found}: momentum must be at least 0 and below 1, weight_decay at least 0")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov=true needs momentum: write momentum=0.9")

    def build(self, weights: Sequence[Weight]) -> Optimizer:
        return SGD(weights, self)


class SGD(Optimizer):
    """b = momentum · b + g; w -= lr · b. Without momentum and decay, rows without a gradient do not change."""

    elementwise = True

    def __init__(self, weights: Sequence[Weight], config: Config) -> None:
        super().__init__(weights)
        self.config, self.sparse = config, not (config.weight_decay or config.momentum)
        self.momenta: dict[str, Tensor] = {}  # by name, from the first update of a weight on

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        for weight, rate in trainable(self.weights, rates):
            gradient, factor = weight.gradient, on_device(rate, weight.tensor)
            if gradient.is_sparse:
                values = torch.where(skip > 0, 0.0, gradient.values() / divisor)
                weight.tensor.index_add_(0, gradient.indices()[0], values.mul_(-factor))
                continue
            if weight.decays and self.config.weight_decay:
                weight.tensor.mul_(1 - factor * self.config.weight_decay * (1 - skip))
            gradient = torch.where(skip > 0, 0.0, gradient / divisor)  # a skipped gradient may be infinite
            weight.tensor.sub_(self._update(weight, gradient, skip).mul_(factor * (1 - skip)))

    def _update(self, weight: Weight, gradient: Tensor, skip: Tensor) -> Tensor:
        """What is subtracted, for a learning rate of 1; its own tensor."""
        if not self.config.momentum:
            return gradient
        if weight.name not in self.momenta:
            self.momenta[weight.name] = torch.zeros_like(weight.tensor, requires_grad=False)
        before = self.momenta[weight.name]
        before.copy_(torch.where(skip > 0, before, self.config.momentum * before + gradient))
        return gradient.add_(before, alpha=self.config.momentum) if self.config.nesterov else before.clone()

    def state(self) -> dict[str, Tensor]:
        """`momentum/name`."""
        return {f"momentum/{name}": value for name, value in self.momenta.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.momenta = load_by_name(state, "momentum", self.weights)
