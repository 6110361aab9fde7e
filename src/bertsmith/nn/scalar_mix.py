"""ELMo's task-specific mix of the layers of an encoder (P-ELMo eq. 1). T flat tokens, D width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """scale * Σ softmax(weights)_j layer_j, with equal weights and scale 1 at first."""

    def __init__(self, layers: int, *, layer_norm: bool = False) -> None:
        """`layer_norm`: each layer is normalised first, without weights (P-ELMo §3.2)."""
        super().__init__()
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.empty(layers))
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
        return weighted_sum(layers, self.weights, self.scale)

    def layer_weights(self) -> dict[str, float]:
        """The weight of each layer after the softmax, by its number, and the scale."""
        return weights_in_sum(range(len(self.weights)), self.weights, self.scale)

    def penalty(self) -> Tensor:
        """‖weights‖² []; a strong penalty keeps the mix an average (P-ELMo §3.2)."""
        return self.weights.square().sum()


def weighted_sum(layers: Sequence[Tensor], weights: Tensor, scale: Tensor) -> Tensor:
    """scale * (softmax(weights) . layers), of layers [T, D]."""
    weights = weights.softmax(0)
    mixed_TD = weights[0] * layers[0]
    for weight, layer_TD in zip(weights[1:], layers[1:], strict=True):
        mixed_TD = mixed_TD + weight * layer_TD
    return scale * mixed_TD


def weights_in_sum(numbers: Iterable[int], weights: Tensor, scale: Tensor) -> dict[str, float]:
    """The weight of each layer after the softmax, by its number, and the scale."""
    values = weights.detach().float().softmax(0).tolist()
    return {**{str(n): one for n, one in zip(numbers, values, strict=True)}, "scale": float(scale.detach())}
