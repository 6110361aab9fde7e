"""ELMo's task-specific mix of the layers of an encoder (P-ELMo eq. 1). T flat tokens, D width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """scale * Σ softmax(weights)_j layer_j, with equal weights and scale 1 at first."""

    def __init__(self, numbers: Sequence[int], *, layer_norm: bool = False, l2: float = 0.0) -> None:
        """`numbers`: of the layers. `layer_norm`: normalise each layer first, without weights (P-ELMo §3.2)."""
        super().__init__()
        self.numbers, self.layer_norm, self.l2 = tuple(numbers), layer_norm, l2
        self.weights = nn.Parameter(torch.empty(len(self.numbers)))
        self.scale = nn.Parameter(torch.empty(1))
        self.init_weights()

    def init_weights(self) -> None:
        """A mean of the layers."""
        nn.init.zeros_(self.weights)
        nn.init.ones_(self.scale)

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Layers [T, D] -> [T, D]."""
        if self.layer_norm:
            # differs from bilm: the statistics are of one token, not of all tokens of the batch, so that the vector of
            # a text does not depend on the other texts of its batch
            layers = [F.layer_norm(layer_TD, layer_TD.shape[-1:]) for layer_TD in layers]
        weights = self.weights.softmax(0)
        mixed_TD = weights[0] * layers[0]
        for weight, layer_TD in zip(weights[1:], layers[1:], strict=True):
            mixed_TD = mixed_TD + weight * layer_TD
        return self.scale * mixed_TD

    def layer_weights(self) -> dict[str, float]:
        """The weight of each layer after the softmax, by its number, and the scale."""
        values = self.weights.detach().float().softmax(0).tolist()
        return {
            **{str(n): one for n, one in zip(self.numbers, values, strict=True)},
            "scale": float(self.scale.detach()),
        }

    def penalty(self) -> Tensor:
        """l2 · ‖weights‖² [], a term of the loss; a strong penalty keeps the mix an average (P-ELMo §3.2)."""
        return self.l2 * self.weights.square().sum()
