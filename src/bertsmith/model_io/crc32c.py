"""CRC-32C (Castagnoli), as TensorFlow's checkpoints carry it: numpy over many lanes, about 0.2 GB/s on one core."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

POLYNOMIAL = 0x82F63B78  # bits reversed
LANES = 1 << 14
MASK_DELTA = 0xA282EAD8

Words = NDArray[np.uint32]


def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


TABLE = _byte_table()
PLAIN_TABLE = TABLE.tolist()


def crc32c(pieces: Iterable[bytes | memoryview]) -> int:
    """The checksum of all pieces, one after another."""
    state = 0xFFFFFFFF
    for piece in pieces:
        words = np.frombuffer(piece, "<u4", len(piece) // (4 * LANES) * LANES)
        if len(words):
            shifted = _apply(_zero_bytes(words.nbytes), np.array([state], np.uint32))
            state = int(shifted[0]) ^ _many_lanes(words.reshape(LANES, -1))
        for byte in piece[words.nbytes :]:
            state = PLAIN_TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def masked(checksum: int) -> int:
    """As LevelDB and TensorFlow store it, so that a checksum of data with checksums in it is no trouble."""
    return (((checksum >> 15) | (checksum << 17)) + MASK_DELTA) & 0xFFFFFFFF


def _many_lanes(words: Words) -> int:
    """The bare register after all rows [lanes, length], begun at 0: each row by itself, then rows joined in pairs."""
    states = np.zeros(LANES, np.uint32)
    for column in np.ascontiguousarray(words.T):
        states ^= column
        states = LOW_HALF.take(states & np.uint32(0xFFFF)) ^ HIGH_HALF.take(states >> np.uint32(16))
    length = 4 * words.shape[1]
    while len(states) > 1:
        states = _apply(_zero_bytes(length), states[0::2]) ^ states[1::2]
        length *= 2
    return int(states[0])


@lru_cache(maxsize=256)
def _zero_bytes(count: int) -> Words:
    """What `count` zero bytes do to a register: the images of its 32 bits, by squaring."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = TABLE[bits & np.uint32(0xFF)] ^ (bits >> np.uint32(8))
    result = bits
    while count:
        if count & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        count >>= 1
    return result


def _apply(images: Words, states: Words) -> Words:
    """A linear map, given by the images of the 32 bits, on each state."""
    found = np.zeros_like(states)
    for bit in range(32):
        found ^= np.where(states >> np.uint32(bit) & np.uint32(1), images[bit], np.uint32(0))
    return found


# What four zero bytes do to either half of a register: a word xored into it and both looked up are four bytes at once.
LOW_HALF = _apply(_zero_bytes(4), np.arange(1 << 16, dtype=np.uint32))
HIGH_HALF = _apply(_zero_bytes(4), np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))
