"""Attention of packed queries to other packed tokens, with dropout on probabilities: Triton kernels.

No mask in memory, no atomics in backward. The keys that a query attends to are contiguous, and so are the queries that
attend to a key; both ranges grow from token to token, so that a block visits only the keys or queries of its own
texts. A query without keys has the output 0. T queries, S keys, H heads, K head width, tiles of BLOCK_M queries and
BLOCK_N keys. Exponentials are powers of two.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn.dropout import draw
from bertsmith.nn.kernels.attention import LOG2_E, MASKED_SCORE, _head_random, _kept

FORWARD_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
BACKWARD_TILES = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
DECODING_TILES = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 2, "num_stages": 2}
FEW_QUERIES = 2048  # up to so many queries, as in a step of a beam search, small tiles fill the GPU better


@triton.jit
def _load_tile(base, tokens, count, stride: tl.constexpr, column, K: tl.constexpr):
    """A tile [tokens, K] of rows of `stride` numbers."""
    pointers = base + tokens.to(tl.int64)[:, None] * stride + column + tl.arange(0, K)[None, :]
    return tl.load(pointers, mask=tokens[:, None] < count, other=0.0)


@triton.jit
def _store_tile(base, values, tokens, count, stride: tl.constexpr, column, K: tl.constexpr):
    pointers = base + tokens.to(tl.int64)[:, None] * stride + column + tl.arange(0, K)[None, :]
    tl.store(pointers, values.to(base.dtype.element_ty), mask=tokens[:, None] < count)


@triton.jit
def _load_ranges(begins, ends, first, count, BLOCK: tl.constexpr):
    """The tokens of a block, the range of each, which is empty behind the last token, and the range of them all."""
    tokens = first + tl.arange(0, BLOCK)
    begin = tl.load(begins + tokens, mask=tokens < count, other=0)
    end = tl.load(ends + tokens, mask=tokens < count, other=0)
    low, high = tl.load(begins + first), tl.load(ends + tl.minimum(first + BLOCK, count) - 1)
    return tokens, begin, end, low, high


@triton.jit
def _load_random(random, tokens, count):
    return tl.load(random + tokens, mask=tokens < count, other=0).to(tl.uint32)


@triton.jit
def forward_kernel(
    q, kv, key_begin, key_end, q_random, k_random, out, lse, T, S,
    threshold: tl.constexpr, keep_scale: tl.constexpr, qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """The output of a block of queries of one head, by online softmax."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_M
    offs_m, begin_m, end_m, low, high = _load_ranges(key_begin, key_end, first, T, BLOCK_M)
    q_m = _load_tile(q, offs_m, T, H * K, head * K, K)
    random_m = _load_random(q_random, offs_m, T) * _head_random(head) if DROPOUT else offs_m
    acc = tl.zeros([BLOCK_M, K], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], MASKED_SCORE, tl.float32)
    if low < high:
        for start in range(low, high, BLOCK_N):
            offs_n = start + tl.arange(0, BLOCK_N)
            qk = tl.dot(q_m, tl.trans(_load_tile(kv, offs_n, S, 2 * H * K, head * K, K))) * qk_scale
            visible = (offs_n[None, :] >= begin_m[:, None]) & (offs_n[None, :] < end_m[:, None])
            m_new = tl.maximum(m_i, tl.max(tl.where(visible, qk, MASKED_SCORE), 1))
            p = tl.where(visible, tl.exp2(qk - m_new[:, None]), 0.0)
            alpha = tl.exp2(m_i - m_new)
            l_i = l_i * alpha + tl.sum(p, 1)
            if DROPOUT:
                random_n = _load_random(k_random, offs_n, S)
                p = tl.where(_kept(random_m[:, None], random_n[None, :], threshold), p, 0.0)
            v = _load_tile(kv, offs_n, S, 2 * H * K, (H + head) * K, K)
            acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
            m_i = m_new
    l_i = tl.where(l_i > 0, l_i, 1.0)
    _store_tile(out, acc * (keep_scale / l_i)[:, None], offs_m, T, H * K, head * K, K)
    tl.store(lse + head * T + offs_m, m_i + tl.log2(l_i), mask=offs_m < T)


