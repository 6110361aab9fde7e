"""GELU as Triton kernels: what the matrices around it want in eight bits, and its column sums, in the same pass.

In eight bits everything is written twice, as it is and turned: products want what they add up side by side, which is a
row where activations go on and a column where weights get their gradients. The instruction that casts holds what is too
large at the end of the scale, and leaves no number none. See `activations.QuickGelu` for the numbers.
T places, W the next multiple of 16 (what is turned ends in zeros), F inner width, tiles of M places and N columns.
"""

import triton
import triton.language as tl


@triton.jit
def _tail(x, scale: tl.constexpr):
    """scale · erfc(|x| / √2) / 2e, and e = exp(-x² / 2)."""
    half: tl.constexpr = 0.5 * scale
    t = tl.rsqrt(1 + 0.23164188813 * tl.abs(x))
    t *= t  # a quotient would take seven instructions
    found = half * 1.061405429 * t - half * 1.453152027
    found = found * t + half * 1.421413741
    found = found * t - half * 0.284496736
    found = found * t + half * 0.254829592
    return found * t, tl.exp2(x * x * -0.7213475204444817)


@triton.jit
def _shares(x):
    """(1 ± tanh z) / 2 of z = √(2 / π) (x + 0.044715 x³)."""
    e = tl.exp2(tl.minimum(x * (x * x * -0.1029432395800235 - 2.302208198144325), 126.0))
    t = tl.rsqrt(1 + e)
    return t * t, e * (t * t)


@triton.jit
def _gelu(x, scale: tl.constexpr, TANH: tl.constexpr):
    """GELU times the scale."""
    x = x.to(tl.float32)
    if TANH:
        above, _ = _shares(x)
        return scale * x * above
    tail, e = _tail(x, scale)
    return tl.maximum(scale * x, 0.0) - tl.abs(x) * (tail * e)


@triton.jit
def _slope(x, scale: tl.constexpr, TANH: tl.constexpr):
    """GELU's derivative times the scale."""
    if TANH:
        above, below = _shares(x)
        rise = x * (x * x * 0.21406444881780076 + 1.5957691216057308)  # 2 x times z's derivative
        return scale * above * (1 + rise * below)
    tail, e = _tail(x, scale)
    below = e * (tail - 0.3989422804014327 * scale * tl.abs(x))
    return tl.where(x > 0, scale - below, below)


@triton.jit
def turn_stored(
    stored, turned, place, column, T, W, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr
):
    """Eight bits at M places and N columns of `stored` [T, F], from those given, also at theirs of `turned` [F, W].

    What a block has itself stored it reads again after a barrier, from the cache: of numbers at hand the compiler would
    rather compute GELU twice than turn them, and ptxas 12.8 loses bytes that are stored side by side and used alone.
    """
    places, columns = place + tl.arange(0, M), column + tl.arange(0, N)
    at = places.to(tl.int64)[:, None] * F + columns[None, :]
    inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
    values = tl.load(stored + at, mask=inside, other=None if EVEN else 0.0)
    at = columns.to(tl.int64)[:, None] * W + places[None, :]
    inside = None if EVEN else (columns[:, None] < F) & (places[None, :] < W)
    tl.store(turned + at, tl.trans(values), mask=inside)


@triton.jit
def gelu(x, y, size, N: tl.constexpr, TANH: tl.constexpr):
    """GELU of N numbers."""
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = at < size
    found = _gelu(tl.load(x + at, mask=inside, other=0.0), 1.0, TANH)
    tl.store(y + at, found.to(y.dtype.element_ty), mask=inside)


@triton.jit
def cast_eight(
    x, small, turned, T, W, scale: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    EVEN: tl.constexpr, GELU: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """Numbers at M places and N columns, or with GELU that of them, in eight bits, and that turned."""
    blocks: tl.constexpr = (F + N - 1) // N
    place, column = tl.program_id(0) // blocks * M, tl.program_id(0) % blocks * N
    places, columns = place + tl.arange(0, M), column + tl.arange(0, N)
    at = places.to(tl.int64)[:, None] * F + columns[None, :]
    inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
    value = tl.load(x + at, mask=inside, other=None if EVEN else 0.0)
    value = _gelu(value, scale, TANH) if GELU else value.to(tl.float32) * scale
    tl.store(small + at, value.to(small.dtype.element_ty), mask=inside)
    tl.debug_barrier()
    turn_stored(small, turned, place, column, T, W, F, M, N, EVEN)


@triton.jit
def gelu_back(
    back, x, gradient, turned, sums, T, W,
    scale: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TURNS: tl.constexpr,
    EVEN: tl.constexpr, EIGHT: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """The gradient at M places TURNS times, and its sum over them in each of N columns; in eight bits turned too."""
    blocks: tl.constexpr = (F + N - 1) // N
    part, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks * N
    columns = column + tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(TURNS):
        place = (part * TURNS + turn) * M
        places = place + tl.arange(0, M)
        at = places.to(tl.int64)[:, None] * F + columns[None, :]
        inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
        value = tl.load(x + at, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
        coming = tl.load(back + at, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
        found = coming * _slope(value, scale, TANH)
        total += found
        tl.store(gradient + at, found.to(gradient.dtype.element_ty), mask=inside)
        if EIGHT:
            tl.debug_barrier()
            turn_stored(gradient, turned, place, column, T, W, F, M, N, EVEN)
    tl.store(sums + part * F + columns, tl.sum(total, 0) * (1 / scale), mask=columns < F)


@triton.jit
def turn(x, turned, T, W, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr):
    """Numbers [T, F] in eight bits as [F, W]."""
    blocks: tl.constexpr = (F + N - 1) // N
    turn_stored(x, turned, tl.program_id(0) // blocks * M, tl.program_id(0) % blocks * N, T, W, F, M, N, EVEN)
