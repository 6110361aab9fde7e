"""Adagrad (Duchi, Hazan and Singer 2011), for dense and for sparse gradients; ELMo and word vectors use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.nn.row_threads import parts, run
from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, load_by_name, on_device, trainable


@dataclass(frozen=True, kw_only=True)
class Config:
    """Adagrad without momentum."""

    initial: float = 0.0  # initial sum of squares; ELMo: 1.0, for gradients of a loss per sequence
    epsilon: float = 1e-12  # added to the square root of the sum
    weight_decay: float = 0.0  # decoupled; multiplied by the learning rate. Above 0, every row of a table is updated

    def __post_init__(self) -> None:
        if self.initial < 0 or self.epsilon <= 0 or self.weight_decay < 0:
            found = f"initial={self.initial:g}, epsilon={self.epsilon:g} and weight_decay={self.weight_decay:g}"
            raise ConfigError(f"{found}: epsilon must be above 0, the others at least 0")

    def build(self, weights: Sequence[Weight]) -> Optimizer:
        return Adagrad(weights, self)


class Adagrad(Optimizer):
    """s += g²; w -= lr · g / (√s + epsilon). Rows without a gradient do not change: sparse gradients are exact."""

    elementwise = True

    def __init__(self, weights: Sequence[Weight], config: Config) -> None:
        super().__init__(weights)
        self.config, self.sparse = config, not config.weight_decay
        self.sums: dict[str, Tensor] = {}  # of squared gradients by name, from the first update of a weight on

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        calls: list[partial[None]] = []
        for weight, rate in trainable(self.weights, rates):
            if weight.name not in self.sums:
                self.sums[weight.name] = torch.full_like(weight.tensor, self.config.initial, requires_grad=False)
            sums, gradient = self.sums[weight.name], weight.gradient
            factor = on_device(rate, weight.tensor)
            if not gradient.is_sparse:
                if weight.decays and self.config.weight_decay:
                    weight.tensor.mul_(1 - factor * self.config.weight_decay * (1 - skip))
                self._update(weight.tensor, sums, gradient, factor, divisor, skip)
                continue
            update = partial(self._update_rows, weight.tensor, sums, gradient, factor, divisor, skip)
            calls += [partial(update, *part) for part in parts(len(gradient.values()), gradient.device)]
        if calls:
            run(calls, self.weights[0].tensor.device)

    def _update_rows(
        self,
        table: Tensor,
        sums: Tensor,
        gradient: Tensor,
        rate: Tensor,
        divisor: Tensor,
        skip: Tensor,
        first: int,
        last: int,
    ) -> None:
        """Some rows of a sparse gradient, in place."""
        rows_U, gradient_UD = gradient.indices()[0, first:last], gradient.values()[first:last]
        if table.is_cuda:
            values_UD, sums_UD = table.index_select(0, rows_U), sums.index_select(0, rows_U)
            self._update(values_UD, sums_UD, gradient_UD, rate, divisor, skip)
            table.index_copy_(0, rows_U, values_UD)
            sums.index_copy_(0, rows_U, sums_UD)
        else:  # each row is in the gradient once; on a CPU adding rows takes half the time of copying them
            gradient_UD = _scaled(gradient_UD, divisor, skip)
            sums.index_add_(0, rows_U, gradient_UD.square())
            roots_UD = sums.index_select(0, rows_U).sqrt_().add_(self.config.epsilon)
            table.index_add_(0, rows_U, (gradient_UD * -rate).div_(roots_UD))

    def _update(
        self, values: Tensor, sums: Tensor, gradient: Tensor, rate: Tensor, divisor: Tensor, skip: Tensor
    ) -> None:
        """In place."""
        if values.is_cuda and values.dtype == torch.float32 and values.is_contiguous():
            from bertsmith.nn.kernels import adagrad  # imports triton

            epsilon = self.config.epsilon
            adagrad.update(values, sums, gradient, rate=rate, divisor=divisor, skip=skip, epsilon=epsilon)
            return
        gradient = _scaled(gradient, divisor, skip)
        sums.addcmul_(gradient, gradient)
        values.addcdiv_(gradient * -rate, sums.sqrt().add_(self.config.epsilon))

    def state(self) -> dict[str, Tensor]:
        """`sums/name`."""
        return {f"sums/{name}": value for name, value in self.sums.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.sums = load_by_name(state, "sums", self.weights)


def _scaled(gradient: Tensor, divisor: Tensor, skip: Tensor) -> Tensor:
    """The clipped gradient; zeros where the step is skipped, whose gradient may be infinite."""
    if skip.device.type == "cpu" and divisor == 1 and not skip:
        return gradient
    return torch.where(skip > 0, 0.0, gradient / divisor)
