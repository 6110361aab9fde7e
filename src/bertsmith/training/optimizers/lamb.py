"""LAMB: Adam's direction, as long for each weight as the weight itself (You et al. 2020; albert: lamb_optimizer.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.training.optimizers.adam import Adam, check
from bertsmith.training.optimizers.optimizer import LearningRates, Optimizer, Weight, on_device, trainable


@dataclass(frozen=True, kw_only=True)
class Config:
    """As ALBERT was trained: no bias correction; norms and biases neither decay nor are scaled."""

    betas: tuple[float, float] = (0.9, 0.999)  # what is kept of the two moments at each step
    epsilon: float = 1e-6  # added to the root of the second moment
    weight_decay: float = 0.01  # share of a weight that goes at each step, times the rate

    def __post_init__(self) -> None:
        check(self.betas, self.epsilon, self.weight_decay)

    def build(self, weights: Sequence[Weight]) -> LAMB:
        """See `optimizer.Settings`."""
        return LAMB(weights, self)


class LAMB(Optimizer):
    """u = m / (√v + epsilon) + decay · w; w -= rate · ‖w‖/‖u‖ · u, where a norm of 0 makes the ratio 1."""

    def __init__(self, weights: Sequence[Weight], config: Config) -> None:
        super().__init__(weights)
        self.weight_decay = config.weight_decay
        self.adam = Adam(weights, betas=config.betas, epsilon=config.epsilon, weight_decay=0.0, corrected=False)

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        """See `Optimizer.step`."""
        found = trainable(self.weights, rates)
        directions = self.adam.directions([weight for weight, _ in found], rates, divisor=divisor, skip=skip)
        for (weight, rate), direction in zip(found, directions, strict=True):
            length = (skip - 1) * on_device(rate, skip)
            if weight.decays:
                direction.add_(weight.tensor, alpha=self.weight_decay)
                length = length * _ratio(weight.tensor.norm(), direction.norm())
            weight.tensor.addcmul_(direction, length)

    def state(self) -> dict[str, Tensor]:
        """Adam's moments."""
        return self.adam.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        """See `Optimizer.load`."""
        self.adam.load(state)


def _ratio(weight: Tensor, update: Tensor) -> Tensor:
    """‖w‖/‖u‖ [], 1 where either is 0."""
    return torch.where((weight > 0) & (update > 0), weight / update, 1.0)
