"""Attention of one query per hypothesis of a beam search to its tokens so far: a Triton kernel.

Keys and values are not moved when hypotheses are reordered: a table holds the row of the cache of each token of a
hypothesis. M hypotheses, L tokens of the cache, H heads, K head width.
"""

import triton
import triton.language as tl
from torch import Tensor

from bertsmith.nn.kernels.attention import LOG2_E, MASKED_SCORE

TILES = {"BLOCK_N": 32, "num_warps": 2}


@triton.jit
def cached_attention_kernel(
    q, pairs, rows, step, out, L, q_stride,
    qk_scale: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The output of one head of one hypothesis, by online softmax."""
    head, hypothesis = tl.program_id(0) % H, tl.program_id(0) // H
    columns = head * K + tl.arange(0, K)
    q_K = tl.load(q + hypothesis.to(tl.int64) * q_stride + columns).to(tl.float32) * qk_scale
    count = tl.load(step) + 1  # the token of this step included
    acc = tl.zeros([K], tl.float32)
    total, largest = tl.full((), 0.0, tl.float32), tl.full((), MASKED_SCORE, tl.float32)
    for first in range(0, count, BLOCK_N):
        tokens = first + tl.arange(0, BLOCK_N)
        inside = tokens < count
        row = tl.load(rows + hypothesis.to(tl.int64) * L + tokens, mask=inside, other=0)
        offsets = (row.to(tl.int64) * L + tokens)[:, None] * (2 * H * K) + columns[None, :]
        k = tl.load(pairs + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(k * q_K[None, :], 1), MASKED_SCORE)
        new_largest = tl.maximum(largest, tl.max(scores, 0))
        p = tl.where(inside, tl.exp2(scores - new_largest), 0.0)
        alpha = tl.exp2(largest - new_largest)
        v = tl.load(pairs + offsets + H * K, mask=inside[:, None], other=0.0).to(tl.float32)
        acc = acc * alpha + tl.sum(p[:, None] * v, 0)
        total = total * alpha + tl.sum(p, 0)
        largest = new_largest
    tl.store(out + hypothesis.to(tl.int64) * (H * K) + columns, (acc / total).to(out.dtype.element_ty))


def attend(q_MHK: Tensor, pairs_ML2HK: Tensor, rows_ML: Tensor, step: Tensor) -> Tensor:
    """The outputs [M, H, K] of queries whose heads are contiguous.

    `rows_ML`: the row of `pairs_ML2HK` with each token of a hypothesis. `step` [1]: how many tokens come before the
    newest one.
    """
    count, heads, width = q_MHK.shape
    out = q_MHK.new_empty(count, heads, width)
    cached_attention_kernel[(count * heads,)](
        q_MHK, pairs_ML2HK, rows_ML, step, out, pairs_ML2HK.shape[1], q_MHK.stride(0),
        qk_scale=width**-0.5 * LOG2_E.value, H=heads, K=width, **TILES,
    )  # fmt: skip
    return out
