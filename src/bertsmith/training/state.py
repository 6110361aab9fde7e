"""What a trainer must know to go on where another stopped: the noun between trainer, world and checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bertsmith.errors import BertsmithError


@dataclass(frozen=True)
class TrainingState:
    """Weights, the optimiser's state, and numbers. The tensors are the trainer's own: use them before its next step."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    progress: dict[str, Any]  # plain JSON: steps done, seconds, tokens
    environment: dict[str, Any] = field(default_factory=dict)  # plain JSON: versions, threads, ranks, device

    @property
    def step(self) -> int:
        """How many steps are done."""
        return int(self.progress["step"])

    def check_finite(self) -> None:
        """Raises where a number is not finite: such a state must not replace a good one."""
        for what, tensors in (("weight", self.weights), ("optimiser's state", self.optimizer)):
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise BertsmithError(
                        f"the {what} {name} is not finite after step {self.step:,}: nothing was saved; "
                        "go on from the last checkpoint with a lower rate"
                    )


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """In what a machine and a world differ from those that a state was made with, one line each."""
    return tuple(f"{name} was {then[name]}, now {now.get(name)}" for name in then if then[name] != now.get(name))
