"""Linear layers, attention and feed-forward whose matrix products run in FP8 during training.

A cast that needs a pass of its own costs as much time as it saves, so GELU, attention and norms cast in their own
kernels. See `ops` for scales and products, and `block` for whole blocks. T tokens, W the next multiple of 16, K inputs,
N outputs, D width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bertsmith.nn.fp8.ops as ops
from bertsmith.nn.activations import gelu, gelu_new
from bertsmith.nn.attention import RotaryEmbedding
from bertsmith.nn.dropout import draw_dropout
from bertsmith.nn.transformer import FeedForward

WITHOUT_ROTARY = 3  # tensors of an attention context: begin and end of sequences, random numbers of dropout
# linear layers that are converted, and whether the gradient of their input is computed in FP8 too
FP8_DX = {"qkv": False, "output": True, "expand": True, "contract": True}


class Float8Linear(nn.Linear):
    """A linear layer that trains in FP8; in evaluation it is an ordinary one."""

    input_inverse: Tensor  # [1] 1 / INPUT_SCALE
    weight_inverse: Tensor  # [1] 1 / WEIGHT_SCALE

    def __init__(self, linear: nn.Linear, *, fp8_dx: bool = True) -> None:
        nn.Module.__init__(self)
        self.fp8_dx = fp8_dx  # compute the gradient of the input in FP8 too
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        for name, scale in (("input", ops.INPUT_SCALE), ("weight", ops.WEIGHT_SCALE)):
            # separate tensors, because the kernel requires aligned memory
            inverse = torch.tensor([1 / scale], device=linear.weight.device)
            self.register_buffer(f"{name}_inverse", inverse, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        return self._product(input, ops.quantize_input(input.detach()), self.fp8_dx)

    def _product(self, x_TK: Tensor, x8_TK: Tensor, fp8_dx: bool) -> Tensor:
        args = self.weight, self.bias, fp8_dx, self.input_inverse, self.weight_inverse
        y_TN: Tensor = _Linear.apply(x_TK, x8_TK, *args)  # type: ignore[no-untyped-call]
        return y_TN


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, x8_TK: Tensor, *args: Any) -> Tensor:
        weight_NK, bias_N, fp8_dx, x_inverse, weight_inverse = args
        weight8_NK, weight8_KN = ops.quantize_weight(weight_NK)
        y_TN = ops.matmul(x8_TK, weight8_NK, bias_N, x_inverse, weight_inverse)
        ctx.save_for_backward(x_TK.bfloat16(), weight8_KN if fp8_dx else weight_NK, weight_inverse)
        ctx.dtypes, ctx.has_bias, ctx.fp8_dx = (x_TK.dtype, weight_NK.dtype), bias_N is not None, fp8_dx
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TN,) = gradients
        x_TK, weight, weight_inverse = ctx.saved_tensors
        half_TN = g_TN.bfloat16()
        if ctx.fp8_dx:
            g_inverse = ops.gradient_inverse_scale(g_TN, weight_inverse)
            dx_TK = ops.matmul_dx(ops.quantize_gradient(g_TN), weight, g_inverse, weight_inverse)
        else:
            dx_TK = half_TN @ weight.bfloat16()
        x_dtype, weight_dtype = ctx.dtypes
        dbias_N = half_TN.sum(0, dtype=torch.float32).to(weight_dtype) if ctx.has_bias else None
        return dx_TK.to(x_dtype), None, (half_TN.t() @ x_TK).to(weight_dtype), dbias_N, *(None,) * 3


class Float8Qkv(Float8Linear):
    """The projection to queries, keys and values together with our attention kernel, which casts both ways."""

    def attend(
        self, x_TD: Tensor, sequence_bounds: tuple[Tensor, Tensor], *, heads: int, dropout: float, causal: bool,
        rotary: RotaryEmbedding | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The attention outputs [T, D], and in e4m3; `sequence_bounds`: see `AttentionContext`."""
        context = *sequence_bounds, draw_dropout(len(x_TD), x_TD.device, dropout), *rotary_tensors(rotary)
        inverses = self.input_inverse, self.weight_inverse
        out_TD, out8_TD = _QkvAttention.apply(x_TD, self.weight, self.bias, *inverses, heads, dropout, causal, *context)  # type: ignore[no-untyped-call]
        return out_TD, out8_TD


def rotary_tensors(rotary: RotaryEmbedding | None) -> tuple[Tensor, ...]:
    """The last tensors of an attention context; none without rotary embeddings."""
    return () if rotary is None else (rotary.cos, rotary.sin)


