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
        return turned(x_THK, self.cosine, self.sine)

    def both(self, qkv_T3HK: Tensor) -> Tensor:
        """Queries and keys turned, values as they are [T, 3, H, K]."""
        return turn_both(qkv_T3HK, self.cosine, self.sine)


def turned(x_THK: Tensor, cosine_T1K: Tensor, sine_T1K: Tensor) -> Tensor:
    """Points of planes [T, H, K], turned; see `Turns`."""
    first, second = x_THK.chunk(2, -1)
    halves = first * cosine_T1K - second * sine_T1K, second * cosine_T1K + first * sine_T1K
    return torch.cat(halves, -1).to(x_THK.dtype)


def turn_both(qkv_T3HK: Tensor, cosine_T1K: Tensor, sine_T1K: Tensor) -> Tensor:
    """Queries and keys turned, values as they are [T, 3, H, K]; their gradients with the sine's sign changed."""
    q_THK, k_THK, v_THK = qkv_T3HK.unbind(1)
    return torch.stack((turned(q_THK, cosine_T1K, sine_T1K), turned(k_THK, cosine_T1K, sine_T1K), v_THK), 1)


def turns(positions_T: Tensor, *, head_width: int, base: float) -> Turns:
    """The turns of places whose positions, counted within each text, are these [T]."""
    steps = torch.arange(0, head_width, 2, dtype=torch.float32, device=positions_T.device)
    frequencies = 1.0 / base ** (steps / head_width)  # [K/2]
    angles_T1K = (positions_T.float()[:, None] * frequencies)[:, None]
    return Turns(angles_T1K.cos(), angles_T1K.sin())
