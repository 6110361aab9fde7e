"""Positions as turns of queries and keys (Su et al. 2021, §3.2). T flat places, H heads, K head width."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turns:
    """By how much each place is turned: made once for a batch, shared by all layers.

    Number k of a head's first half and number k of its second half are one point in a plane, which is turned by
    position / base^(2k/K). The product of two places then depends on how far apart they stand and on nothing else.
    """

    cosine: Tensor  # [T, 1, K/2] float32
    sine: Tensor  # [T, 1, K/2] float32

    def turn(self, x_THK: Tensor) -> Tensor:
        """Queries or keys, turned [T, H, K]; computed in float32 whatever their type."""
        first, second = x_THK.chunk(2, -1)
        halves = first * self.cosine - second * self.sine, second * self.cosine + first * self.sine
        return torch.cat(halves, -1).to(x_THK.dtype)


def turns(positions_T: Tensor, *, head_width: int, base: float) -> Turns:
    """The turns of places whose positions, counted within each text, are these [T]."""
    steps = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions_T.device)
    frequencies = 1.0 / base ** (steps / head_width)  # [K/2]
    angles_T1K = (positions_T.float()[:, None] * frequencies)[:, None]
    return Turns(angles_T1K.cos(), angles_T1K.sin())
