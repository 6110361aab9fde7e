"""Attention over packed sequences with dropout on probabilities: Triton kernels and the torch operations around them.

No mask in memory, no atomics in backward. Queries, keys and values are read from the output of one matrix product
[T, 3, H, K], and gradients written in that layout; in FP8 everything is also written transposed, gradients with their
column sums. Tokens of a sequence are contiguous: `seq_begin` [T] and `seq_end` [T] are the bounds of each token's
sequence. A block of queries visits only the keys of its own sequences. T flat tokens, W the next multiple of 16, H
heads, K head width, tiles of BLOCK_M queries and BLOCK_N keys. Exponentials are powers of two.

Each loop stands behind a test that it has work: ptxas serialises matrix products (C7515) around a loop that may be
empty, which costs a tenth of the time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn.dropout import draw_dropout
from bertsmith.nn.kernels.elementwise import empty_transposed, rotate_qk, transpose_tile

# the fastest of 7 and 9 tilings on an H200, for 512 and 128 tokens, with and without dropout
FORWARD_TILES = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
BACKWARD_TILES = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
WIDE_FORWARD_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}  # heads over 64: within 100 KiB
DELTA_ROWS = 64
LOG2_E = tl.constexpr(1.4426950408889634)
MASKED_SCORE = tl.constexpr(-1.0e30)  # finite, and its exponential is 0


@triton.jit
def _hash(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def _load_random(random, tokens, T, part: tl.constexpr, EVEN: tl.constexpr):
    """Random numbers of queries (part 0) or keys (1); see `_kept`."""
    return _load_row(random + part * T, tokens, T, EVEN).to(tl.uint32)


@triton.jit
def _head_random(head):
    """An odd factor for the random numbers of a head."""
    return _hash(head.to(tl.uint32) * 0x9E3779B9 + 0x5BF03635) | 1


@triton.jit
def _kept(q_random, k_random, threshold: tl.constexpr):
    """Which query-key pairs dropout keeps, for two shapes that broadcast: `threshold` of 2**32 are dropped."""
    return q_random * k_random >= threshold


@triton.jit
def _load_qkv(base, tokens, T, part: tl.constexpr, head, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr):
    """A tile [tokens, K] of queries (part 0), keys (1) or values (2)."""
    pointers = base + tokens.to(tl.int64)[:, None] * (3 * H * K) + (part * H + head) * K + tl.arange(0, K)[None, :]
    return tl.load(pointers) if EVEN else tl.load(pointers, mask=tokens[:, None] < T, other=0.0)


@triton.jit
def _load_tile(base, tokens, T, head, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr):
    """A tile [tokens, K] of a tensor [T, H, K]."""
    pointers = base + tokens.to(tl.int64)[:, None] * (H * K) + head * K + tl.arange(0, K)[None, :]
    return tl.load(pointers) if EVEN else tl.load(pointers, mask=tokens[:, None] < T, other=0.0)


@triton.jit
def _load_row(base, tokens, T, EVEN: tl.constexpr):
    return tl.load(base + tokens) if EVEN else tl.load(base + tokens, mask=tokens < T, other=-1)


@triton.jit
def _visible_range(seq_begin, seq_end, first, T, BLOCK: tl.constexpr, OTHER: tl.constexpr):
    """The range `low` to `high` of tokens visible to a block; from `low` to `middle` tiles of OTHER need no mask."""
    last = tl.minimum(first + BLOCK, T) - 1
    low, high = tl.load(seq_begin + first), tl.load(seq_end + last)
    one_sequence = (tl.load(seq_begin + last) == low) & (first + BLOCK <= T) & (low % OTHER == 0)
    low = low // OTHER * OTHER
    return low, tl.where(one_sequence, high // OTHER * OTHER, low), high


@triton.jit
def _forward_inner(
    acc, l_i, m_i, q, qkv, seq_begin, begin_m, random_m, random, offs_m, low, high, T, head,
    threshold: tl.constexpr, qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Online softmax over the keys from `low` to `high`: weighted values, sums of exponentials, maximal scores."""
    for first in range(low, high, BLOCK_N):
        offs_n = first + tl.arange(0, BLOCK_N)
        qk = tl.dot(q, tl.trans(_load_qkv(qkv, offs_n, T, 1, head, H, K, EVEN)))
        if MASKED:
            visible = begin_m[:, None] == _load_row(seq_begin, offs_n, T, EVEN)[None, :]
            if CAUSAL:
                visible = visible & (offs_m[:, None] >= offs_n[None, :])
            qk = tl.where(visible, qk * qk_scale, MASKED_SCORE)
        rest: tl.constexpr = 1.0 if MASKED else qk_scale  # MASKED_SCORE must not be scaled: it would be rounded
        m_new = tl.maximum(m_i, tl.max(qk, 1) * rest)
        p = tl.exp2(qk * rest - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if DROPOUT:
            random_n = _load_random(random, offs_n, T, 1, EVEN)
            p = tl.where(_kept(random_m[:, None], random_n[None, :], threshold), p, 0.0)
        v = _load_qkv(qkv, offs_n, T, 2, head, H, K, EVEN)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def forward_kernel(
    qkv, seq_begin, seq_end, random, out, lse, out8, out8_t, T, W,
    threshold: tl.constexpr, keep_scale: tl.constexpr, qk_scale: tl.constexpr, fp8_scale: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """The output of a block of queries of one head; also in FP8, as it is and transposed."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_M
    offs_m = first + tl.arange(0, BLOCK_M)
    q = _load_qkv(qkv, offs_m, T, 0, head, H, K, EVEN)
    begin_m = _load_row(seq_begin, offs_m, T, EVEN)
    random_m = _load_random(random, offs_m, T, 0, EVEN) * _head_random(head) if DROPOUT else offs_m
    low, middle, high = _visible_range(seq_begin, seq_end, first, T, BLOCK_M, BLOCK_N)
    acc = tl.zeros([BLOCK_M, K], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], MASKED_SCORE, tl.float32)
    if CAUSAL:
        middle, high = low, tl.minimum(high, first + BLOCK_M)
    elif low < middle:
        acc, l_i, m_i = _forward_inner(
            acc, l_i, m_i, q, qkv, seq_begin, begin_m, random_m, random, offs_m, low, middle, T, head,
            threshold, qk_scale, H, K, BLOCK_N, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        acc, l_i, m_i = _forward_inner(
            acc, l_i, m_i, q, qkv, seq_begin, begin_m, random_m, random, offs_m, middle, high, T, head,
            threshold, qk_scale, H, K, BLOCK_N, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    acc = acc * (keep_scale / l_i)[:, None]
    offsets = offs_m.to(tl.int64)[:, None] * (H * K) + head * K + tl.arange(0, K)[None, :]
    tl.store(out + offsets, acc.to(out.dtype.element_ty), mask=offs_m[:, None] < T)
    if FP8:
        tl.store(out8 + offsets, (acc * fp8_scale).to(out8.dtype.element_ty), mask=offs_m[:, None] < T)
        tl.debug_barrier()
        transpose_tile(out8, out8_t, first, head * K, T, W, H * K, BLOCK_M, K, EVEN)
    tl.store(lse + head * T + offs_m, m_i + tl.log2(l_i), mask=offs_m < T)


@triton.jit
def delta_kernel(out, do, delta, T, H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr):
    """delta [H, T]: the dot product of each output and its gradient."""
    head, tokens = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_M + tl.arange(0, BLOCK_M)
    o = _load_tile(out, tokens, T, head, H, K, False).to(tl.float32)
    g = _load_tile(do, tokens, T, head, H, K, False).to(tl.float32)
    tl.store(delta + head * T + tokens, tl.sum(o * g, 1), mask=tokens < T)


@triton.jit
def _dkdv_inner(
    dk, dv, k, v, qkv, do, lse, delta, seq_begin, begin_n, random_n, random, offs_n, low, high, T, head,
    threshold: tl.constexpr, keep_prob: tl.constexpr, qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values from the queries from `low` to `high`."""
    for first in range(low, high, BLOCK_M):
        offs_m = first + tl.arange(0, BLOCK_M)
        q = _load_qkv(qkv, offs_m, T, 0, head, H, K, EVEN)
        qk_t = tl.dot(k, tl.trans(q)) * qk_scale
        p_t = tl.exp2(qk_t - _load_row(lse + head * T, offs_m, T, EVEN)[None, :])
        if MASKED:
            visible = begin_n[:, None] == _load_row(seq_begin, offs_m, T, EVEN)[None, :]
            if CAUSAL:
                visible = visible & (offs_m[None, :] >= offs_n[:, None])
            p_t = tl.where(visible, p_t, 0.0)
        g = _load_tile(do, offs_m, T, head, H, K, EVEN)
        dp_t = tl.dot(v, tl.trans(g))
        dropped_p_t = p_t
        if DROPOUT:
            random_m = _load_random(random, offs_m, T, 0, EVEN)
            kept = _kept(random_m[None, :], random_n[:, None], threshold)
            dropped_p_t = tl.where(kept, p_t, 0.0)
            dp_t = tl.where(kept, dp_t, 0.0)
        dv = tl.dot(dropped_p_t.to(g.dtype), g, dv)
        ds_t = p_t * (dp_t - keep_prob * _load_row(delta + head * T, offs_m, T, EVEN)[None, :])
        dk = tl.dot(ds_t.to(q.dtype), q, dk)
    return dk, dv


@triton.jit
def _dq_inner(
    dq, q, g, lse_m, delta_m, qkv, seq_begin, begin_m, random_m, random, offs_m, low, high, T, head,
    threshold: tl.constexpr, qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries from the keys from `low` to `high`."""
    for first in range(low, high, BLOCK_N):
        offs_n = first + tl.arange(0, BLOCK_N)
        k = _load_qkv(qkv, offs_n, T, 1, head, H, K, EVEN)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * qk_scale - lse_m[:, None])
        if MASKED:
            visible = begin_m[:, None] == _load_row(seq_begin, offs_n, T, EVEN)[None, :]
            if CAUSAL:
                visible = visible & (offs_m[:, None] >= offs_n[None, :])
            p = tl.where(visible, p, 0.0)
        dp = tl.dot(g, tl.trans(_load_qkv(qkv, offs_n, T, 2, head, H, K, EVEN)))
        if DROPOUT:
            random_n = _load_random(random, offs_n, T, 1, EVEN)
            dp = tl.where(_kept(random_m[:, None], random_n[None, :], threshold), dp, 0.0)
        ds = p * (dp - delta_m[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@triton.jit
def _store_gradient(
    dqkv, column_sums, values, tokens, T, block, part: tl.constexpr, head,
    fp8_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Stores gradients of queries (part 0), keys (1) or values (2); in FP8 also their column sums."""
    columns = (part * H + head) * K + tl.arange(0, K)
    pointers, mask = dqkv + tokens.to(tl.int64)[:, None] * (3 * H * K) + columns[None, :], tokens[:, None] < T
    if FP8:
        values = values if EVEN else tl.where(mask, values, 0.0)
        # a bias of all keys shifts all scores of a query equally, so its gradient is 0
        total = tl.zeros([K], tl.float32) if part == 1 else tl.sum(values, 0)
        tl.store(column_sums + block * (3 * H * K) + columns, total)
        values *= fp8_scale
    tl.store(pointers, values.to(dqkv.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    qkv, seq_begin, seq_end, random, do, lse, delta, dqkv, dqkv_t, column_sums, T, W,
    threshold: tl.constexpr, keep_scale: tl.constexpr, keep_prob: tl.constexpr, qk_scale: tl.constexpr,
    fp8_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, EVEN: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Gradients of BLOCK_N keys and values of one head, then of the queries of the same tokens."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_N
    offs = first + tl.arange(0, BLOCK_N)
    begin = _load_row(seq_begin, offs, T, EVEN)
    q_random = _load_random(random, offs, T, 0, EVEN) * _head_random(head) if DROPOUT else offs
    k_random = _load_random(random, offs, T, 1, EVEN) * _head_random(head) if DROPOUT else offs
    low, middle, high = _visible_range(seq_begin, seq_end, first, T, BLOCK_N, BLOCK_M)
    k, v = _load_qkv(qkv, offs, T, 1, head, H, K, EVEN), _load_qkv(qkv, offs, T, 2, head, H, K, EVEN)
    dk, dv = tl.zeros([BLOCK_N, K], tl.float32), tl.zeros([BLOCK_N, K], tl.float32)
    if CAUSAL:
        middle = tl.maximum(low, first // BLOCK_M * BLOCK_M)
    elif low < middle:
        dk, dv = _dkdv_inner(
            dk, dv, k, v, qkv, do, lse, delta, seq_begin, begin, k_random, random, offs, low, middle, T, head,
            threshold, keep_prob, qk_scale, H, K, BLOCK_M, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        dk, dv = _dkdv_inner(
            dk, dv, k, v, qkv, do, lse, delta, seq_begin, begin, k_random, random, offs, middle, high, T, head,
            threshold, keep_prob, qk_scale, H, K, BLOCK_M, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    grad_scale = qk_scale * keep_scale / LOG2_E
    _store_gradient(dqkv, column_sums, dk * grad_scale, offs, T, first // BLOCK_N, 1, head, fp8_scale, H, K, EVEN, FP8)
    _store_gradient(dqkv, column_sums, dv * keep_scale, offs, T, first // BLOCK_N, 2, head, fp8_scale, H, K, EVEN, FP8)
    q, g = _load_qkv(qkv, offs, T, 0, head, H, K, EVEN), _load_tile(do, offs, T, head, H, K, EVEN)
    lse_m = _load_row(lse + head * T, offs, T, EVEN)
    delta_m = keep_prob * _load_row(delta + head * T, offs, T, EVEN)
    dq = tl.zeros([BLOCK_N, K], tl.float32)
    if CAUSAL:
        middle, high = low, tl.minimum(high, first + BLOCK_N)
    elif low < middle:
        dq = _dq_inner(
            dq, q, g, lse_m, delta_m, qkv, seq_begin, begin, q_random, random, offs, low, middle, T, head,
            threshold, qk_scale, H, K, BLOCK_M, False, False, DROPOUT, True,
        )  # fmt: skip
    if middle < high:
        dq = _dq_inner(
            dq, q, g, lse_m, delta_m, qkv, seq_begin, begin, q_random, random, offs, middle, high, T, head,
            threshold, qk_scale, H, K, BLOCK_M, True, CAUSAL, DROPOUT, EVEN,
        )  # fmt: skip
    _store_gradient(dqkv, column_sums, dq * grad_scale, offs, T, first // BLOCK_N, 0, head, fp8_scale, H, K, EVEN, FP8)
    if FP8:
        tl.debug_barrier()
        for part in tl.static_range(3):
            transpose_tile(dqkv, dqkv_t, first, (part * H + head) * K, T, W, 3 * H * K, BLOCK_N, K, EVEN)


def _settings(qkv: Tensor, dropout: float, causal: bool, tiles: dict[str, int]) -> dict[str, Any]:
    tokens, _, heads, width = qkv.shape
    even = tokens % max(tiles["BLOCK_M"], tiles["BLOCK_N"]) == 0
    return {
        "T": tokens, "H": heads, "K": width, "CAUSAL": causal, "DROPOUT": dropout > 0, "EVEN": even, **tiles,
        "threshold": min(round(dropout * 2**32), 2**32 - 1), "keep_scale": 1 / (1 - dropout),
        "qk_scale": width**-0.5 * LOG2_E.value,
    }  # fmt: skip


@triton_op("bertsmith::attention", mutates_args=())
def attention_forward(
    qkv: Tensor, seq_begin: Tensor, seq_end: Tensor, random: Tensor, dropout: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Outputs [T, H, K], and the base-2 logarithms of the sums of exponentials [H, T]."""
    return _launch_forward(None, qkv, seq_begin, seq_end, random, dropout, causal, 1.0)


@triton_op("bertsmith::attention_fp8", mutates_args=())
def attention_forward_fp8(
    qkv: Tensor, seq_begin: Tensor, seq_end: Tensor, random: Tensor, dropout: float, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `attention_forward`; and the outputs times the scale in e4m3 [T, HK], and transposed [HK, W]."""
    tokens, _, heads, width = qkv.shape
    out8 = qkv.new_empty(tokens, heads * width, dtype=torch.float8_e4m3fn)
    out8_t = empty_transposed(out8)
    return *_launch_forward((out8, out8_t), qkv, seq_begin, seq_end, random, dropout, causal, scale), out8, out8_t


def _launch_forward(
    fp8: tuple[Tensor, Tensor] | None, qkv: Tensor, seq_begin: Tensor, seq_end: Tensor, random: Tensor, dropout: float,
    causal: bool, fp8_scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    tokens, _, heads, width = qkv.shape
    out, lse = qkv.new_empty(tokens, heads, width), qkv.new_empty(heads, tokens, dtype=torch.float32)
    tiles = FORWARD_TILES if width <= 64 else WIDE_FORWARD_TILES
    out8, out8_t = fp8 or (out, out)
    wrap_triton(forward_kernel)[(triton.cdiv(tokens, tiles["BLOCK_M"]) * heads,)](
        qkv, seq_begin, seq_end, random, out, lse, out8, out8_t, W=out8_t.shape[1], fp8_scale=fp8_scale,
        FP8=fp8 is not None, **_settings(qkv, dropout, causal, tiles),
    )  # fmt: skip
    return out, lse


@triton_op("bertsmith::attention_backward", mutates_args=())
def attention_backward(
    do: Tensor, qkv: Tensor, seq_begin: Tensor, seq_end: Tensor, random: Tensor, out: Tensor, lse: Tensor,
    dropout: float, causal: bool,
) -> Tensor:  # fmt: skip
    """Gradients [T, 3, H, K]."""
    dqkv = torch.empty_like(qkv)
    _launch_backward(dqkv, None, do, qkv, seq_begin, seq_end, random, out, lse, dropout, causal, 1.0)
    return dqkv


@triton_op("bertsmith::attention_backward_fp8", mutates_args=())
def attention_backward_fp8(
    do: Tensor, qkv: Tensor, seq_begin: Tensor, seq_end: Tensor, random: Tensor, out: Tensor, lse: Tensor,
    dropout: float, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients times the scale in e5m2 [T, 3HK], transposed [3HK, W], and their sums over parts of T."""
    tokens = qkv.shape[0]
    dqkv = qkv.new_empty(tokens, qkv.numel() // tokens, dtype=torch.float8_e5m2)
    dqkv_t = empty_transposed(dqkv)
    column_sums = lse.new_empty(triton.cdiv(tokens, BACKWARD_TILES["BLOCK_N"]), dqkv.shape[1])
    _launch_backward(dqkv, (dqkv_t, column_sums), do, qkv, seq_begin, seq_end, random, out, lse, dropout, causal, scale)
    return dqkv, dqkv_t, column_sums


def _launch_backward(
    dqkv: Tensor, fp8: tuple[Tensor, Tensor] | None, do: Tensor, qkv: Tensor, seq_begin: Tensor, seq_end: Tensor,
    random: Tensor, out: Tensor, lse: Tensor, dropout: float, causal: bool, fp8_scale: float,
) -> None:  # fmt: skip
    tokens, _, heads, width = qkv.shape
    delta = torch.empty_like(lse)
    dqkv_t, column_sums = fp8 or (dqkv, delta)
    wrap_triton(delta_kernel)[(triton.cdiv(tokens, DELTA_ROWS) * heads,)](
        out, do, delta, tokens, H=heads, K=width, BLOCK_M=DELTA_ROWS
    )
    wrap_triton(backward_kernel)[(triton.cdiv(tokens, BACKWARD_TILES["BLOCK_N"]) * heads,)](
        qkv, seq_begin, seq_end, random, do, lse, delta, dqkv, dqkv_t, column_sums, W=dqkv_t.shape[1],
        keep_prob=1 - dropout, fp8_scale=fp8_scale, FP8=fp8 is not None,
        **_settings(qkv, dropout, causal, BACKWARD_TILES),
    )  # fmt: skip


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, seq_begin, seq_end, random, ctx.dropout, ctx.causal = inputs
    ctx.save_for_backward(qkv, seq_begin, seq_end, random, *output)


def _backward(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    return attention_backward(do.contiguous(), *ctx.saved_tensors, ctx.dropout, ctx.causal), *(None,) * 5


attention_forward.register_autograd(_backward, setup_context=_save_for_backward)


def attend(
    qkv_T3HK: Tensor, seq_begin_T: Tensor, seq_end_T: Tensor, *, dropout: float, causal: bool,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """The attention outputs [T, H, K]; dropout is drawn from torch's generator. `rotary`: cosines and sines."""
    random = draw_dropout(len(qkv_T3HK), qkv_T3HK.device, dropout)
    qkv_T3HK = qkv_T3HK.contiguous()
    if rotary is not None:
        qkv_T3HK = rotate_qk(qkv_T3HK, *rotary)
    return attention_forward(qkv_T3HK, seq_begin_T, seq_end_T, random, dropout, causal)[0]
