"""Positions' turns of queries and keys as Triton kernels; see `rotary.RotaryEmbedding`.

T flat places, W the next multiple of 16, H heads, K head width.
"""

import triton
import triton.language as tl

from bertsmith.nn.gelu_kernels import turn_stored


@triton.jit
def turn_both(
    qkv, found, cosine, sine, size, sign: tl.constexpr, H: tl.constexpr, K: tl.constexpr, M: tl.constexpr
):  # fmt: skip
    """Queries and keys of M heads, of `size` at all places, turned by so many times the angle; values as they are."""
    number = tl.program_id(0) * M + tl.arange(0, M)
    inside, place, half = (number < size)[:, None], (number // H).to(tl.int64)[:, None], tl.arange(0, K // 2)[None, :]
    c = tl.load(cosine + place * (K // 2) + half, mask=inside, other=0.0)
    s = tl.load(sine + place * (K // 2) + half, mask=inside, other=0.0) * sign
    for part in tl.static_range(3):
        at = place * (3 * H * K) + (part * H + number % H)[:, None] * K + half
        first, second = tl.load(qkv + at, mask=inside, other=0.0), tl.load(qkv + at + K // 2, mask=inside, other=0.0)
        if part < 2:
            one, other = first.to(tl.float32), second.to(tl.float32)
            first, second = one * c - other * s, other * c + one * s
        tl.store(found + at, first.to(found.dtype.element_ty), mask=inside)
        tl.store(found + at + K // 2, second.to(found.dtype.element_ty), mask=inside)


@triton.jit
def back_eight(
    back, cosine, sine, small, turned, sums, T, W, scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    M: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of what was turned, at M places of one head's queries, keys or values, as those of what it was before.

    In eight bits, as it is and over the diagonal; and its column sums.
    """
    column, part = tl.program_id(0) % (3 * H) * K, tl.program_id(0) // (3 * H)
    places, half = part * M + tl.arange(0, M), tl.arange(0, K // 2)
    inside = None if EVEN else places[:, None] < T
    at = places.to(tl.int64)[:, None] * (3 * H * K) + column + half[None, :]
    one = tl.load(back + at, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
    other = tl.load(back + at + K // 2, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
    if column < 2 * H * K:
        angle = places.to(tl.int64)[:, None] * (K // 2) + half[None, :]
        c = tl.load(cosine + angle, mask=inside, other=None if EVEN else 0.0)
        s = tl.load(sine + angle, mask=inside, other=None if EVEN else 0.0)
        one, other = one * c + other * s, other * c - one * s
    tl.store(small + at, (one * scale).to(small.dtype.element_ty), mask=inside)
    tl.store(small + at + K // 2, (other * scale).to(small.dtype.element_ty), mask=inside)
    tl.store(sums + part * (3 * H * K) + column + half, tl.sum(one, 0))
    tl.store(sums + part * (3 * H * K) + column + K // 2 + half, tl.sum(other, 0))
    tl.debug_barrier()
    turn_stored(small, turned, part * M, column, T, W, 3 * H * K, M, K, EVEN)
