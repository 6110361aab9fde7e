"""Random numbers that are a function of what they are for: the same on every device, in any batch, in any order.

A number is drawn from (seed, purpose, epoch, sample, place), never from a generator's state. All arithmetic is on whole
numbers of 64 bits that wrap round, so CPU and GPU give the same bits. Knows nothing of masks or batches.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

BITS = 31  # of a drawn number: its product with another of 31 bits still fits
WHOLE = 1 << BITS


def stream(seed: int, purpose: str) -> int:
    """The key of all numbers drawn for one purpose under one seed, as a signed 64-bit number."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def draw(key: int, first: Tensor, *others: Tensor) -> Tensor:
    """Numbers below 2**31, one for each tuple of counters (int64 tensors that broadcast)."""
    return _shift(mix(key, first, *others), 64 - BITS)


def mix(key: int, first: Tensor, *others: Tensor) -> Tensor:
    """64 mixed bits for each tuple of counters, as int64."""
    state = torch.full((), key, dtype=torch.int64, device=first.device)
    for counter in (first, *others):
        state = _scramble((state ^ counter) + _GOLDEN)
    return state


def below(drawn: Tensor, limit: int) -> Tensor:
    """Drawn numbers as whole numbers in [0, limit)."""
    assert 0 < limit <= WHOLE, limit
    return (drawn * limit) >> BITS


def gumbel(drawn: Tensor) -> Tensor:
    """Drawn numbers as standard Gumbel noise in float32: the same on every device but for the rounding of logarithms.

    -log(-log(1 - u)): large noise, which decides, comes from small u, of which float32 has all digits.
    """
    uniform = (drawn.float() + 0.5) / WHOLE  # over 0; where it rounds to 1 the noise is -inf, and never the largest
    return -torch.log(-torch.log1p(-uniform))


def share(probability: float) -> int:
    """A probability as the number that `draw` stays below with just that probability."""
    return round(probability * WHOLE)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the finaliser's factors.
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _scramble(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, places: int) -> Tensor:
    """A shift to the right that brings in zeros: torch's own copies the sign."""
    return (state >> places) & ((1 << (64 - places)) - 1)
