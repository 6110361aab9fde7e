"""The optimizer of BERT's own code (bert: optimization.py): AdamW without bias correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.training.optimizers import Weight
from bertsmith.training.optimizers.adamw import Adam, check_settings


@dataclass(frozen=True, kw_only=True)
class Config:
    """P-BERT A.2 and the code: epsilon outside the square root; norms and biases do not decay."""

    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of the two moments
    epsilon: float = 1e-6  # added to the square root of the second moment
    weight_decay: float = 0.01  # decoupled; multiplied by the learning rate

    def __post_init__(self) -> None:
        check_settings(self.betas, self.epsilon, self.weight_decay)

    def build(self, weights: Sequence[Weight]) -> Adam:
        return Adam(weights, betas=self.betas, epsilon=self.epsilon, weight_decay=self.weight_decay, corrected=False)
