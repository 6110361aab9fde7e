"""One vector for a text out of the vector of its first token. N texts, D width."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import activation as activation_named


class Pooler(nn.Linear):
    """A matrix and an activation (P-BERT §3.1, task 2); dropout before them where a model has it there."""

    def __init__(self, width: int, *, activation: str = "tanh", dropout: float = 0.0) -> None:
        super().__init__(width, width)
        self.activation = activation_named(activation)
        self.dropout = dropout

    def forward(self, x_ND: Tensor) -> Tensor:
        """[N, D] -> [N, D]."""
        if self.dropout:
            x_ND = F.dropout(x_ND, self.dropout, self.training)
        return self.activation(super().forward(x_ND))
