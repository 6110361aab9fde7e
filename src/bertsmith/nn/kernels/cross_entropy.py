"""Logits of a language model, cross-entropy and its gradient, by a Triton kernel that reads each row of logits twice.

R rows, E width of the token embeddings, V tokens, BLOCK_N of them at a time.
"""

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.types import IGNORE_INDEX

TILES = {"BLOCK_N": 4096, "num_warps": 8}
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def cross_entropy_kernel(
    logits, labels, losses, correct, dlogits,
    V: tl.constexpr, BLOCK_N: tl.constexpr, IGNORE: tl.constexpr, SMOOTHING: tl.constexpr
):  # fmt: skip
    """One row: its loss, whether its largest logit is the label's, and the gradient of its loss.

    The target is (1 - SMOOTHING) at the label plus SMOOTHING / V everywhere.
    """
    row = tl.program_id(0)
    label = tl.load(labels + row)
    row_start = row.to(tl.int64) * V
    max_logit = tl.full((), LOWEST, tl.float32)
    argmax = tl.full((), 0, tl.int32)
    sums = tl.zeros([BLOCK_N], tl.float32)  # of exponentials, relative to the largest logit so far
    logit_sums = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, V, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        x = tl.load(logits + row_start + columns, mask=columns < V, other=LOWEST).to(tl.float32)
        new_max, index = tl.max(x, 0, return_indices=True)
        argmax = tl.where(new_max > max_logit, start + index, argmax)
        new_max = tl.maximum(max_logit, new_max)
        sums = sums * tl.exp2((max_logit - new_max) * LOG2_E) + tl.exp2((x - new_max) * LOG2_E)
        max_logit = new_max
        if SMOOTHING > 0:
            logit_sums += tl.where(columns < V, x, 0.0)
    total = tl.sum(sums, 0)
    has_label = label != IGNORE
    label_logit = tl.load(logits + row_start + tl.where(has_label, label, 0)).to(tl.float32)
    target_logit = label_logit
    if SMOOTHING > 0:
        target_logit = (1.0 - SMOOTHING) * label_logit + SMOOTHING / V * tl.sum(logit_sums, 0)
    tl.store(losses + row, tl.where(has_label, tl.log2(total) * LN_2 + max_logit - target_logit, 0.0))
    tl.store(correct + row, has_label & (argmax == label))
    factor = tl.where(has_label, 1.0 / total, 0.0)
    for start in range(0, V, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        x = tl.load(logits + row_start + columns, mask=columns < V, other=LOWEST).to(tl.float32)
        dx = tl.exp2((x - max_logit) * LOG2_E) * factor
        dx -= tl.where(columns == label, 1.0 - SMOOTHING, 0.0)  # IGNORE is not a column
        if SMOOTHING > 0:
            dx -= tl.where(has_label, SMOOTHING / V, 0.0)
        tl.store(dlogits + row_start + columns, dx.to(dlogits.dtype.element_ty), mask=columns < V)


@triton_op("bertsmith::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: its loss [R], whether the prediction is correct [R] bool, and the gradient of its loss [R, V]."""
    rows, tokens = logits.shape
    losses, correct = logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.bool)
    dlogits = torch.empty_like(logits)
    wrap_triton(cross_entropy_kernel)[(rows,)](
        logits, labels, losses, correct, dlogits, V=tokens, IGNORE=IGNORE_INDEX, SMOOTHING=smoothing, **TILES
    )
    return losses, correct, dlogits


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h_RE: Tensor, table_VE: Tensor, bias_V: Tensor | None, labels_R: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.bfloat16 if h_RE.is_cuda else h_RE.dtype
        half_RE, half_VE = h_RE.to(dtype), table_VE.to(dtype)
        logits_RV = F.linear(half_RE, half_VE, None if bias_V is None else bias_V.to(dtype))
        losses_R, correct_R, dlogits_RV = cross_entropy(logits_RV, labels_R, smoothing)
        ctx.save_for_backward(half_RE, half_VE, dlogits_RV)
        ctx.dtypes = h_RE.dtype, table_VE.dtype, None if bias_V is None else bias_V.dtype
        ctx.mark_non_differentiable(correct_R)
        return losses_R.sum(), correct_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h_RE, table_VE, dlogits_RV = ctx.saved_tensors
        dloss, (h_dtype, table_dtype, bias_dtype) = gradients[0], ctx.dtypes
        return (
            ((dlogits_RV @ table_VE) * dloss).to(h_dtype),
            ((dlogits_RV.t() @ h_RE) * dloss).to(table_dtype),
            None if bias_dtype is None else (dlogits_RV.sum(0, dtype=torch.float32) * dloss).to(bias_dtype),
            None,
            None,
        )


def linear_cross_entropy(
    h_RE: Tensor, table_VE: Tensor, bias_V: Tensor | None, labels_R: Tensor, smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The sum of the losses [] of rows with a label, and which predictions are correct [R] bool.

    `smoothing`: the weight of the uniform distribution over all tokens in the target.
    """
    loss, correct_R = _LinearCrossEntropy.apply(h_RE, table_VE, bias_V, labels_R, smoothing)
    return loss, correct_R
