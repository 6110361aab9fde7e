"""Counter-based random numbers: a function of (seed, purpose, epoch, sample, position), without generator state.

They are the same on every device, in any batch and in any order. All arithmetic is on 64-bit integers that wrap around,
so CPU and GPU give the same bits.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

BITS = 31  # of a random number: the product of two still fits into 64 bits
RANGE = 1 << BITS


def stream_key(seed: int, purpose: str) -> int:
    """The key of all numbers drawn for one purpose under one seed, as a signed 64-bit integer."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def random_bits(key: int, first: Tensor, *others: Tensor) -> Tensor:
    """Random numbers below 2**31, one for each tuple of counters (int64 tensors that broadcast)."""
    return _logical_shift(mix_counters(key, first, *others), 64 - BITS)


def mix_counters(key: int, first: Tensor, *others: Tensor) -> Tensor:
    """64 random bits for each tuple of counters, as int64."""
    state = torch.full((), key, dtype=torch.int64, device=first.device)
    for counter in (first, *others):
        state = _finalize((state ^ counter) + _GOLDEN)
    return state


def to_range(bits: Tensor, limit: int) -> Tensor:
    """Random bits as integers in [0, limit)."""
    assert 0 < limit <= RANGE, limit
    return (bits * limit) >> BITS


def gumbel(bits: Tensor) -> Tensor:
    """Random bits as standard Gumbel noise in float32; devices differ only in the rounding of logarithms.

    -log(-log(1 - u)): the largest values, which decide an argmax, come from small u, where float32 is exact.
    """
    uniform = (bits.float() + 0.5) / RANGE  # above 0; where it rounds to 1 the noise is -inf and never the maximum
    return -torch.log(-torch.log1p(-uniform))


def threshold(probability: float) -> int:
    """The number below which `random_bits` falls with that probability."""
    return round(probability * RANGE)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio increment and the multipliers of the finalizer
_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _finalize(state: Tensor) -> Tensor:
    state = (state ^ _logical_shift(state, 30)) * _FIRST
    state = (state ^ _logical_shift(state, 27)) * _SECOND
    return state ^ _logical_shift(state, 31)


def _logical_shift(state: Tensor, bits: int) -> Tensor:
    """A right shift that fills with zeros; torch's `>>` extends the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
