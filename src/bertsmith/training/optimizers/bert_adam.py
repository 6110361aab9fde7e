"""The optimizer of BERT's own code (bert: optimization.py): AdamW without bias correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.training.optimizers import adamw


@dataclass(frozen=True, kw_only=True)
class Config(adamw.Config):
    """P-BERT A.2 and the code: epsilon outside the square root; norms and biases do not decay."""

    epsilon: float = 1e-6  # added to the square root of the second moment
    corrected: ClassVar[bool] = False
