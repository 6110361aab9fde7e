"""Muon: orthogonalized momentum for matrices (Jordan et al. 2024); AdamW for everything but inner matrices.

N weights of one shape, M matrices in them, R rows, C columns.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bertsmith.errors import ConfigError
from bertsmith.training.optimizers import LearningRates, Optimizer, Weight, kernel_argument, load_by_name, trainable
from bertsmith.training.optimizers.adamw import Config as AdamWConfig
from bertsmith.training.optimizers.adamw import check_settings

# Coefficients of successive quintics (Amsel et al. 2025, with a margin for rounding): together they map every singular
# value above a thousandth of the norm to between 0.84 and 1.15.
QUINTICS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
ADAM_RMS = 0.2  # of AdamW's usual update (Liu et al. 2025, §2.2): one learning rate serves both


@dataclass(frozen=True, kw_only=True)
class Config:
    """Learning rates are AdamW's: updates of matrices have the same root mean square."""

    momentum: float = 0.95  # decay rate of the momentum
    split_stacked: bool = True  # queries, keys and values are three matrices, the halves of a gated layer two
    betas: tuple[float, float] = (0.9, 0.98)  # decay rates of the two moments
    epsilon: float = 1e-8  # added to the square root of the second moment
    weight_decay: float = 0.01  # decoupled; multiplied by the learning rate

    def __post_init__(self) -> None:
        check_settings(self.betas, self.epsilon, self.weight_decay)
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum} must be at least 0 and below 1")

    def build(self, weights: Sequence[Weight]) -> Muon:
        return Muon(weights, self)


class Muon(Optimizer):
    """b = momentum · b + g; w -= lr · (0.2 √max(R, C) · orthogonal(g + momentum · b) + decay · w).

    Both are SGD steps of torch's fused kernel: the first one, on zeros, computes g + momentum · b.
    """

    def __init__(self, weights: Sequence[Weight], config: Config) -> None:
        super().__init__(weights)
        self.config = config
        self.matrices = [weight for weight in weights if weight.inner]
        self.momenta: dict[str, Tensor] = {}  # b by name, from the first update of a weight on
        rest = AdamWConfig(betas=config.betas, epsilon=config.epsilon, weight_decay=config.weight_decay)
        self.adam = rest.build([weight for weight in weights if not weight.inner])

    @torch.no_grad()
    def step(self, rates: LearningRates, *, divisor: Tensor, skip: Tensor) -> None:
        self.adam.step(rates, divisor=divisor, skip=skip)
        groups: dict[tuple[torch.Size, int, float], list[Weight]] = defaultdict(list)
        for weight, rate in trainable(self.matrices, rates):
            groups[weight.tensor.shape, weight.stacked if self.config.split_stacked else 1, rate].append(weight)
        for (_, stacked, rate), weights in groups.items():
            self._step_shape(weights, stacked, rate, divisor=divisor, skip=skip)

    def _step_shape(self, weights: list[Weight], stacked: int, rate: float, *, divisor: Tensor, skip: Tensor) -> None:
        tensors: list[Tensor] = [weight.tensor for weight in weights]
        for weight in weights:
            if weight.name not in self.momenta:
                self.momenta[weight.name] = torch.zeros_like(weight.tensor, requires_grad=False)
        rows, columns = tensors[0].shape
        nesterov_NRC = tensors[0].new_zeros(len(weights), rows, columns, requires_grad=False)
        fused = partial(torch._fused_sgd_, dampening=0.0, maximize=False, is_first_step=False, found_inf=skip)
        fused(
            list(nesterov_NRC.unbind()),
            [weight.gradient for weight in weights],
            [self.momenta[weight.name] for weight in weights],
            weight_decay=0.0,
            momentum=self.config.momentum,
            nesterov=True,
            lr=-1.0,
            grad_scale=divisor,
        )
        matrices_MRC = nesterov_NRC.view(len(weights) * stacked, rows // stacked, columns)
        matrices_MRC.copy_(orthogonal(matrices_MRC))
        scale = ADAM_RMS * math.sqrt(max(rows // stacked, columns))
        fused(
            tensors,
            list(nesterov_NRC.unbind()),
            [],
            weight_decay=self.config.weight_decay,
            momentum=0.0,
            nesterov=False,
            lr=kernel_argument(rate),
            grad_scale=torch.full_like(divisor, 1 / scale),
        )

    def state(self) -> dict[str, Tensor]:
        """`momentum/name` of matrices, and Adam's state of the rest."""
        return {f"momentum/{name}": value for name, value in self.momenta.items()} | self.adam.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.momenta = load_by_name(state, "momentum", self.matrices)
        self.adam.load(state)


def orthogonal(matrices_NRC: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrices: the same singular vectors, singular values near 1 [N, R, C].

    In bfloat16 on a GPU, which is exact enough.
    """
    tall = matrices_NRC.shape[-2] > matrices_NRC.shape[-1]
    x_NRC = matrices_NRC.to(torch.bfloat16) if matrices_NRC.is_cuda else matrices_NRC
    x_NRC = x_NRC.mT if tall else x_NRC
    x_NRC = x_NRC / (1.02 * x_NRC.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for first, third, fifth in QUINTICS:
        square_NRR = x_NRC @ x_NRC.mT
        mixed_NRR = torch.baddbmm(square_NRR, square_NRR, square_NRR, beta=third, alpha=fifth)
        x_NRC = torch.baddbmm(x_NRC, mixed_NRR, x_NRC, beta=first)
    return x_NRC.mT if tall else x_NRC
