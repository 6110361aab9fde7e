"""A table of word vectors, trained or fixed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class WordTable(nn.Module):
    """A vector for each token. V tokens, E width; fixed vectors are stored with the weights, but not trained."""

    weight: Tensor  # [V, E]

    def __init__(self, size: int, width: int, *, fixed: bool) -> None:
        super().__init__()
        if fixed:
            self.register_buffer("weight", torch.zeros(size, width))
        else:
            self.weight = nn.Parameter(torch.zeros(size, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Ids of any shape -> [..., E]."""
        return F.embedding(ids, self.weight)
