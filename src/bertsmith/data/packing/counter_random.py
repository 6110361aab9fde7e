"""Counter-based random numbers and permutations: functions of (seed, purpose, counters), without a generator's state.

They are the same in any batch, in any order and on any machine. The bits are those of `bertsmith.nn.counter_random`.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.data.packing.packing import Numbers

Bits = NDArray[np.uint64]

ROUNDS = 6  # of the Feistel network

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio increment and the finaliser's shifts and factors.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FINALIZER = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


def stream_key(seed: int, purpose: str) -> Bits:
    """The key [1] of all numbers drawn for one purpose under one seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.frombuffer(digest[:8], "<u8").astype(np.uint64)


def mix_counters(key: Bits, *counters: ArrayLike) -> Bits:
    """64 random bits for each tuple of counters (integers that broadcast)."""
    state = key
    for counter in counters:
        state = (state ^ np.asarray(counter).astype(np.uint64)) + _GOLDEN
        for shift, factor in _FINALIZER:
            state = (state ^ (state >> shift)) * factor
        state = state ^ (state >> _LAST_SHIFT)
    return state


def to_range(bits: Bits, limit: ArrayLike) -> Numbers:
    """Random bits as integers in [0, limit); the modulo bias is limit / 2**64."""
    return (bits % np.asarray(limit).astype(np.uint64)).astype(np.int64)


def bernoulli(bits: Bits, probability: float) -> NDArray[np.bool_]:
    """True with that probability."""
    result: NDArray[np.bool_] = (bits >> np.uint64(11)) < np.uint64(round(probability * 2**53))
    return result


def permute(numbers: Numbers, limit: ArrayLike, key: Bits) -> Numbers:
    """The image of each number under a random permutation of [0, limit); limit and key may differ per number.

    A Feistel network on a grid of at least `limit` cells; images outside the range are permuted again until they are
    inside, which keeps it a bijection (cycle walking: Black and Rogaway 2002).
    """
    limits = np.broadcast_to(np.asarray(limit, np.int64), numbers.shape)
    keys = np.broadcast_to(key, numbers.shape)
    result = _feistel(numbers, limits, keys)
    outside = np.flatnonzero(result >= limits)
    while len(outside):
        result[outside] = _feistel(result[outside], limits[outside], keys[outside])
        outside = outside[result[outside] >= limits[outside]]
    return result


def _feistel(numbers: Numbers, limits: Numbers, keys: Bits) -> Numbers:
    heights = np.ceil(np.sqrt(limits)).astype(np.int64)
    widths = -(-limits // heights)
    row, column = np.divmod(numbers, widths)
    for number in range(0, ROUNDS, 2):
        row = (row + to_range(mix_counters(keys, column + number * limits), heights)) % heights
        column = (column + to_range(mix_counters(keys, row + (number + 1) * limits), widths)) % widths
    result: Numbers = row * widths + column
    return result
