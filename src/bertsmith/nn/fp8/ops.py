"""FP8 operations: casts with fixed scales, matrix products, GELU, and residual addition with layer norm.

Scales are fixed powers of two, so that no pass over the values is needed to find their maximum and the kernel before a
product can cast for it. Inputs of products come out of a layer norm, and gradients are of the order of 1 / tokens.
Operands are transposed before they are multiplied: the compiler would otherwise repeat the cast. The suffix 8 marks FP8
tensors. T tokens, W the next multiple of 16, K inputs, N outputs, D width, F feed-forward width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

from bertsmith.nn import activations
from bertsmith.nn.attention import HAS_TRITON
from bertsmith.nn.dropout import drop_by

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2  # of inputs and weights; of gradients
INPUT_SCALE = 8.0  # of inputs: a relative precision of 1/16 from 0.002 to 56, where they saturate
WEIGHT_SCALE = 128.0  # of weights: from 0.0001 to 3.5
GRADIENT_SCALE = 16.0  # of gradients times T: from 4e-6 / T to 3584 / T
MULTIPLE = 16  # required of both sides of a matrix


def quantize(values: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Values times the scale in FP8; values out of range saturate."""
    largest = torch.finfo(dtype).max
    return (values.float() * scale).clamp(-largest, largest).to(dtype)


def quantize_input(x: Tensor) -> Tensor:
    return quantize(x, INPUT_SCALE, E4M3)


def quantize_gradient(g_TN: Tensor) -> Tensor:
    return quantize(g_TN, GRADIENT_SCALE * len(g_TN), E5M2)