@triton.jit
def backward_query_kernel(
    q, kv, key_begin, key_end, q_random, k_random, out, do, lse, delta, dq, T, S,
    threshold: tl.constexpr, keep_scale: tl.constexpr, keep_prob: tl.constexpr, qk_scale: tl.constexpr,
    H: tl.constexpr, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of queries of one head, and delta [H, T]: the products of outputs and their gradients."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_M
    offs_m, begin_m, end_m, low, high = _load_ranges(key_begin, key_end, first, T, BLOCK_M)
    q_m, g = _load_tile(q, offs_m, T, H * K, head * K, K), _load_tile(do, offs_m, T, H * K, head * K, K)
    o = _load_tile(out, offs_m, T, H * K, head * K, K)
    delta_m = keep_prob * tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    tl.store(delta + head * T + offs_m, delta_m, mask=offs_m < T)
    lse_m = tl.load(lse + head * T + offs_m, mask=offs_m < T, other=0.0)
    random_m = _load_random(q_random, offs_m, T) * _head_random(head) if DROPOUT else offs_m
    acc = tl.zeros([BLOCK_M, K], tl.float32)
    if low < high:
        for start in range(low, high, BLOCK_N):
            offs_n = start + tl.arange(0, BLOCK_N)
            k = _load_tile(kv, offs_n, S, 2 * H * K, head * K, K)
            visible = (offs_n[None, :] >= begin_m[:, None]) & (offs_n[None, :] < end_m[:, None])
            p = tl.where(visible, tl.exp2(tl.dot(q_m, tl.trans(k)) * qk_scale - lse_m[:, None]), 0.0)
            dp = tl.dot(g, tl.trans(_load_tile(kv, offs_n, S, 2 * H * K, (H + head) * K, K)))
            if DROPOUT:
                random_n = _load_random(k_random, offs_n, S)
                dp = tl.where(_kept(random_m[:, None], random_n[None, :], threshold), dp, 0.0)
            ds = p * (dp - delta_m[:, None])
            acc = tl.dot(ds.to(k.dtype), k, acc)
    _store_tile(dq, acc * (qk_scale * keep_scale / LOG2_E), offs_m, T, H * K, head * K, K)


@triton.jit
def backward_key_kernel(
    q, kv, query_begin, query_end, q_random, k_random, do, lse, delta, dkv, T, S,
    threshold: tl.constexpr, keep_scale: tl.constexpr, qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values of one head; `delta` is already multiplied by `keep_prob`."""
    head, first = tl.program_id(0) % H, tl.program_id(0) // H * BLOCK_N
    offs_n, begin_n, end_n, low, high = _load_ranges(query_begin, query_end, first, S, BLOCK_N)
    k = _load_tile(kv, offs_n, S, 2 * H * K, head * K, K)
    v = _load_tile(kv, offs_n, S, 2 * H * K, (H + head) * K, K)
    random_n = _load_random(k_random, offs_n, S) * _head_random(head) if DROPOUT else offs_n
    dk, dv = tl.zeros([BLOCK_N, K], tl.float32), tl.zeros([BLOCK_N, K], tl.float32)
    if low < high:
        for start in range(low, high, BLOCK_M):
            offs_m = start + tl.arange(0, BLOCK_M)
            q_m, g = _load_tile(q, offs_m, T, H * K, head * K, K), _load_tile(do, offs_m, T, H * K, head * K, K)
            lse_m = tl.load(lse + head * T + offs_m, mask=offs_m < T, other=0.0)
            delta_m = tl.load(delta + head * T + offs_m, mask=offs_m < T, other=0.0)
            visible = (offs_m[None, :] >= begin_n[:, None]) & (offs_m[None, :] < end_n[:, None])
            p_t = tl.where(visible, tl.exp2(tl.dot(k, tl.trans(q_m)) * qk_scale - lse_m[None, :]), 0.0)
            dp_t = tl.dot(v, tl.trans(g))
            dropped_p_t = p_t
            if DROPOUT:
                random_m = _load_random(q_random, offs_m, T)
                kept = _kept(random_m[None, :], random_n[:, None], threshold)
                dropped_p_t, dp_t = tl.where(kept, p_t, 0.0), tl.where(kept, dp_t, 0.0)
            dv = tl.dot(dropped_p_t.to(g.dtype), g, dv)
            ds_t = p_t * (dp_t - delta_m[None, :])
            dk = tl.dot(ds_t.to(q_m.dtype), q_m, dk)
    _store_tile(dkv, dk * (qk_scale * keep_scale / LOG2_E), offs_n, S, 2 * H * K, head * K, K)
    _store_tile(dkv, dv * keep_scale, offs_n, S, 2 * H * K, (H + head) * K, K)


def _settings(q: Tensor, kv: Tensor, dropout: float, tiles: dict[str, int]) -> dict[str, Any]:
    return {
        "T": len(q), "S": len(kv), "H": q.shape[1], "K": q.shape[2], "DROPOUT": dropout > 0, **tiles,
        "threshold": min(round(dropout * 2**32), 2**32 - 1), "keep_scale": 1 / (1 - dropout),
        "qk_scale": q.shape[2] ** -0.5 * LOG2_E.value,
    }  # fmt: skip


@triton_op("bertsmith::cross_attention", mutates_args=())
def cross_attention_forward(
    q: Tensor, kv: Tensor, key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor,
    q_random: Tensor, k_random: Tensor, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Outputs [T, H, K], and the base-2 logarithms of the sums of exponentials [H, T]."""
    queries, heads, _ = q.shape
    out, lse = torch.empty_like(q), q.new_empty(heads, queries, dtype=torch.float32)
    tiles = FORWARD_TILES if queries > FEW_QUERIES else DECODING_TILES
    wrap_triton(forward_kernel)[(triton.cdiv(queries, tiles["BLOCK_M"]) * heads,)](
        q, kv, key_begin, key_end, q_random, k_random, out, lse, **_settings(q, kv, dropout, tiles)
    )
    return out, lse


@triton_op("bertsmith::cross_attention_backward", mutates_args=())
def cross_attention_backward(
    do: Tensor, q: Tensor, kv: Tensor, key_begin: Tensor, key_end: Tensor, query_begin: Tensor, query_end: Tensor,
    q_random: Tensor, k_random: Tensor, out: Tensor, lse: Tensor, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of queries [T, H, K], and of keys and values [S, 2, H, K]."""
    dq, dkv, delta = torch.empty_like(q), torch.empty_like(kv), torch.empty_like(lse)
    (queries, heads, _), settings = q.shape, _settings(q, kv, dropout, BACKWARD_TILES)
    random = q_random, k_random
    wrap_triton(backward_query_kernel)[(triton.cdiv(queries, BACKWARD_TILES["BLOCK_M"]) * heads,)](
        q, kv, key_begin, key_end, *random, out, do, lse, delta, dq, keep_prob=1 - dropout, **settings
    )
    wrap_triton(backward_key_kernel)[(triton.cdiv(len(kv), BACKWARD_TILES["BLOCK_N"]) * heads,)](
        q, kv, query_begin, query_end, *random, do, lse, delta, dkv, **settings
    )
    return dq, dkv


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.dropout = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, do: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *cross_attention_backward(do.contiguous(), *ctx.saved_tensors, ctx.dropout), *(None,) * 7


cross_attention_forward.register_autograd(_backward, setup_context=_save_for_backward)


def attend(
    q_THK: Tensor, kv_S2HK: Tensor, key_ranges: tuple[Tensor, Tensor], query_ranges: tuple[Tensor, Tensor], *,
    dropout: float,
) -> Tensor:  # fmt: skip
    """The outputs [T, H, K] of queries that each attend to a range of keys.

    `key_ranges`: begin and end [T] int32 of the keys of each query; `query_ranges`: those of the queries of each key.
    Both must not decrease. Dropout is drawn from torch's generator.
    """
    random = [torch.zeros(1, dtype=torch.int32, device=q_THK.device)] * 2
    if dropout > 0:
        random = draw((len(q_THK), len(kv_S2HK)), q_THK.device)
    inputs = q_THK.contiguous(), kv_S2HK.contiguous(), *key_ranges, *query_ranges, *random
    return cross_attention_forward(*inputs, dropout)[0]
