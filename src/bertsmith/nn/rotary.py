"""Rotary position embeddings (Su et al. 2021, §3.2). T flat tokens, H heads, K head width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RotaryEmbedding:
    """Cosines and sines of the rotation angles of a batch: computed once, shared by all layers.

    Components k and k + K/2 of a head form a point in a plane, rotated by position · theta^(-2k/K). The dot product of
    a rotated query and a rotated key then depends only on the distance between their positions.
    """

    cos: Tensor  # [T, 1, K/2] float32
    sin: Tensor  # [T, 1, K/2] float32

    def rotate(self, x_THK: Tensor) -> Tensor:
        """Queries or keys [T, H, K], rotated; computed in float32, returned in their own type."""
        first, second = x_THK.chunk(2, -1)
        halves = first * self.cos - second * self.sin, second * self.cos + first * self.sin
        return torch.cat(halves, -1).to(x_THK.dtype)


def rotary_embedding(position_ids_T: Tensor, *, head_width: int, theta: float) -> RotaryEmbedding:
    """The rotations of tokens at these positions [T], counted within each text."""
    exponents = torch.arange(0, head_width, 2, dtype=torch.float32, device=position_ids_T.device)
    frequencies = 1.0 / theta ** (exponents / head_width)  # [K/2]
    angles_T1K = (position_ids_T.float()[:, None] * frequencies)[:, None]
    return RotaryEmbedding(angles_T1K.cos(), angles_T1K.sin())
