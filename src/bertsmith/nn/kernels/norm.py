"""Residual addition, dropout and LayerNorm with FP8 outputs: Triton kernels and the torch operations that call them.

total = x + dropout(y), where x is the residual stream and y the output of a sub-layer; then LayerNorm(total) in FP8,
as it is and transposed, for the next matrix products. LayerNorm(total) itself is not written: the next kernel
recomputes it from the total, its mean and its reciprocal standard deviation (NORMED). Backward sums up the gradients of
weight, bias and y in the same pass.

Instructions are the limit, not memory: a row is processed as two blocks of A and B columns, powers of two, so that
widths such as 768 leave no lanes idle. B may be 0; then A may exceed the width. T tokens, W the next multiple of 16
(see `elementwise`), D width; tiles of BLOCK_M tokens, ROWS at a time, transposed BLOCK_N columns at a time. EVEN: no
tile is partial. UNMASKED: in addition no block exceeds the width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn.dropout import keep_threshold
from bertsmith.nn.kernels.elementwise import MULTIPLE, empty_transposed, transpose_tile

# the fastest of 37 on an H200 for 768 columns, forward and backward: a program of one warp needs no synchronisation
TILES = {"BLOCK_M": 64, "ROWS": 1, "BLOCK_N": 64, "STAGES": 3}
MAX_COLUMNS = 768  # that fit into the registers of a warp
PROGRAMS = 8  # of that many columns fit into the registers of a multiprocessor


@triton.jit
def _offsets(tokens, columns, D: tl.constexpr):
    return tokens.to(tl.int64)[:, None] * D + columns[None, :]


@triton.jit
def _kept(token_random, column_random, tokens, columns, T, threshold: tl.constexpr, D: tl.constexpr):
    """Which values dropout keeps: see `dropout.drop`."""
    by_token = tl.load(token_random + tokens, mask=tokens < T, other=0)
    by_column = tl.load(column_random + columns, mask=columns < D, other=0)
    return by_token[:, None] * by_column[None, :] >= threshold


@triton.jit
def _load_sum(
    x, y, token_random, column_random, x_rstd, x_shift, x_weight, x_bias, tokens, columns, T,
    threshold: tl.constexpr, keep_scale: tl.constexpr, D: tl.constexpr,
    NORMED: tl.constexpr, DROPOUT: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """x, or LayerNorm(x), plus dropout(y)."""
    offsets = _offsets(tokens, columns, D)
    mask = None if UNMASKED else (columns < D)[None, :] & (tokens < T)[:, None]
    residual = tl.load(x + offsets, mask=mask, other=None if UNMASKED else 0.0).to(tl.float32)
    added = tl.load(y + offsets, mask=mask, other=None if UNMASKED else 0.0).to(tl.float32)
    if NORMED:
        residual = (residual * x_rstd[:, None] - x_shift[:, None]) * x_weight[None, :] + x_bias[None, :]
    if DROPOUT:
        kept = _kept(token_random, column_random, tokens, columns, T, threshold, D)
        added = tl.where(kept, added * keep_scale, 0.0)
    return residual + added


@triton.jit
def _store(pointer, value, tokens, columns, T, D: tl.constexpr, UNMASKED: tl.constexpr):
    mask = None if UNMASKED else (columns < D)[None, :] & (tokens < T)[:, None]
    tl.store(pointer + _offsets(tokens, columns, D), value.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _centered(value, means, columns, D: tl.constexpr, UNMASKED: tl.constexpr):
    value -= means[:, None]
    return value if UNMASKED else tl.where((columns < D)[None, :], value, 0.0)


@triton.jit
def add_norm_kernel(
    x, x_mean, x_rstd, x_weight, x_bias, y, token_random, column_random, weight, bias,
    total, quantized, transposed, mean, rstd, T, W,
    eps: tl.constexpr, threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    NORMED: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    cols = tl.arange(0, A)
    w, b = tl.load(weight + cols, mask=cols < D) * scale, tl.load(bias + cols, mask=cols < D) * scale
    xw, xb = tl.load(x_weight + cols, mask=cols < D), tl.load(x_bias + cols, mask=cols < D)
    if B:
        cols_B = A + tl.arange(0, B)
        w_B, b_B = tl.load(weight + cols_B) * scale, tl.load(bias + cols_B) * scale
        xw_B, xb_B = tl.load(x_weight + cols_B), tl.load(x_bias + cols_B)
    for tile in range(tl.program_id(0), (T + BLOCK_M - 1) // BLOCK_M, tl.num_programs(0)):
        for i in tl.range(0, BLOCK_M // ROWS, num_stages=STAGES):
            tokens = tile * BLOCK_M + i * ROWS + tl.arange(0, ROWS)
            token_mask = None if EVEN else tokens < T
            x_rstds, x_shifts = tokens, tokens
            if NORMED:
                x_rstds = tl.load(x_rstd + tokens, mask=token_mask)
                x_shifts = tl.load(x_mean + tokens, mask=token_mask) * x_rstds
            value = _load_sum(
                x, y, token_random, column_random, x_rstds, x_shifts, xw, xb, tokens, cols, T, threshold, keep_scale,
                D, NORMED, DROPOUT, UNMASKED,
            ).to(total.dtype.element_ty)  # fmt: skip
            _store(total, value, tokens, cols, T, D, UNMASKED)
            value = value.to(tl.float32)
            sums = tl.sum(value, 1)
            if B:
                value_B = _load_sum(
                    x, y, token_random, column_random, x_rstds, x_shifts, xw_B, xb_B, tokens, cols_B, T, threshold,
                    keep_scale, D, NORMED, DROPOUT, UNMASKED,
                ).to(total.dtype.element_ty)  # fmt: skip
                _store(total, value_B, tokens, cols_B, T, D, UNMASKED)
                value_B = value_B.to(tl.float32)
                sums += tl.sum(value_B, 1)
            means = sums * (1 / D)
            value = _centered(value, means, cols, D, UNMASKED)
            squares = tl.sum(value * value, 1)
            if B:
                value_B = _centered(value_B, means, cols_B, D, UNMASKED)
                squares += tl.sum(value_B * value_B, 1)
            rstds = tl.rsqrt(squares * (1 / D) + eps)
            tl.store(mean + tokens, means, mask=token_mask)
            tl.store(rstd + tokens, rstds, mask=token_mask)
            _store(quantized, value * rstds[:, None] * w[None, :] + b[None, :], tokens, cols, T, D, UNMASKED)
            if B:
                value_B = value_B * rstds[:, None] * w_B[None, :] + b_B[None, :]
                _store(quantized, value_B, tokens, cols_B, T, D, UNMASKED)
        tl.debug_barrier()  # until all warps have stored their part
        for column in range(0, D, BLOCK_N):
            transpose_tile(quantized, transposed, tile * BLOCK_M, column, T, W, D, BLOCK_M, BLOCK_N, EVEN)


@triton.jit
def _load_gradient(dn1, dn2, total, rstds, shifts, tokens, columns, T, D: tl.constexpr, UNMASKED: tl.constexpr):
    """The gradient of the normalised values, 0 beyond the width; and x̂ = (total - mean) · rstd."""
    offsets = _offsets(tokens, columns, D)
    mask = None if UNMASKED else (columns < D)[None, :] & (tokens < T)[:, None]
    dn = tl.load(dn1 + offsets, mask=mask, other=None if UNMASKED else 0.0).to(tl.float32)
    dn += tl.load(dn2 + offsets, mask=mask, other=None if UNMASKED else 0.0).to(tl.float32)
    value = tl.load(total + offsets, mask=mask, other=None if UNMASKED else 0.0).to(tl.float32)
    return dn, value * rstds[:, None] - shifts[:, None]


@triton.jit
def _store_gradient(
    dtotal, dy, token_random, column_random, gradient, tokens, columns, T,
    threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr, D: tl.constexpr,
    DROPOUT: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """Stores the gradient of the total, and that of y in FP8; returns the latter."""
    _store(dtotal, gradient, tokens, columns, T, D, UNMASKED)
    if DROPOUT:
        kept = _kept(token_random, column_random, tokens, columns, T, threshold, D)
        gradient = tl.where(kept, gradient * keep_scale, 0.0)
    _store(dy, gradient * scale, tokens, columns, T, D, UNMASKED)
    return gradient


@triton.jit
def add_norm_backward_kernel(
    dn1, dn2, total, mean, rstd, weight, token_random, column_random,
    dtotal, dy, transposed, sums, T, W,
    threshold: tl.constexpr, keep_scale: tl.constexpr, scale: tl.constexpr,
    D: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    DROPOUT: tl.constexpr, EVEN: tl.constexpr, UNMASKED: tl.constexpr,
):  # fmt: skip
    """See `add_norm_backward`; each program writes its part [3, D] of the sums over tokens."""
    cols = tl.arange(0, A)
    w = tl.load(weight + cols, mask=cols < D)
    dw, db = tl.zeros([ROWS, A], tl.float32), tl.zeros([ROWS, A], tl.float32)
    dy_sum = tl.zeros([ROWS, A], tl.float32)
    if B:
        cols_B = A + tl.arange(0, B)
        w_B = tl.load(weight + cols_B)
        dw_B, db_B = tl.zeros([ROWS, B], tl.float32), tl.zeros([ROWS, B], tl.float32)
        dy_sum_B = tl.zeros([ROWS, B], tl.float32)
    for tile in range(tl.program_id(0), (T + BLOCK_M - 1) // BLOCK_M, tl.num_programs(0)):
        for i in tl.range(0, BLOCK_M // ROWS, num_stages=STAGES):
            tokens = tile * BLOCK_M + i * ROWS + tl.arange(0, ROWS)
            token_mask = None if EVEN else tokens < T
            rstds = tl.load(rstd + tokens, mask=token_mask, other=None if EVEN else 0.0)
            shifts = tl.load(mean + tokens, mask=token_mask, other=None if EVEN else 0.0) * rstds
            dn, x_hat = _load_gradient(dn1, dn2, total, rstds, shifts, tokens, cols, T, D, UNMASKED)
            dw += dn * x_hat
            db += dn
            dn *= w[None, :]
            c1, c2 = tl.sum(dn * x_hat, 1), tl.sum(dn, 1)
            if B:
                dn_B, x_hat_B = _load_gradient(dn1, dn2, total, rstds, shifts, tokens, cols_B, T, D, UNMASKED)
                dw_B += dn_B * x_hat_B
                db_B += dn_B
                dn_B *= w_B[None, :]
                c1 += tl.sum(dn_B * x_hat_B, 1)
                c2 += tl.sum(dn_B, 1)
            c1, c2 = (c1 * (1 / D))[:, None], (c2 * (1 / D))[:, None]
            gradient = (dn - c2 - x_hat * c1) * rstds[:, None]
            dy_sum += _store_gradient(
                dtotal, dy, token_random, column_random, gradient, tokens, cols, T, threshold, keep_scale, scale, D,
                DROPOUT, UNMASKED,
            )  # fmt: skip
            if B:
                gradient = (dn_B - c2 - x_hat_B * c1) * rstds[:, None]
                dy_sum_B += _store_gradient(
                    dtotal, dy, token_random, column_random, gradient, tokens, cols_B, T, threshold, keep_scale, scale,
                    D, DROPOUT, UNMASKED,
                )  # fmt: skip
        tl.debug_barrier()
        for column in range(0, D, BLOCK_N):
            transpose_tile(dy, transposed, tile * BLOCK_M, column, T, W, D, BLOCK_M, BLOCK_N, EVEN)
    part = sums + tl.program_id(0) * 3 * D
    tl.store(part + cols, tl.sum(dw, 0), mask=cols < D)
    tl.store(part + D + cols, tl.sum(db, 0), mask=cols < D)
    tl.store(part + 2 * D + cols, tl.sum(dy_sum, 0), mask=cols < D)
    if B:
        tl.store(part + cols_B, tl.sum(dw_B, 0))
        tl.store(part + D + cols_B, tl.sum(db_B, 0))
        tl.store(part + 2 * D + cols_B, tl.sum(dy_sum_B, 0))


@triton_op("bertsmith::add_norm", mutates_args=())
def add_norm(
    x: Tensor, x_norm: list[Tensor], y: Tensor, random: list[Tensor], weight: Tensor, bias: Tensor,
    eps: float, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """total [T, D], its mean and rstd [T], LayerNorm(total) times the scale in e4m3 [T, D], and transposed [D, W].

    `x_norm`: mean, rstd, weight and bias, to use LayerNorm(x) in place of x. `random`: see `dropout.draw`.
    """
    total, quantized = torch.empty_like(y), torch.empty_like(y, dtype=torch.float8_e4m3fn)
    transposed = empty_transposed(quantized)
    mean, rstd = (y.new_empty(len(y), dtype=torch.float32) for _ in range(2))
    wrap_triton(add_norm_kernel)[_grid(y)](
        x, *(x_norm or (mean, rstd, weight, bias)), y, *(random or (mean, rstd)), weight, bias,
        total, quantized, transposed, mean, rstd, len(y), transposed.shape[1], eps=eps, scale=scale,
        threshold=keep_threshold(dropout), keep_scale=1 / (1 - dropout),
        NORMED=bool(x_norm), DROPOUT=bool(random), **_settings(y),
    )  # fmt: skip
    return total, mean, rstd, quantized, transposed


@triton_op("bertsmith::add_norm_backward", mutates_args=())
def add_norm_backward(
    dn1: Tensor, dn2: Tensor, total: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor, random: list[Tensor],
    dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of the total [T, D]; that of y times the scale in e5m2, and transposed [D, W]; sums.

    The gradient of LayerNorm(total) is `dn1` + `dn2`. Sums over parts of T [P, 3, D]: gradients of weight and bias, and
    column sums of the gradient of y.
    """
    dtotal, dy = torch.empty_like(total), torch.empty_like(total, dtype=torch.float8_e5m2)
    transposed, grid = empty_transposed(dy), _grid(total)
    sums = total.new_empty(grid[0], 3, total.shape[1], dtype=torch.float32)
    wrap_triton(add_norm_backward_kernel)[grid](
        dn1, dn2, total, mean, rstd, weight, *(random or (mean, rstd)),
        dtotal, dy, transposed, sums, len(total), transposed.shape[1], scale=scale,
        threshold=keep_threshold(dropout), keep_scale=1 / (1 - dropout), DROPOUT=bool(random), **_settings(total),
    )  # fmt: skip
    return dtotal, dy, transposed, sums


