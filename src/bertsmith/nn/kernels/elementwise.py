"""GELU, rotary embeddings and casts to FP8: Triton kernels and the torch operations that call them.

A kernel writes FP8 values twice, as they are and transposed: a matrix product needs the values that it sums to be
contiguous, which is a row of the activations for outputs and a column for gradients of weights. Transposed rows are
padded with zeros to W tokens. The cast instruction saturates and keeps NaN. See `activations.QuickGelu` for the
approximation of GELU. T tokens, W the next multiple of 16, F columns, H heads, K head width, tiles of BLOCK_M tokens
and BLOCK_N columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

# the fastest of 8 and 14 tilings on an H200 for a width of 3,072
GELU_TILES = {"BLOCK_N": 4096, "num_warps": 8}
GELU_BACKWARD_TILES = {"BLOCK_M": 8, "BLOCK_N": 128, "REPEATS": 8, "num_warps": 2}
# in FP8, where tiles are also written transposed
GELU_FP8_TILES = {"BLOCK_M": 64, "BLOCK_N": 128, "num_warps": 4}
GELU_BACKWARD_FP8_TILES = {"BLOCK_M": 64, "BLOCK_N": 128, "REPEATS": 1, "num_warps": 4}
TRANSPOSE_TILES = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 4}
CAST_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4}
ROTARY_TILES = {"BLOCK_M": 64, "num_warps": 4}  # heads of tokens
ROTARY_BACKWARD_TILES = {"BLOCK_M": 64, "num_warps": 4}  # tokens of one head
MULTIPLE = 16  # of the padded number of tokens


@triton.jit
def _erfc_tail(x, scale: tl.constexpr):
    """scale · erfc(|x| / √2) / 2e, and e = exp(-x² / 2)."""
    half: tl.constexpr = 0.5 * scale
    t = tl.rsqrt(1 + 0.23164188813 * tl.abs(x))
    t *= t  # a division would take seven instructions
    tail = half * 1.061405429 * t - half * 1.453152027
    tail = tail * t + half * 1.421413741
    tail = tail * t - half * 0.284496736
    tail = tail * t + half * 0.254829592
    return tail * t, tl.exp2(x * x * -0.7213475204444817)


@triton.jit
def _tanh_halves(x):
    """(1 ± tanh z) / 2 of z = √(2 / π) (x + 0.044715 x³)."""
    e = tl.exp2(tl.minimum(x * (x * x * -0.1029432395800235 - 2.302208198144325), 126.0))
    t = tl.rsqrt(1 + e)
    return t * t, e * (t * t)


@triton.jit
def _gelu(x, scale: tl.constexpr, TANH: tl.constexpr):
    """GELU times the scale."""
    x = x.to(tl.float32)
    if TANH:
        above, _ = _tanh_halves(x)
        return scale * x * above
    tail, e = _erfc_tail(x, scale)
    return tl.maximum(scale * x, 0.0) - tl.abs(x) * (tail * e)


@triton.jit
def _gelu_derivative(x, scale: tl.constexpr, TANH: tl.constexpr):
    """GELU's derivative times the scale."""
    if TANH:
        above, below = _tanh_halves(x)
        slope = x * (x * x * 0.21406444881780076 + 1.5957691216057308)  # 2 x times the derivative of z
        return scale * above * (1 + slope * below)
    tail, e = _erfc_tail(x, scale)
    below = e * (tail - 0.3989422804014327 * scale * tl.abs(x))
    return tl.where(x > 0, scale - below, below)


