"""Random numbers and permutations that are functions of a key: the same in any batch, in any order, on any machine.

A number is drawn from (seed, purpose, counters), never from a generator's state. The mixing is that of
`bertsmith.nn.counter_random`, in numpy. Knows nothing of texts.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.data.packing.packing import Numbers

Mixed = NDArray[np.uint64]

ROUNDS = 6  # of the Feistel network

# splitmix64 (Steele, Lea and Flood 2014): the golden-ratio step and the finaliser's factors.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_SHIFTS = np.array([30, 27, 31], np.uint64)


def stream(seed: int, purpose: str) -> Mixed:
    """The key [1] of all numbers drawn for one purpose under one seed."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.frombuffer(digest[:8], "<u8").astype(np.uint64)


def mix(key: Mixed, *counters: ArrayLike) -> Mixed:
    """64 mixed bits for each tuple of counters (whole numbers that broadcast)."""
    state = key
    for counter in counters:
        state = _scramble((state ^ np.asarray(counter).astype(np.uint64)) + _GOLDEN)
    return state


def below(mixed: Mixed, limit: ArrayLike) -> Numbers:
    """Mixed bits as whole numbers in [0, limit). The first ones are likelier by limit / 2**64, which nobody can see."""
    return (mixed % np.asarray(limit).astype(np.uint64)).astype(np.int64)


def happens(mixed: Mixed, probability: float) -> NDArray[np.bool_]:
    """True with that probability."""
    found: NDArray[np.bool_] = (mixed >> np.uint64(11)) < np.uint64(round(probability * 2**53))
    return found


def permute(numbers: Numbers, limit: ArrayLike, key: Mixed) -> Numbers:
    """Where a permutation of [0, limit) sends each number; limit and key may differ from number to number.

    A Feistel network on a grid of at least `limit` cells; what lands outside walks on until it is inside again, which
    makes it a bijection (cycle walking: Black and Rogaway 2002).
    """
    limits = np.broadcast_to(np.asarray(limit, np.int64), numbers.shape)
    keys = np.broadcast_to(key, numbers.shape)
    found = _rounds(numbers, limits, keys)
    outside = np.flatnonzero(found >= limits)
    while len(outside):
        found[outside] = _rounds(found[outside], limits[outside], keys[outside])
        outside = outside[found[outside] >= limits[outside]]
    return found


def _rounds(numbers: Numbers, limits: Numbers, keys: Mixed) -> Numbers:
    heights = np.ceil(np.sqrt(limits)).astype(np.int64)
    widths = -(-limits // heights)
    row, column = np.divmod(numbers, widths)
    for number in range(0, ROUNDS, 2):
        row = (row + below(mix(keys, column + number * limits), heights)) % heights
        column = (column + below(mix(keys, row + (number + 1) * limits), widths)) % widths
    found: Numbers = row * widths + column
    return found


def _scramble(state: Mixed) -> Mixed:
    state = (state ^ (state >> _SHIFTS[0])) * _FIRST
    state = (state ^ (state >> _SHIFTS[1])) * _SECOND
    found: Mixed = state ^ (state >> _SHIFTS[2])
    return found
