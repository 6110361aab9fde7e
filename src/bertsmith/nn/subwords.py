"""Character n-grams of words, hashed into the rows of a table (Bojanowski et al. 2017, fastText), by tensor operations.

N words, C bytes with their marks, P = C positions of characters (code points), O sizes of n-grams, X n-grams in all.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.nn.counter_random import mix_counters

BASE = 1_000_003  # of the polynomial hash; odd, so that it has an inverse modulo 2**64
PADDING = 260  # see tokenizers.spelling
KEY = 0x5D  # of the finalizer


def ngram_rows(characters_NC: Tensor, *, smallest: int, largest: int, buckets: int) -> tuple[Tensor, Tensor]:
    """The rows [X] of the n-grams of all words, word by word, and how many each word has [N].

    An n-gram is a run of `smallest` to `largest` characters, the begin and end marks of the word included. An empty
    word has none.
    """
    characters = characters_NC.long()
    begins = (characters & 0xC0 != 0x80) | (characters > 0xFF)  # bytes that begin a code point, and marks
    begins &= characters != PADDING
    prefix_NC1 = _prefix_hashes(characters)
    size_N = begins.sum(1)
    width = characters.shape[1]
    # [N, C] the byte where each character begins; the end of the word for those that it does not have
    rank = torch.where(begins, begins.long().cumsum(1) - 1, width)
    end_N = (characters != PADDING).sum(1)
    starts = end_N[:, None].repeat(1, width + largest + 1)
    byte_indices = torch.arange(width, device=characters.device).expand_as(rank)
    starts = _scatter(starts, rank, byte_indices)
    powers = _powers(width + 1, characters.device)
    first = starts[:, :width]
    hashes, valid = [], []
    for size in range(smallest, largest + 1):
        last = starts[:, size : size + width]
        span = (prefix_NC1.gather(1, last) - prefix_NC1.gather(1, first) * powers[last - first]).contiguous()
        index = torch.arange(width, device=characters.device)
        fits = (index + size <= size_N[:, None]) & (size_N > 2)[:, None]
        hashes.append(span)
        valid.append(fits)
    hash_NOP, valid_NOP = torch.stack(hashes, 1), torch.stack(valid, 1)
    rows = (mix_counters(KEY, hash_NOP) & ((1 << 62) - 1)) % buckets
    return rows[valid_NOP], valid_NOP.sum((1, 2))


def word_hashes(characters_NC: Tensor) -> Tensor:
    """A hash of each word [N] int64, whatever the padding."""
    characters = characters_NC.long()
    prefix = _prefix_hashes(characters)
    return mix_counters(KEY, prefix.gather(1, (characters != PADDING).sum(1)[:, None])[:, 0])


def _prefix_hashes(characters_NC: Tensor) -> Tensor:
    """The hash of the first 0, 1, ... C bytes [N, C + 1]: h(c0 ... ck) = h(c0 ... ck-1) · BASE + ck + 1."""
    # by a sum of (ck + 1) · BASE**-k, times BASE**k: all modulo 2**64
    width = characters_NC.shape[1]
    powers, inverses = _powers(width + 1, characters_NC.device), _powers(width + 1, characters_NC.device, _inverse())
    sums = ((characters_NC + 1) * inverses[1:]).cumsum(1)
    return torch.nn.functional.pad(sums, (1, 0)) * powers


def _powers(count: int, device: torch.device, base: int = BASE) -> Tensor:
    """base**0, base**1, ... modulo 2**64."""
    factors = torch.full((count,), base, dtype=torch.int64, device=device)
    factors[0] = 1
    return factors.cumprod(0)


def _inverse() -> int:
    number = pow(BASE, -1, 1 << 64)
    return number - (1 << 64) if number >= 1 << 63 else number


def _scatter(target: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Values at their indices of each row; those with the index C, which no character has, are dropped."""
    width = values.shape[1]
    spare = torch.cat([target, target[:, :1]], 1)
    index = torch.where(index == width, target.shape[1], index)
    return spare.scatter(1, index, values)[:, :-1]
