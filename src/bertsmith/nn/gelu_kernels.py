"""GELU as Triton kernels: what the matrices around it want in eight bits, and its column sums, in the same pass.

In eight bits everything is written twice, as it is and turned: products want what they add up side by side, which is a
row where activations go on and a column where weights get their gradients. The instruction that casts holds what is too
large at the end of the scale, and leaves no number none. See `activations.QuickGelu` for the numbers.
T places, W the next multiple of 16 (what is turned ends in zeros), F inner width, tiles of M places and N columns.
"""

import triton
import triton.language as tl


@triton.jit
def _tails(x):
    """erfc(|x| / √2) and exp(-x² / 2)."""
    falling = tl.exp2(x * x * -0.7213475204444817)
    t = tl.rsqrt(1 + 0.23164188813 * tl.abs(x))
    t *= t  # a quotient would take seven instructions
    found = 1.061405429 * t
    found = (found - 1.453152027) * t
    found = (found + 1.421413741) * t
    found = (found - 0.284496736) * t
    found = (found + 0.254829592) * t
    return found * falling, falling


@triton.jit
def _gelu(x):
    x = x.to(tl.float32)
    above, _ = _tails(x)
    return tl.maximum(x, 0.0) - 0.5 * tl.abs(x) * above


@triton.jit
def _slope(back, x):
    """What comes back times GELU's derivative."""
    above, falling = _tails(x)
    share = tl.where(x > 0, 1 - 0.5 * above, 0.5 * above)
    return back * (share + 0.3989422804014327 * x * falling)


@triton.jit
def _store_turned(turned, values, places, columns, W, F: tl.constexpr, EVEN: tl.constexpr):
    """Values [M, N] at [N, M] of `turned` [F, W]."""
    at = columns.to(tl.int64)[:, None] * W + places[None, :]
    inside = None if EVEN else (columns[:, None] < F) & (places[None, :] < W)
    tl.store(turned + at, tl.trans(values), mask=inside)


@triton.jit
def _turn_stored(stored, inside, turned, places, columns, W, F: tl.constexpr, EVEN: tl.constexpr):
    """What this block has just stored in eight bits, turned too.

    It is read again, from the cache: of numbers at hand the compiler would rather compute GELU twice than turn them, and
    ptxas 12.8 loses bytes that are stored side by side and used alone.
    """
    tl.debug_barrier()
    values = tl.load(stored, mask=inside, other=None if EVEN else 0.0)
    _store_turned(turned, values, places, columns, W, F, EVEN)


@triton.jit
def gelu(x, y, size, N: tl.constexpr):
    """GELU of N numbers."""
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = at < size
    tl.store(y + at, _gelu(tl.load(x + at, mask=inside, other=0.0)).to(y.dtype.element_ty), mask=inside)


@triton.jit
def gelu_eight(
    x, small, turned, T, W, scale: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """GELU of M places and N columns in eight bits, and that turned."""
    blocks: tl.constexpr = (F + N - 1) // N
    places = tl.program_id(0) // blocks * M + tl.arange(0, M)
    columns = tl.program_id(0) % blocks * N + tl.arange(0, N)
    at = places.to(tl.int64)[:, None] * F + columns[None, :]
    inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
    value = tl.load(x + at, mask=inside, other=None if EVEN else 0.0)
    found = (_gelu(value) * scale).to(small.dtype.element_ty)
    tl.store(small + at, found, mask=inside)
    _turn_stored(small + at, inside, turned, places, columns, W, F, EVEN)


@triton.jit
def gelu_back(
    back, x, gradient, turned, sums, T, W,
    scale: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TURNS: tl.constexpr,
    EVEN: tl.constexpr, EIGHT: tl.constexpr,
):  # fmt: skip
    """The gradient at M places TURNS times, and its sum over them in each of N columns; in eight bits turned too."""
    blocks: tl.constexpr = (F + N - 1) // N
    part = tl.program_id(0) // blocks
    columns = tl.program_id(0) % blocks * N + tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for turn in range(TURNS):
        places = (part * TURNS + turn) * M + tl.arange(0, M)
        at = places.to(tl.int64)[:, None] * F + columns[None, :]
        inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
        value = tl.load(x + at, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
        coming = tl.load(back + at, mask=inside, other=None if EVEN else 0.0).to(tl.float32)
        found = _slope(coming, value)
        total += found
        if EIGHT:
            small = (found * scale).to(gradient.dtype.element_ty)
            tl.store(gradient + at, small, mask=inside)
            _turn_stored(gradient + at, inside, turned, places, columns, W, F, EVEN)
        else:
            tl.store(gradient + at, found.to(gradient.dtype.element_ty), mask=inside)
    tl.store(sums + part * F + columns, tl.sum(total, 0), mask=columns < F)


@triton.jit
def turn(x, turned, T, W, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr):
    """Numbers [T, F] in eight bits as [F, W]."""
    blocks: tl.constexpr = (F + N - 1) // N
    places = tl.program_id(0) // blocks * M + tl.arange(0, M)
    columns = tl.program_id(0) % blocks * N + tl.arange(0, N)
    at = places.to(tl.int64)[:, None] * F + columns[None, :]
    inside = None if EVEN else (places[:, None] < T) & (columns[None, :] < F)
    found = tl.load(x + at, mask=inside, other=None if EVEN else 0.0)
    _store_turned(turned, found, places, columns, W, F, EVEN)
