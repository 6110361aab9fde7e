"""Guessed words for CUDA, as operations that torch can compile: logits, loss and their gradient in two passes.

R rows, E width of the token table, V tokens. See `words_kernels`, which needs triton.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn import words_kernels as kernels
from bertsmith.types import IGNORE_INDEX

TILES = {"N": 4096, "num_warps": 8}


@triton_op("bertsmith::guess", mutates_args=())
def guess(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row its loss [R], whether it is right [R] bool, and the gradient of its loss [R, V]."""
    rows, tokens = logits.shape
    losses, right = logits.new_empty(rows, dtype=torch.float32), logits.new_empty(rows, dtype=torch.bool)
    gradient = torch.empty_like(logits)
    wrap_triton(kernels.guess)[(rows,)](
        logits, labels, losses, right, gradient, V=tokens, IGNORE_INDEX=IGNORE_INDEX, **TILES
    )
    return losses, right, gradient


class _Guessed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_RE: Tensor, table_VE: Tensor, bias_V: Tensor, labels_R: Tensor) -> tuple[Tensor, Tensor]:
        kind = torch.bfloat16 if h_RE.is_cuda else h_RE.dtype
        small_RE, small_VE = h_RE.to(kind), table_VE.to(kind)
        losses_R, right_R, gradient_RV = guess(F.linear(small_RE, small_VE, bias_V.to(kind)), labels_R)
        ctx.save_for_backward(small_RE, small_VE, gradient_RV)
        ctx.kinds = h_RE.dtype, table_VE.dtype, bias_V.dtype
        ctx.mark_non_differentiable(right_R)
        return losses_R.sum(), right_R

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h_RE, table_VE, gradient_RV = ctx.saved_tensors
        times, (of_h, of_table, of_bias) = gradients[0], ctx.kinds
        return (
            ((gradient_RV @ table_VE) * times).to(of_h),
            ((gradient_RV.t() @ h_RE) * times).to(of_table),
            (gradient_RV.sum(0, dtype=torch.float32) * times).to(of_bias),
            None,
        )


def guessed(h_RE: Tensor, table_VE: Tensor, bias_V: Tensor, labels_R: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of the losses [] where something is asked, and whether the likeliest token is the right one [R] bool."""
    total, right_R = _Guessed.apply(h_RE, table_VE, bias_V, labels_R)  # type: ignore[no-untyped-call]
    return total, right_R
