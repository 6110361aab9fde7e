"""A linear layer and ReLU: one product with bias and activation, and a Triton kernel for the backward of ReLU.

T tokens, D inputs, F columns, tiles of BLOCK_M tokens and BLOCK_N columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

BACKWARD_TILES = {"BLOCK_M": 8, "BLOCK_N": 128, "REPEATS": 8, "num_warps": 2}  # those of GELU


@triton.jit
def relu_backward_kernel(
    dy, y, dx, column_sums, T, F: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, REPEATS: tl.constexpr
):  # fmt: skip
    """The gradient of REPEATS tiles below each other, and their column sums."""
    blocks: tl.constexpr = (F + BLOCK_N - 1) // BLOCK_N
    part, column = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BLOCK_N
    columns = column + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(REPEATS):
        tokens = (part * REPEATS + i) * BLOCK_M + tl.arange(0, BLOCK_M)
        offsets = tokens.to(tl.int64)[:, None] * F + columns[None, :]
        mask = (tokens[:, None] < T) & (columns[None, :] < F)
        value = tl.load(y + offsets, mask=mask, other=0.0)
        gradient = tl.where(value > 0, tl.load(dy + offsets, mask=mask, other=0.0), 0.0)
        total += gradient.to(tl.float32)
        tl.store(dx + offsets, gradient, mask=mask)
    tl.store(column_sums + part * F + columns, tl.sum(total, 0), mask=columns < F)


@triton_op("bertsmith::relu_backward", mutates_args=())
def relu_backward(dy: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [T, F], and its sums over parts of T [P, F]."""
    (tokens, width), tiles = y.shape, BACKWARD_TILES
    parts = triton.cdiv(tokens, tiles["BLOCK_M"] * tiles["REPEATS"])
    dx, column_sums = torch.empty_like(y), y.new_empty(parts, width, dtype=torch.float32)
    grid = (parts * triton.cdiv(width, tiles["BLOCK_N"]),)
    wrap_triton(relu_backward_kernel)[grid](dy, y, dx, column_sums, tokens, F=width, **tiles)
    return dx, column_sums


class _LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        dtype = torch.bfloat16 if x_TD.is_cuda else x_TD.dtype
        half_TD, half_FD = x_TD.to(dtype), weight_FD.to(dtype)
        y_TF: Tensor = torch.ops.aten._addmm_activation(bias_F.to(dtype), half_TD, half_FD.t())
        ctx.save_for_backward(half_TD, half_FD, y_TF)
        ctx.dtypes = x_TD.dtype, weight_FD.dtype, bias_F.dtype
        return y_TF

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x_TD, weight_FD, y_TF = ctx.saved_tensors
        dz_TF, sums_PF = relu_backward(gradients[0].contiguous(), y_TF)
        results = dz_TF @ weight_FD, dz_TF.t() @ x_TD, sums_PF.sum(0)
        return tuple(result.to(dtype) for result, dtype in zip(results, ctx.dtypes, strict=True))


def linear_relu(x_TD: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
    """ReLU of the layer's outputs [T, F], in bfloat16 on CUDA."""
    y_TF: Tensor = _LinearReLU.apply(x_TD, weight_FD, bias_F)
    return y_TF
