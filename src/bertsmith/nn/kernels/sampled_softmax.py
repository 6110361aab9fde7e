"""Cross entropy of labels against sampled tokens, and its gradient, by a Triton kernel that reads the logits twice.

R rows, P width, S sampled tokens, BLOCK of them at a time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILES = {"BLOCK": 4096, "num_warps": 8}
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
LOWEST = tl.constexpr(-1.0e30)


@triton.jit
def _corrected(logits, bias, sampled, columns, target, S: tl.constexpr):
    """The logits of a row with their bias; the lowest where a sampled token is the label itself."""
    mask = columns < S
    x = tl.load(logits + columns, mask=mask, other=0.0).to(tl.float32) + tl.load(bias + columns, mask=mask, other=0.0)
    return tl.where(mask & (tl.load(sampled + columns, mask=mask, other=-1) != target), x, LOWEST)


@triton.jit
def sampled_softmax_kernel(
    logits, label_logits, bias, sampled, targets, known, losses, correct, dlabel_logits, S: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its loss, whether its label has the largest logit, and the gradient, which replaces the logits."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * S
    target, label_logit, counts = tl.load(targets + row), tl.load(label_logits + row), tl.load(known + row)
    max_logit, best = label_logit, tl.full((), LOWEST, tl.float32)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, S, BLOCK):
        x = _corrected(logits, bias, sampled, start + tl.arange(0, BLOCK), target, S)
        best = tl.maximum(best, tl.max(x, 0))
        new_max = tl.maximum(max_logit, best)
        sums = sums * tl.exp2((max_logit - new_max) * LOG2_E) + tl.exp2((x - new_max) * LOG2_E)
        max_logit = new_max
    label_share = tl.exp2((label_logit - max_logit) * LOG2_E)
    total = tl.sum(sums, 0) + label_share
    factor = tl.where(counts, 1.0 / total, 0.0)
    tl.store(losses + row, tl.where(counts, tl.log2(total) * LN_2 + max_logit - label_logit, 0.0))
    tl.store(correct + row, counts & (label_logit > best))
    tl.store(dlabel_logits + row, label_share * factor - tl.where(counts, 1.0, 0.0))
    for start in range(0, S, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = _corrected(logits, bias, sampled, columns, target, S)
        dx = tl.exp2((x - max_logit) * LOG2_E) * factor
        tl.store(logits + columns, dx.to(logits.dtype.element_ty), mask=columns < S)


class _SampledSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_RP: Tensor, label_logit_R: Tensor, table_SP: Tensor, bias_S: Tensor, sampled_S: Tensor,
        target_R: Tensor, known_R: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        half_SP = table_SP.to(x_RP.dtype)
        logits_RS = x_RP @ half_SP.t()
        losses_R, dlabel_logit_R = torch.empty_like(label_logit_R), torch.empty_like(label_logit_R)
        correct_R = torch.empty_like(known_R)
        sampled_softmax_kernel[(len(x_RP),)](
            logits_RS, label_logit_R, bias_S, sampled_S, target_R, known_R, losses_R, correct_R, dlabel_logit_R,
            S=len(sampled_S), **TILES,
        )  # fmt: skip
        ctx.save_for_backward(x_RP, half_SP, logits_RS, dlabel_logit_R)
        ctx.table_dtype = table_SP.dtype
        ctx.mark_non_differentiable(correct_R)
        return losses_R.sum(), correct_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_RP, table_SP, dlogits_RS, dlabel_logit_R = ctx.saved_tensors
        dloss = gradients[0]
        return (
            ((dlogits_RS @ table_SP) * dloss).to(x_RP.dtype),
            dlabel_logit_R * dloss,
            ((dlogits_RS.t() @ x_RP) * dloss).to(ctx.table_dtype),
            dlogits_RS.sum(0, dtype=torch.float32) * dloss,
            None,
            None,
            None,
        )


def sampled_softmax(
    x_RP: Tensor,
    label_logit_R: Tensor,
    table_SP: Tensor,
    bias_S: Tensor,
    sampled_S: Tensor,
    target_R: Tensor,
    known_R: Tensor,
) -> tuple[Tensor, Tensor]:
    """The sum of the losses [] of the `known_R` rows, and which labels have the largest logit [R] bool.

    `label_logit_R`: the logits of the labels `target_R` in float32; those of the sampled tokens are products with
    `table_SP` plus `bias_S` in float32.
    """
    with torch.autocast(x_RP.device.type, enabled=False):  # products are in the type of x_RP, as in the backward
        loss, correct_R = _SampledSoftmax.apply(
            x_RP.contiguous(), label_logit_R.float(), table_SP, bias_S.float(), sampled_S, target_R, known_R
        )
    return loss, correct_R
