"""Windows over texts that are longer than a row."""

from __future__ import annotations

from itertools import pairwise


def token_windows(tokens: int, *, size: int, overlap: int) -> list[tuple[int, int, int]]:
    """Windows over a number of tokens: start of the window, and start and end of the tokens that are read in it.

    All windows are full and evenly spaced; neighbours share at least `overlap` tokens, or half a window if less.
    A token is read in the window with the nearest centre, where the smaller of its left and right context is largest.
    """
    if tokens <= size:
        return [(0, 0, tokens)]
    step = size - min(overlap, size // 2)
    last = -(-(tokens - size) // step)
    begins = [index * (tokens - size) // last for index in range(last + 1)]
    borders = [0, *((a + b + size) // 2 for a, b in pairwise(begins)), tokens]
    return list(zip(begins, borders, borders[1:], strict=False))