class _QkvAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        (weight_ND, bias_N, x_inverse, weight_inverse, heads), settings, context = args[:5], args[5:7], args[7:]
        x8_TD, (weight8_ND, weight8_DN) = ops.quantize_input(x_TD), ops.quantize_weight(weight_ND)
        x8_DW = ops.transpose(x8_TD)
        outputs = attention(x8_TD, weight8_ND, bias_N, (x_inverse, weight_inverse), context, heads, settings)
        _, out_TD, _, out8_TD, _ = outputs
        ctx.save_for_backward(x8_DW, weight8_DN, x_inverse, weight_inverse, *outputs[:3], *context)
        ctx.dtypes, ctx.settings = (x_TD.dtype, weight_ND.dtype, bias_N is not None), settings
        ctx.mark_non_differentiable(out8_TD)
        return out_TD, out8_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x8_DW, weight8_DN, x_inverse, weight_inverse, *saved = ctx.saved_tensors
        inverses = ops.gradient_inverse_scale(gradients[0], weight_inverse), x_inverse, weight_inverse
        do_TD = gradients[0].contiguous()
        dx_TD, dweight_ND, dbias_N = attention_backward(do_TD, x8_DW, weight8_DN, inverses, saved, ctx.settings)
        x_dtype, weight_dtype, has_bias = ctx.dtypes
        grads = dx_TD.to(x_dtype), dweight_ND.to(weight_dtype), dbias_N.to(weight_dtype) if has_bias else None
        return *grads, *(None,) * (2 + len(saved))  # inverse scales, heads, settings, context


