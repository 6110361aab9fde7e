"""The optimiser of BERT's own code (bert: optimization.py): Adam without bias correction, decay within the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertsmith.training.optimizers.adam import Adam, check
from bertsmith.training.optimizers.optimizer import Weight


@dataclass(frozen=True, kw_only=True)
class Config:
    """P-BERT A.2 and the code: epsilon stands outside the root; norms and biases do not decay."""

    betas: tuple[float, float] = (0.9, 0.999)  # what is kept of the two moments at each step
    epsilon: float = 1e-6  # added to the root of the second moment
    weight_decay: float = 0.01  # share of a weight that goes at each step, times the rate

    def __post_init__(self) -> None:
        check(self.betas, self.epsilon, self.weight_decay)

    def build(self, weights: Sequence[Weight]) -> Adam:
        """See `optimizer.Settings`."""
        return Adam(weights, betas=self.betas, epsilon=self.epsilon, weight_decay=self.weight_decay, corrected=False)
