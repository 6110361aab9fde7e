"""Adagrad (Duchi, Hazan and Singer 2011), for dense and for sparse gradients; ELMo and word vectors use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, load_by_name, on_device, trainable


@dataclass(frozen=True, kw_only=True)
class Config:
    """Without momentum and weight decay."""

    initial: float = 0.0  # of the sum of squares; ELMo: 1.0, for gradients of a loss per sequence
    epsilon: float = 1e-12  # added to the square root of the sum

    def __post_init__(self) -> None:
        if self.initial < 0 or self.epsilon <= 0:
            raise ConfigError(f"initial={self.initial:g} must be at least 0 and epsilon={self.epsilon:g} above 0")

    def build(self, weights: Sequence[Weight]) -> Optimizer:
        return Adagrad(weights, initial=self.initial, epsilon=self.epsilon)


class Adagrad(Optimizer):
    """s += g²; w -= lr · g / (√s + epsilon). Rows without a gradient do not change: sparse gradients are exact."""

    elementwise = True
    sparse = True

    def __init__(self, weights: Sequence[Weight], *, initial: float, epsilon: float) -> None:
        super().__init__(weights)
        self.initial, self.epsilon = initial, epsilon
        self.sums: dict[str, Tensor] = {}  # of squared gradients by name, from the first update of a weight on

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        for weight, rate in trainable(self.weights, rates):
            if weight.name not in self.sums:
                self.sums[weight.name] = torch.full_like(weight.tensor, self.initial, requires_grad=False)
            sums, gradient = self.sums[weight.name], weight.gradient
            if not gradient.is_sparse:
                self._update(weight.tensor, sums, gradient, on_device(rate, weight.tensor), divisor, skip)
                continue
            rows_U = gradient.indices()[0]
            values_UD, sums_UD = weight.tensor.index_select(0, rows_U), sums.index_select(0, rows_U)
            rate_ = on_device(rate, weight.tensor)
            self._update(values_UD, sums_UD, gradient.values(), rate_, divisor, skip)
            weight.tensor.index_copy_(0, rows_U, values_UD)
            sums.index_copy_(0, rows_U, sums_UD)

    def _update(
        self, values: Tensor, sums: Tensor, gradient: Tensor, rate: Tensor, divisor: Tensor, skip: Tensor
    ) -> None:
        """In place."""
        gradient = torch.where(skip > 0, 0.0, gradient / divisor)  # a skipped gradient may be infinite
        sums.addcmul_(gradient, gradient)
        values.sub_(gradient.mul_(rate).div_(sums.sqrt().add_(self.epsilon)))

    def state(self) -> dict[str, Tensor]:
        """`sums/name`."""
        return {f"sums/{name}": value for name, value in self.sums.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.sums = load_by_name(state, "sums", self.weights)
