"""GELU as Triton kernels: what the matrices around it want in eight bits, and its column sums, in the same pass.

See `activations.QuickGelu` for the numbers. T places, F inner width, tiles of M places and N columns.
"""

import triton
import triton.language as tl


@triton.jit
def _tails(x):
    """erfc(|x| / √2) and exp(-x² / 2)."""
    falling = tl.exp2(x * x * -0.7213475204444817)
    t = 1 / (1 + 0.23164188813 * tl.abs(x))
    found = 1.061405429 * t
    found = (found - 1.453152027) * t
    found = (found + 1.421413741) * t
    found = (found - 0.284496736) * t
    found = (found + 0.254829592) * t
    return found * falling, falling


@triton.jit
def _small(values, scale: tl.constexpr, most: tl.constexpr):
    """Values as eight bits take them: times the scale, held at the end of it."""
    return tl.minimum(tl.maximum(values * scale, -most), most)


@triton.jit
def gelu(x, y, small, size, scale: tl.constexpr, most: tl.constexpr, N: tl.constexpr, EIGHT: tl.constexpr):
    """GELU of N numbers, and once more in eight bits."""
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = at < size
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    above, _ = _tails(value)
    found = tl.maximum(value, 0.0) - 0.5 * tl.abs(value) * above
    tl.store(y + at, found.to(y.dtype.element_ty), mask=inside)
    if EIGHT:
        tl.store(small + at, _small(found, scale, most).to(small.dtype.element_ty), mask=inside)


@triton.jit
def gelu_back(
    back, x, gradient, small, sums, T,
    scale: tl.constexpr, most: tl.constexpr, F: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TURNS: tl.constexpr,
    EIGHT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient at M places TURNS times, and its sum over them in each of N columns."""
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
        above, falling = _tails(value)
        share = tl.where(value > 0, 1 - 0.5 * above, 0.5 * above)
        found = coming * (share + 0.3989422804014327 * value * falling)
        tl.store(gradient + at, found.to(gradient.dtype.element_ty), mask=inside)
        if EIGHT:
            tl.store(small + at, _small(found, scale, most).to(small.dtype.element_ty), mask=inside)
        total += found
    tl.store(sums + part * F + columns, tl.sum(total, 0), mask=columns < F)