@custom_op("bertsmith::quantize_weight", mutates_args=())
def quantize_weight(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in e4m3, and its transpose; opaque to the compiler, which would repeat the cast for each product."""
    if weight_NK.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels.elementwise import cast_fp8  # imports triton

        return cast_fp8(weight_NK.contiguous(), WEIGHT_SCALE)
    weight8_NK = quantize(weight_NK, WEIGHT_SCALE, E4M3)
    return weight8_NK, transpose(weight8_NK)


@quantize_weight.register_fake
def _(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight_NK.shape
    return weight_NK.new_empty(outputs, inputs, dtype=E4M3), weight_NK.new_empty(inputs, outputs, dtype=E4M3)


def gradient_inverse_scale(g_TN: Tensor, weight_inverse: Tensor) -> Tensor:
    """The inverse of the scale of `quantize_gradient` [1], from that of weights, which is on the right device."""
    inverse: Tensor = _multiply(weight_inverse, WEIGHT_SCALE / (GRADIENT_SCALE * len(g_TN)))
    return inverse


@custom_op("bertsmith::multiply", mutates_args=())
def _multiply(number: Tensor, factor: float) -> Tensor:
    """A product that is opaque to the compiler; see `quantize_weight`."""
    return number * factor


@_multiply.register_fake
def _(number: Tensor, factor: float) -> Tensor:
    return torch.empty_like(number)


def transpose(x8_TN: Tensor) -> Tensor:
    """FP8 values, transposed [N, W], padded with zeros."""
    if x8_TN.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels.elementwise import transpose_fp8

        transposed: Tensor = transpose_fp8(x8_TN)
        return transposed
    bits_NT = x8_TN.view(torch.uint8).t()
    return F.pad(bits_NT, (0, -bits_NT.shape[1] % MULTIPLE)).contiguous().view(x8_TN.dtype)


def matmul(
    x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor | None, x_inverse: Tensor, weight_inverse: Tensor
) -> Tensor:
    """x · weightᵀ + bias [T, N] in bfloat16; the last two arguments are the inverse scales."""
    return torch._scaled_mm(
        x8_TK,
        weight8_NK.t(),
        scale_a=x_inverse,
        scale_b=weight_inverse,
        bias=None if bias_N is None else bias_N.bfloat16(),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def matmul_dx(g8_TN: Tensor, weight8_KN: Tensor, g_inverse: Tensor, weight_inverse: Tensor) -> Tensor:
    """The gradient of the input [T, K] in bfloat16, by the transposed weight."""
    return matmul(g8_TN, weight8_KN, None, g_inverse, weight_inverse)


def matmul_dw(g8_NW: Tensor, x8_KW: Tensor, g_inverse: Tensor, x_inverse: Tensor) -> Tensor:
    """The gradient of the weight [N, K] in float32, with exact accumulation because it sums over all tokens."""
    return torch._scaled_mm(
        g8_NW, x8_KW.t(), scale_a=g_inverse, scale_b=x_inverse, out_dtype=torch.float32, use_fast_accum=False
    )


def gelu(h_TF: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """GELU in e4m3 [T, F], and transposed [F, W]."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels.elementwise import gelu_fp8

        y8_TF, y8_FW = gelu_fp8(h_TF, INPUT_SCALE, tanh)
        return y8_TF, y8_FW
    y8_TF = quantize_input(activations.gelu_new(h_TF) if tanh else activations.gelu(h_TF))
    return y8_TF, transpose(y8_TF)


def gelu_backward(dy_TF: Tensor, h_TF: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of GELU's input in e5m2 [T, F], transposed [F, W], and its column sums [F]."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels.elementwise import gelu_backward_fp8

        dh8_TF, dh8_FW, sums_PF = gelu_backward_fp8(dy_TF, h_TF, scale, tanh)
        return dh8_TF, dh8_FW, sums_PF.sum(0)
    dh_TF = torch.ops.aten.gelu_backward(dy_TF, h_TF, approximate="tanh" if tanh else "none")
    dh8_TF = quantize(dh_TF, scale, E5M2)
    return dh8_TF, transpose(dh8_TF), dh_TF.sum(0, dtype=torch.float32)


class LazyNorm(NamedTuple):
    """LayerNorm of a sum that is not written in full: FP8 products read its cast, the next norm recomputes it.

    Its gradient arrives in two parts, which the backward kernel adds: that of `total`, through the residual connection,
    and that of `path`, a tensor whose values are never read, through the matrix product.
    """

    total_TD: Tensor  # the sum
    path_TD: Tensor
    normed8_TD: Tensor
    normed8_DW: Tensor  # transposed
    mean_T: Tensor
    rstd_T: Tensor  # reciprocal standard deviation
    weight_D: Tensor
    bias_D: Tensor

    @property
    def norm(self) -> list[Tensor]:
        """The arguments of `layer_norm` after the total."""
        return [self.mean_T, self.rstd_T, self.weight_D.detach(), self.bias_D.detach()]


def layer_norm(total_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, weight_D: Tensor, bias_D: Tensor) -> Tensor:
    """[T, D] in float32."""
    return (total_TD.float() - mean_T[:, None]) * rstd_T[:, None] * weight_D + bias_D


class _Materialize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, total_TD: Tensor, *norm: Tensor) -> Tensor:
        return layer_norm(total_TD, *norm).to(total_TD.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], *(None,) * 4  # the gradient of the norm, which `add_norm_backward` expects


def materialize(x: Tensor | LazyNorm) -> Tensor:
    """[T, D] in full."""
    if isinstance(x, Tensor):
        return x
    normed_TD: Tensor = _Materialize.apply(x.total_TD, *x.norm)  # type: ignore[no-untyped-call]
    return normed_TD


def add_norm(
    x_TD: Tensor, x_norm: list[Tensor], y_TD: Tensor, random: list[Tensor], weight_D: Tensor, bias_D: Tensor,
    eps: float, dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """total = x + dropout(y) [T, D], its mean and rstd [T], LayerNorm(total) in e4m3, and transposed [D, W].

    `x_norm`: see `LazyNorm.norm`, where LayerNorm(x) takes the place of x; `random`: see `dropout.draw`, empty without
    dropout.
    """
    if y_TD.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels import norm

        total_TD, mean_T, rstd_T, normed8_TD, normed8_DW = norm.add_norm(
            x_TD, x_norm, y_TD, random, weight_D, bias_D, eps, dropout, INPUT_SCALE
        )
        return total_TD, mean_T, rstd_T, normed8_TD, normed8_DW
    residual_TD = layer_norm(x_TD, *x_norm) if x_norm else x_TD.float()
    added_TD = drop_by(y_TD.float(), random, dropout) if random else y_TD.float()
    total_TD = (residual_TD + added_TD).to(y_TD.dtype)
    variance_T, mean_T = torch.var_mean(total_TD.float(), 1, correction=0)
    rstd_T = torch.rsqrt(variance_T + eps)
    normed8_TD = quantize_input(layer_norm(total_TD, mean_T, rstd_T, weight_D, bias_D))
    return total_TD, mean_T, rstd_T, normed8_TD, transpose(normed8_TD)


def add_norm_backward(
    dn1_TD: Tensor, dn2_TD: Tensor, total_TD: Tensor, mean_T: Tensor, rstd_T: Tensor, weight_D: Tensor,
    random: list[Tensor], dropout: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradient of the total [T, D]; that of y in e5m2, and transposed [D, W]; sums over tokens [3, D].

    The gradient of LayerNorm(total) is `dn1` + `dn2`. Sums: gradients of weight and bias, column sums of that of y.
    """
    scale = GRADIENT_SCALE * len(total_TD)
    if total_TD.is_cuda and HAS_TRITON:
        from bertsmith.nn.kernels import norm

        dtotal_TD, dy8_TD, dy8_DW, sums_P3D = norm.add_norm_backward(
            dn1_TD, dn2_TD, total_TD, mean_T, rstd_T, weight_D, random, dropout, scale
        )
        return dtotal_TD, dy8_TD, dy8_DW, sums_P3D.sum(0)
    dn_TD = dn1_TD.float() + dn2_TD.float()
    x_hat_TD = (total_TD.float() - mean_T[:, None]) * rstd_T[:, None]
    dweight_D, dbias_D = (dn_TD * x_hat_TD).sum(0), dn_TD.sum(0)
    dn_TD = dn_TD * weight_D
    c1_T1, c2_T1 = (dn_TD * x_hat_TD).mean(1, keepdim=True), dn_TD.mean(1, keepdim=True)
    dtotal_TD = (dn_TD - c2_T1 - x_hat_TD * c1_T1) * rstd_T[:, None]
    dy_TD = drop_by(dtotal_TD, random, dropout) if random else dtotal_TD
    dy8_TD = quantize(dy_TD, scale, E5M2)
    sums_3D = torch.stack((dweight_D, dbias_D, dy_TD.sum(0)))
    return dtotal_TD.to(total_TD.dtype), dy8_TD, transpose(dy8_TD), sums_3D