@triton.jit
def transpose_tile(
    stored, transposed, token, column, T, W, F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """Copies a tile of FP8 values `stored` [T, F] to `transposed` [F, W].

    A program reads back what it has stored itself, after a barrier, from the cache: with values in registers the
    compiler computes GELU twice instead of transposing, and ptxas 12.8 loses bytes that are stored together and used
    separately.
    """
    tokens, columns = token + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    offsets = tokens.to(tl.int64)[:, None] * F + columns[None, :]
    mask = None if EVEN else (tokens[:, None] < T) & (columns[None, :] < F)
    values = tl.load(stored + offsets, mask=mask, other=None if EVEN else 0.0)
    offsets = columns.to(tl.int64)[:, None] * W + tokens[None, :]
    mask = None if EVEN else (columns[:, None] < F) & (tokens[None, :] < W)
    tl.store(transposed + offsets, tl.trans(values), mask=mask)


@triton.jit
def gelu_kernel(x, y, size, BLOCK_N: tl.constexpr, TANH: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = offsets < size
    value = _gelu(tl.load(x + offsets, mask=mask, other=0.0), 1.0, TANH)
    tl.store(y + offsets, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def cast_kernel(
    x, quantized, transposed, T, W, scale: tl.constexpr, F: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, EVEN: tl.constexpr, GELU: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """A tile, or GELU of it, in FP8, as it is and transposed."""
    blocks: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    token, column = tl.program_id(0) // blocks * BLOCK_M, tl.program_id(0) % blocks * BLOCK_N
    tokens, columns = token + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
    offsets = tokens.to(tl.int64)[:, None] * F + columns[None, :]
    mask = None if EVEN else (tokens[:, None] < T) & (columns[None, :] < F)
    value = tl.load(x + offsets, mask=mask, other=None if EVEN else 0.0)
    value = _gelu(value, scale, TANH) if GELU else value.to(tl.float32) * scale
    tl.store(quantized + offsets, value.to(quantized.dtype.element_ty), mask=mask)
    tl.debug_barrier()
    transpose_tile(quantized, transposed, token, column, T, W, F, BLOCK_M, BLOCK_N, EVEN)


@triton.jit
def gelu_backward_kernel(
    dy, x, dx, transposed, column_sums, T, W, scale: tl.constexpr, F: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, REPEATS: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    """The gradient of REPEATS tiles below each other and their column sums; in FP8 also transposed."""
    blocks: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    part, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_N
    columns = column + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(REPEATS):
        token = (part * REPEATS + i) * BLOCK_M
        tokens = token + tl.arange(0, BLOCK_M)
        offsets = tokens.to(tl.int64)[:, None] * F + columns[None, :]
        mask = None if EVEN else (tokens[:, None] < T) & (columns[None, :] < F)
        value = tl.load(x + offsets, mask=mask, other=None if EVEN else 0.0).to(tl.float32)
        gradient = tl.load(dy + offsets, mask=mask, other=None if EVEN else 0.0).to(tl.float32)
        gradient = gradient * _gelu_derivative(value, scale, TANH)
        total += gradient
        tl.store(dx + offsets, gradient.to(dx.dtype.element_ty), mask=mask)
        if FP8:
            tl.debug_barrier()
            transpose_tile(dx, transposed, token, column, T, W, F, BLOCK_M, BLOCK_N, EVEN)
    tl.store(column_sums + part * F + columns, tl.sum(total, 0) * (1 / scale), mask=columns < F)


@triton.jit
def transpose_kernel(
    x, transposed, T, W, F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr
):
    blocks: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    token, column = tl.program_id(0) // blocks * BLOCK_M, tl.program_id(0) % blocks * BLOCK_N
    transpose_tile(x, transposed, token, column, T, W, F, BLOCK_M, BLOCK_N, EVEN)


@triton.jit
def rotary_kernel(
    qkv, out, cos, sin, size, sign: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Rotates BLOCK_M of the `size` = T·H heads of queries and keys by `sign` times the angles, and copies values."""
    number = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask, token, half = (number < size)[:, None], (number // H).to(tl.int64)[:, None], tl.arange(0, K // 2)[None, :]
    c = tl.load(cos + token * (K // 2) + half, mask=mask, other=0.0)
    s = tl.load(sin + token * (K // 2) + half, mask=mask, other=0.0) * sign
    for part in tl.static_range(3):
        offsets = token * (3 * H * K) + (part * H + number % H)[:, None] * K + half
        first = tl.load(qkv + offsets, mask=mask, other=0.0)
        second = tl.load(qkv + offsets + K // 2, mask=mask, other=0.0)
        if part < 2:
            x, y = first.to(tl.float32), second.to(tl.float32)
            first, second = x * c - y * s, y * c + x * s
        tl.store(out + offsets, first.to(out.dtype.element_ty), mask=mask)
        tl.store(out + offsets + K // 2, second.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rotary_backward_fp8_kernel(
    dqkv, cos, sin, quantized, transposed, column_sums, T, W, scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Rotates gradients of BLOCK_M tokens of one head's queries, keys or values back; FP8, transposed, column sums."""
    column, part = tl.program_id(0) % (3 * H) * K, tl.program_id(0) // (3 * H)
    tokens, half = part * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, K // 2)
    mask = None if EVEN else tokens[:, None] < T
    offsets = tokens.to(tl.int64)[:, None] * (3 * H * K) + column + half[None, :]
    x = tl.load(dqkv + offsets, mask=mask, other=None if EVEN else 0.0).to(tl.float32)
    y = tl.load(dqkv + offsets + K // 2, mask=mask, other=None if EVEN else 0.0).to(tl.float32)
    if column < 2 * H * K:
        angle = tokens.to(tl.int64)[:, None] * (K // 2) + half[None, :]
        c = tl.load(cos + angle, mask=mask, other=None if EVEN else 0.0)
        s = tl.load(sin + angle, mask=mask, other=None if EVEN else 0.0)
        x, y = x * c + y * s, y * c - x * s
    tl.store(quantized + offsets, (x * scale).to(quantized.dtype.element_ty), mask=mask)
    tl.store(quantized + offsets + K // 2, (y * scale).to(quantized.dtype.element_ty), mask=mask)
    tl.store(column_sums + part * (3 * H * K) + column + half, tl.sum(x, 0))
    tl.store(column_sums + part * (3 * H * K) + column + K // 2 + half, tl.sum(y, 0))
    tl.debug_barrier()
    transpose_tile(quantized, transposed, part * BLOCK_M, column, T, W, 3 * H * K, BLOCK_M, K, EVEN)


@triton_op("bertsmith::gelu", mutates_args=())
def _gelu_forward(x: Tensor, tanh: bool) -> Tensor:
    y = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), GELU_TILES["BLOCK_N"]),)
    wrap_triton(gelu_kernel)[grid](x, y, x.numel(), TANH=tanh, **GELU_TILES)
    return y


@triton_op("bertsmith::gelu_backward", mutates_args=())
def _gelu_backward(dy: Tensor, x: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    dx, column_sums = torch.empty_like(x), _empty_sums(x, GELU_BACKWARD_TILES)
    _launch_gelu_backward(dx, dx, column_sums, dy, x, 1.0, tanh, GELU_BACKWARD_TILES)
    return dx, column_sums


@triton_op("bertsmith::gelu_fp8", mutates_args=())
def gelu_fp8(x: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor]:
    """GELU times the scale in e4m3 [T, F], and transposed [F, W]."""
    return _cast(wrap_triton(cast_kernel), x, scale, GELU_FP8_TILES, GELU=True, TANH=tanh)


def cast_fp8(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Values times the scale in e4m3 [T, F], and transposed [F, W]; opaque to the compiler."""
    return _cast(cast_kernel, x, scale, CAST_TILES, GELU=False, TANH=False)


def _cast(kernel: Any, x: Tensor, scale: float, tiles: dict[str, int], **flags: bool) -> tuple[Tensor, Tensor]:
    quantized = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    transposed = empty_transposed(quantized)
    kernel[_grid(x, tiles)](
        x, quantized, transposed, x.shape[0], transposed.shape[1], scale=scale, F=x.shape[1],
        EVEN=_is_even(x, tiles), **flags, **tiles,
    )  # fmt: skip
    return quantized, transposed


@triton_op("bertsmith::gelu_backward_fp8", mutates_args=())
def gelu_backward_fp8(dy: Tensor, x: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient times the scale in e5m2 [T, F], transposed [F, W], and its sums over parts of T [P, F]."""
    dx = torch.empty_like(x, dtype=torch.float8_e5m2)
    transposed, column_sums = empty_transposed(dx), _empty_sums(x, GELU_BACKWARD_FP8_TILES)
    _launch_gelu_backward(dx, transposed, column_sums, dy, x, scale, tanh, GELU_BACKWARD_FP8_TILES)
    return dx, transposed, column_sums


def _launch_gelu_backward(
    dx: Tensor, transposed: Tensor, column_sums: Tensor, dy: Tensor, x: Tensor, scale: float, tanh: bool,
    tiles: dict[str, int],
) -> None:  # fmt: skip
    wrap_triton(gelu_backward_kernel)[_grid(x, tiles)](
        dy, x, dx, transposed, column_sums, x.shape[0], transposed.shape[1], scale=scale, F=x.shape[1],
        EVEN=_is_even(x, tiles), FP8=dx.dtype.itemsize == 1, TANH=tanh, **tiles,
    )  # fmt: skip


@triton_op("bertsmith::transpose_fp8", mutates_args=())
def transpose_fp8(quantized: Tensor) -> Tensor:
    """FP8 values [T, F], transposed [F, W]."""
    transposed = empty_transposed(quantized)
    wrap_triton(transpose_kernel)[_grid(quantized, TRANSPOSE_TILES)](
        quantized, transposed, quantized.shape[0], transposed.shape[1], F=quantized.shape[1],
        EVEN=_is_even(quantized, TRANSPOSE_TILES), **TRANSPOSE_TILES,
    )  # fmt: skip
    return transposed


def empty_transposed(quantized: Tensor) -> Tensor:
    """Memory for the transpose [F, W] of FP8 values [T, F]."""
    tokens, width = quantized.shape
    return quantized.new_empty(width, triton.cdiv(tokens, MULTIPLE) * MULTIPLE)


def _empty_sums(x: Tensor, tiles: dict[str, int]) -> Tensor:
    return x.new_empty(triton.cdiv(x.shape[0], tiles["BLOCK_M"] * tiles["REPEATS"]), x.shape[1], dtype=torch.float32)


def _grid(x: Tensor, tiles: dict[str, int]) -> tuple[int]:
    rows = tiles["BLOCK_M"] * tiles.get("REPEATS", 1)
    return (triton.cdiv(x.shape[0], rows) * triton.cdiv(x.shape[1], tiles["BLOCK_N"]),)


def _is_even(x: Tensor, tiles: dict[str, int]) -> bool:
    return x.shape[0] % (tiles["BLOCK_M"] * tiles.get("REPEATS", 1)) == 0 and x.shape[1] % tiles["BLOCK_N"] == 0


class _BiasedGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, bias_F: Tensor, tanh: bool) -> Tensor:
        ctx.save_for_backward(x_TF)
        ctx.dtype, ctx.tanh = bias_F.dtype, tanh
        return _gelu_forward(x_TF, tanh)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        dx_TF, sums_PF = _gelu_backward(gradients[0].contiguous(), *ctx.saved_tensors, ctx.tanh)
        return dx_TF, sums_PF.sum(0).to(ctx.dtype), None


def biased_gelu(x_TF: Tensor, bias_F: Tensor, tanh: bool = False) -> Tensor:
    """GELU of `x`, to which the bias was already added, detached.

    The bias gets its gradient here, because the column sums cost no further pass over the gradient.
    """
    y_TF: Tensor = _BiasedGelu.apply(x_TF, bias_F, tanh)
    return y_TF


@triton_op("bertsmith::rotate_qk", mutates_args=())
def rotate_qk(qkv: Tensor, cos: Tensor, sin: Tensor, sign: float = 1.0) -> Tensor:
    """Queries and keys rotated by `sign` times the angles [T, 1, K/2], values as they are [T, 3, H, K]."""
    tokens, _, heads, width = qkv.shape
    out = torch.empty_like(qkv)
    wrap_triton(rotary_kernel)[(triton.cdiv(tokens * heads, ROTARY_TILES["BLOCK_M"]),)](
        qkv, out, cos, sin, tokens * heads, sign=sign, H=heads, K=width, **ROTARY_TILES
    )
    return out


def _save_angles(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.sign = inputs
    ctx.save_for_backward(cos, sin)


def _rotate_back(ctx: Any, dqkv: Tensor) -> tuple[Tensor, None, None, None]:
    return rotate_qk(dqkv.contiguous(), *ctx.saved_tensors, -ctx.sign), None, None, None


rotate_qk.register_autograd(_rotate_back, setup_context=_save_angles)


@triton_op("bertsmith::rotary_backward_fp8", mutates_args=())
def rotary_backward_fp8(dqkv: Tensor, cos: Tensor, sin: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of `rotate_qk` times the scale in e5m2 [T, 3HK], transposed [3HK, W]; its sums over parts of T."""
    tokens, _, heads, width = dqkv.shape
    quantized = dqkv.new_empty(tokens, 3 * heads * width, dtype=torch.float8_e5m2)
    transposed, parts = empty_transposed(quantized), triton.cdiv(tokens, ROTARY_BACKWARD_TILES["BLOCK_M"])
    column_sums = dqkv.new_empty(parts, 3 * heads * width, dtype=torch.float32)
    wrap_triton(rotary_backward_fp8_kernel)[(parts * 3 * heads,)](
        dqkv, cos, sin, quantized, transposed, column_sums, T=tokens, W=transposed.shape[1], scale=scale, H=heads,
        K=width, EVEN=tokens % ROTARY_BACKWARD_TILES["BLOCK_M"] == 0, **ROTARY_BACKWARD_TILES,
    )  # fmt: skip
    return quantized, transposed, column_sums
