"""Losses of guessed words as a Triton kernel: each row of logits is read, answered and turned into its gradient.

R rows, V tokens, chunks of N of them.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def guess(
    logits, labels, losses, right, gradient, V: tl.constexpr, N: tl.constexpr, IGNORE_INDEX: tl.constexpr
):  # fmt: skip
    """One row: its loss, whether its greatest logit is the right one, and the gradient of its loss."""
    row = tl.program_id(0)
    label = tl.load(labels + row)
    first = row.to(tl.int64) * V
    most = tl.full((), LOWEST, tl.float32)
    best = tl.full((), 0, tl.int32)
    totals = tl.zeros([N], tl.float32)  # of exponentials, over the greatest logit so far
    for begin in range(0, V, N):
        columns = begin + tl.arange(0, N)
        x = tl.load(logits + first + columns, mask=columns < V, other=LOWEST).to(tl.float32)
        higher, place = tl.max(x, 0, return_indices=True)
        best = tl.where(higher > most, begin + place, best)
        higher = tl.maximum(most, higher)
        totals = totals * tl.exp2((most - higher) * LOG2_E) + tl.exp2((x - higher) * LOG2_E)
        most = higher
    total = tl.sum(totals, 0)
    asked = label != IGNORE_INDEX
    own = tl.load(logits + first + tl.where(asked, label, 0)).to(tl.float32)
    tl.store(losses + row, tl.where(asked, tl.log2(total) * LN_2 + most - own, 0.0))
    tl.store(right + row, asked & (best == label))
    share = tl.where(asked, 1.0 / total, 0.0)
    for begin in range(0, V, N):
        columns = begin + tl.arange(0, N)
        x = tl.load(logits + first + columns, mask=columns < V, other=LOWEST).to(tl.float32)
        found = tl.exp2((x - most) * LOG2_E) * share
        found -= tl.where(columns == label, 1.0, 0.0)  # a label that is not asked is no column
        tl.store(gradient + first + columns, found.to(gradient.dtype.element_ty), mask=columns < V)
