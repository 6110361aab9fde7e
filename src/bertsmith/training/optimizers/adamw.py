"""AdamW (Loshchilov and Hutter 2019; torch.optim.AdamW) by torch's fused kernel, clipping and skipping included."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, kernel_argument, load_by_name, trainable


@dataclass(frozen=True, kw_only=True)
class Config:
    """AdamW with bias correction; norms and biases do not decay. RoBERTa and the Transformer use betas=[0.9, 0.98]."""

    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of the two moments
    epsilon: float = 1e-8  # added to the square root of the second moment
    weight_decay: float = 0.01  # decoupled; multiplied by the learning rate
    corrected: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self.betas, self.epsilon, self.weight_decay)

    def build(self, weights: Sequence[Weight]) -> Optimizer:
        decay, corrected = self.weight_decay, self.corrected
        return Adam(weights, betas=self.betas, epsilon=self.epsilon, weight_decay=decay, corrected=corrected)


class Adam(Optimizer):
    """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g²; w -= lr · (m / (√v + epsilon) + decay · w).

    `corrected` divides m by 1-b1^t and v by 1-b2^t (Kingma and Ba 2015); t counts the updates of each layer group, so
    that one that is unfrozen late is corrected too.
    """

    elementwise = True

    def __init__(
        self,
        weights: Sequence[Weight],
        *,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
        corrected: bool,
    ) -> None:
        super().__init__(weights)
        self.betas, self.epsilon, self.weight_decay, self.corrected = betas, epsilon, weight_decay, corrected
        self.first: dict[str, Tensor] = {}  # m by name, from the first update of a weight on
        self.second: dict[str, Tensor] = {}  # v
        groups = 1 + max((weight.group for weight in self.weights), default=-1)
        device = self.weights[0].tensor.device if self.weights else None
        # after infinitely many updates the bias correction divides by 1
        self.updates = [torch.full((), 0.0 if corrected else torch.inf, device=device) for _ in range(groups)]

    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        by_rate: dict[tuple[float, bool], list[Weight]] = defaultdict(list)
        for weight, rate in trainable(self.weights, rates):
            by_rate[rate, weight.decays].append(weight)
        self._count(rates, skip)
        for (rate, decays), weights in by_rate.items():
            targets: list[Tensor] = [weight.tensor for weight in weights]
            decay = self.weight_decay if decays else 0.0
            self._fused(targets, weights, rate=rate, weight_decay=decay, divisor=divisor, skip=skip)

    def directions(
        self, weights: Sequence[Weight], rates: LearningRates, *, divisor: Tensor, skip: Tensor
    ) -> list[Tensor]:
        """m / (√v + epsilon) of each weight after this step's gradient; 0 where the step is skipped."""
        self._count(rates, skip)
        results: list[Tensor] = [torch.zeros_like(weight.tensor, requires_grad=False) for weight in weights]
        self._fused(results, weights, rate=-1.0, weight_decay=0.0, divisor=divisor, skip=skip)
        return results

    def _count(self, rates: LearningRates, skip: Tensor) -> None:
        counters = [count for count, rate in zip(self.updates, rates, strict=False) if rate is not None]
        if counters:  # torch rejects an empty list
            torch._foreach_add_(counters, [1 - skip] * len(counters))

    @torch.no_grad()
    def _fused(
        self,
        targets: list[Tensor],
        weights: Sequence[Weight],
        *,
        rate: float,
        weight_decay: float,
        divisor: Tensor,
        skip: Tensor,
    ) -> None:
        if not targets:
            return
        for weight in weights:
            for moments in (self.first, self.second):
                if weight.name not in moments:
                    moments[weight.name] = torch.zeros_like(weight.tensor, requires_grad=False)
        torch._fused_adamw_(
            targets,
            [weight.gradient for weight in weights],
            [self.first[weight.name] for weight in weights],
            [self.second[weight.name] for weight in weights],
            [],
            [self.updates[weight.group] for weight in weights],
            lr=kernel_argument(rate),
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=weight_decay,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skip,
        )

    def state(self) -> dict[str, Tensor]:
        """`first/name`, `second/name`, and `updates` [groups] with bias correction."""
        state = {f"first/{name}": value for name, value in self.first.items()}
        state |= {f"second/{name}": value for name, value in self.second.items()}
        return state | ({"updates": torch.stack(self.updates)} if self.corrected and self.updates else {})

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.first = load_by_name(state, "first", self.weights)
        self.second = load_by_name(state, "second", self.weights)
        if "updates" in state and self.corrected:
            for counter, value in zip(self.updates, state["updates"], strict=True):
                counter.copy_(value)


def check_settings(betas: tuple[float, float], epsilon: float, weight_decay: float) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas={betas} must be at least 0 and below 1")
    if epsilon <= 0 or weight_decay < 0:
        raise ConfigError(f"epsilon={epsilon} must be above 0 and weight_decay={weight_decay} at least 0")