def _grid(x: Tensor) -> tuple[int]:
    """As many programs as run at the same time, each with one tile or several."""
    return (min(triton.cdiv(len(x), _tiles(x)["BLOCK_M"]), _programs(x)),)


def _programs(x: Tensor) -> int:
    """How many programs run at the same time: twice as many where rows are short."""
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    return processors * PROGRAMS * (1 if x.shape[1] > MAX_COLUMNS // 2 else 2)


def _tiles(x: Tensor) -> dict[str, int]:
    """Tiles of half as many tokens where there would be too few tiles for the programs that run at the same time."""
    rows = TILES["BLOCK_M"]
    few = 4 * triton.cdiv(len(x), rows) < 3 * _programs(x)
    return {**TILES, "BLOCK_M": max(rows // 2, MULTIPLE) if few else rows}


def _settings(x: Tensor) -> dict[str, int]:
    tokens, width = x.shape
    a, b = split_width(width)
    tiles = _tiles(x)
    even = tokens % tiles["BLOCK_M"] == 0 and width % tiles["BLOCK_N"] == 0
    unmasked, warps = even and a + b == width, 1 if width <= MAX_COLUMNS else 2
    return {"D": width, "A": a, "B": b, "EVEN": even, "UNMASKED": unmasked, "num_warps": warps, **tiles}


def split_width(width: int) -> tuple[int, int]:
    """The width as a sum of two powers of two, or the next power of two and 0."""
    a = 1 << (width.bit_length() - 1)
    b = width - a
    return (a, b) if b & (b - 1) == 0 else (2 * a, 0)
