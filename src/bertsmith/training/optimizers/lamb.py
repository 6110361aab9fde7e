"""LAMB: Adam's update, scaled to the norm of each weight (You et al. 2020; albert: lamb_optimizer.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, adamw, on_device, trainable


@dataclass(frozen=True, kw_only=True)
class Config(adamw.Config):
    """As ALBERT was trained: no bias correction; norms and biases neither decay nor are scaled."""

    epsilon: float = 1e-6  # added to the square root of the second moment

    def build(self, weights: Sequence[Weight]) -> LAMB:
        return LAMB(weights, self)


class LAMB(Optimizer):
    """u = m / (√v + epsilon) + decay · w; w -= lr · ‖w‖/‖u‖ · u, where a norm of 0 makes the ratio 1."""

    def __init__(self, weights: Sequence[Weight], config: Config) -> None:
        super().__init__(weights)
        self.weight_decay = config.weight_decay
        self.adam = adamw.Adam(weights, betas=config.betas, epsilon=config.epsilon, weight_decay=0.0, corrected=False)

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        updated = trainable(self.weights, rates)
        directions = self.adam.directions([weight for weight, _ in updated], rates, divisor=divisor, skip=skip)
        for (weight, rate), direction in zip(updated, directions, strict=True):
            scale = (skip - 1) * on_device(rate, skip)
            if weight.decays:
                direction.add_(weight.tensor, alpha=self.weight_decay)
                scale = scale * _ratio(weight.tensor.norm(), direction.norm())
            weight.tensor.addcmul_(direction, scale)

    def state(self) -> dict[str, Tensor]:
        return self.adam.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.adam.load(state)


def _ratio(weight: Tensor, update: Tensor) -> Tensor:
    """‖w‖/‖u‖ [], 1 where either is 0."""
    return torch.where((weight > 0) & (update > 0), weight / update, 1.0)