def attention(
    x8_TD: Tensor, weight8_ND: Tensor, bias_N: Tensor | None, inverses: Sequence[Tensor], context: Sequence[Tensor],
    heads: int, settings: Sequence[Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values [T, 3, H, K], outputs [T, D], log-sum-exp [H, T]; outputs in e4m3, and transposed.

    `context`: begin and end of each token's sequence [T], random numbers of dropout, and `rotary_tensors`. `settings`:
    dropout and causal.
    """
    from bertsmith.nn.kernels.attention import attention_forward_fp8  # imports triton
    from bertsmith.nn.kernels.elementwise import rotate_qk

    qkv_T3HK = ops.matmul(x8_TD, weight8_ND, bias_N, *inverses).view(len(x8_TD), 3, heads, -1)
    if len(context) > WITHOUT_ROTARY:
        qkv_T3HK = rotate_qk(qkv_T3HK, *context[WITHOUT_ROTARY:])
    out_THK, lse_HT, out8_TD, out8_DW = attention_forward_fp8(
        qkv_T3HK, *context[:WITHOUT_ROTARY], *settings, ops.INPUT_SCALE
    )
    return qkv_T3HK, out_THK.flatten(1), lse_HT, out8_TD, out8_DW


def attention_backward(
    do_TD: Tensor, x8_DW: Tensor, weight8_DN: Tensor, inverses: Sequence[Tensor], saved: Sequence[Tensor],
    settings: Sequence[Any],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of the input [T, D], of the weight [N, D], and of the bias.

    `saved`: the first three results of `attention`, and its `context`.
    """
    from bertsmith.nn.kernels import attention as kernels
    from bertsmith.nn.kernels.elementwise import rotary_backward_fp8

    (qkv_T3HK, out_TD, lse_HT), context = saved[:3], saved[3:]
    g_inverse, x_inverse, weight_inverse = inverses
    do_THK, out_THK = (x_TD.view(len(do_TD), *qkv_T3HK.shape[2:]) for x_TD in (do_TD, out_TD))
    args = do_THK, qkv_T3HK, *context[:WITHOUT_ROTARY], out_THK, lse_HT, *settings
    scale = ops.GRADIENT_SCALE * len(do_TD)
    if len(context) > WITHOUT_ROTARY:
        dqkv_T3HK = kernels.attention_backward(*args)
        g8_TN, g8_NW, sums_PN = rotary_backward_fp8(dqkv_T3HK, *context[WITHOUT_ROTARY:], scale)
    else:
        g8_TN, g8_NW, sums_PN = kernels.attention_backward_fp8(*args, scale)
    dx_TD = ops.matmul_dx(g8_TN, weight8_DN, g_inverse, weight_inverse)
    return dx_TD, ops.matmul_dw(g8_NW, x8_DW, g_inverse, x_inverse), sums_PN.sum(0)


class Float8Output(Float8Linear):
    """The projection after attention: in FP8 where attention has cast its input, else an ordinary linear layer."""

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        return F.linear(input, self.weight, self.bias)

    def project(self, x_TK: Tensor, x8_TK: Tensor) -> Tensor:
        """[T, K], also in e4m3 -> [T, N]."""
        return self._product(x_TK, x8_TK, True)


class Float8FeedForward(nn.Module):
    """A feed-forward with GELU that trains in FP8, where GELU casts for both products; ordinary in evaluation."""

    def __init__(self, plain: FeedForward) -> None:
        super().__init__()
        self.expand, self.contract = Float8Linear(plain.expand), Float8Linear(plain.contract)
        self.activation = plain.activation

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, D] -> [T, D]."""
        if not (self.training and torch.is_grad_enabled()):
            out_TD: Tensor = self.contract(self.activation(self.expand(x_TD)))
            return out_TD
        weights = self.expand.weight, self.expand.bias, self.contract.weight, self.contract.bias
        inverses = self.expand.input_inverse, self.expand.weight_inverse
        tanh = self.activation is gelu_new
        out_TD = _FeedForward.apply(x_TD, *weights, *inverses, tanh)  # type: ignore[no-untyped-call]
        return out_TD


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *args: Any) -> Tensor:
        expand_FD, expand_F, contract_DF, contract_D, x_inverse, weight_inverse, ctx.tanh = args
        x8_TD, (weights8, transposed8) = ops.quantize_input(x_TD), quantize_both(expand_FD, contract_DF)
        x8_DW = ops.transpose(x8_TD)
        biases, inverses = (expand_F, contract_D), (x_inverse, weight_inverse)
        out_TD, *saved = feed_forward(x8_TD, weights8, biases, inverses, ctx.tanh)
        ctx.save_for_backward(x_inverse, weight_inverse, x8_DW, *transposed8, *saved)
        ctx.dtypes = x_TD.dtype, expand_FD.dtype
        return out_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_inverse, weight_inverse, *saved = ctx.saved_tensors
        (g_TD,) = gradients
        g8_TD = ops.quantize_gradient(g_TD)
        inverses = ops.gradient_inverse_scale(g_TD, weight_inverse), x_inverse, weight_inverse
        g8_DW = ops.transpose(g8_TD)
        dx_TD, *grads = feed_forward_backward(g8_TD, g8_DW, inverses, saved, ctx.tanh)
        x_dtype, weight_dtype = ctx.dtypes
        weight_grads = *grads, g_TD.sum(0, dtype=torch.float32)  # torch 2.11 cannot trace an append to `grads`
        return dx_TD.to(x_dtype), *(grad.to(weight_dtype) for grad in weight_grads), *(None,) * 3


def quantize_both(expand_FD: Tensor, contract_DF: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Both weights in e4m3, and both transposed."""
    expand8_FD, expand8_DF = ops.quantize_weight(expand_FD)
    contract8_DF, contract8_FD = ops.quantize_weight(contract_DF)
    return (expand8_FD, contract8_DF), (expand8_DF, contract8_FD)


def feed_forward(
    x8_TD: Tensor, weights8: Sequence[Tensor], biases: Sequence[Tensor], inverses: Sequence[Tensor], tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output [T, D], GELU's input [T, F], and GELU's output in e4m3, transposed [F, W]."""
    expand8_FD, contract8_DF = weights8
    h_TF = ops.matmul(x8_TD, expand8_FD, biases[0], *inverses)
    y8_TF, y8_FW = ops.gelu(h_TF, tanh)
    return ops.matmul(y8_TF, contract8_DF, biases[1], *inverses), h_TF, y8_FW


def feed_forward_backward(
    g8_TD: Tensor, g8_DW: Tensor, inverses: Sequence[Tensor], saved: Sequence[Tensor], tanh: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the input [T, D], of the first weight and bias, and of the second weight."""
    x8_DW, expand8_DF, contract8_FD, h_TF, y8_FW = saved
    g_inverse, x_inverse, weight_inverse = inverses
    dy_TF = ops.matmul_dx(g8_TD, contract8_FD, g_inverse, weight_inverse)
    dh8_TF, dh8_FW, dexpand_F = ops.gelu_backward(dy_TF, h_TF, ops.GRADIENT_SCALE * len(g8_TD), tanh)
    dx_TD = ops.matmul_dx(dh8_TF, expand8_DF, g_inverse, weight_inverse)
    dexpand_FD = ops.matmul_dw(dh8_FW, x8_DW, g_inverse, x_inverse)
    return dx_TD, dexpand_FD, dexpand_F, ops.matmul_dw(g8_DW, y8_FW, g_inverse, x_inverse)


def convert_layers(module: nn.Module) -> int:
    """Replaces the linear layers that are faster in FP8 in place; returns their number."""
    converted = 0
    for name, child in list(module.named_children()):
        if isinstance(child, FeedForward) and supports_fp8(child):
            setattr(module, name, Float8FeedForward(child))
            converted += 2
        elif type(child) is nn.Linear and name in FP8_DX:
            if _has_fp8_shape(child):
                layer_type = {"qkv": Float8Qkv, "output": Float8Output}.get(name, Float8Linear)
                setattr(module, name, layer_type(child, fp8_dx=FP8_DX[name]))
                converted += 1
        else:
            converted += convert_layers(child)
    return converted


def supports_fp8(layer: FeedForward) -> bool:
    """Whether `Float8FeedForward` can replace this layer."""
    plain = type(layer) is FeedForward and layer.activation in (gelu, gelu_new) and layer.expand.bias is not None
    return plain and _has_fp8_shape(layer.expand)


def _has_fp8_shape(linear: nn.Linear) -> bool:
    return linear.in_features % ops.MULTIPLE == 0 and linear.out_features % ops.MULTIPLE == 0
