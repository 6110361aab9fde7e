"""Post-norm blocks in FP8: each sub-layer with its residual addition and layer norm is one autograd function.

The layer norm then casts for the products before and after it, transposes what they need transposed, and sums up the
gradients of biases, all in the pass that it needs anyway. T tokens, W the next multiple of 16, D width, N = 3D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import bertsmith.nn.fp8.layers as layers
import bertsmith.nn.fp8.ops as ops
from bertsmith.nn.activations import gelu_new
from bertsmith.nn.attention import AttentionContext
from bertsmith.nn.dropout import draw, draw_dropout
from bertsmith.nn.fp8.ops import LazyNorm, materialize
from bertsmith.nn.transformer import Block

NO_NORM = (None,) * 4  # in place of `LazyNorm.norm`


class Float8Block(Block):
    """A block that trains as a whole in FP8 where all tokens are computed; elsewhere layer by layer."""

    def forward(  # type: ignore[override]
        self, x: Tensor | LazyNorm, context: AttentionContext, indices: Tensor | None = None
    ) -> tuple[Tensor | LazyNorm, Tensor | None]:
        """See `Block.forward`."""
        trains = self.training and torch.is_grad_enabled()
        if not trains or indices is not None or context.kernel != "triton":
            return super().forward(materialize(x), context, indices)
        return self._feed_forward(self._attention(x, context)), None

    def _attention(self, x: Tensor | LazyNorm, context: AttentionContext) -> LazyNorm:
        attention = self.attention
        assert attention is not None
        assert context.sequence_bounds is not None
        qkv, output = attention.qkv, attention.output
        args = *_unpacked(x), qkv.weight, qkv.bias, output.weight, output.bias
        random = draw_dropout(len(context.sequence_bounds[0]), qkv.weight.device, attention.dropout)
        settings = attention.heads, attention.dropout, context.causal
        tensors = *context.sequence_bounds, random, *layers.rotary_tensors(context.rotary)
        return self._sublayer(_AttentionAddNorm, args, self.attention_norm, (*settings, *tensors))

    def _feed_forward(self, x: Tensor | LazyNorm) -> LazyNorm:
        layer = self.feed_forward
        assert layer is not None
        args = *_unpacked(x), layer.expand.weight, layer.expand.bias, layer.contract.weight, layer.contract.bias
        return self._sublayer(_FeedForwardAddNorm, args, self.feed_forward_norm, (layer.activation is gelu_new,))

    def _sublayer(
        self, function: type[torch.autograd.Function], args: tuple[Any, ...], norm: nn.Module, rest: tuple[Any, ...]
    ) -> LazyNorm:
        """`args`: `_unpacked` input and weights."""
        assert isinstance(norm, nn.LayerNorm)
        random = draw(args[0].shape, args[0].device) if self.dropout.p > 0 else (None, None)
        expand: Any = self.feed_forward.expand  # type: ignore[union-attr]
        inverses = expand.input_inverse, expand.weight_inverse
        outputs: tuple[Any, ...] = function.apply(
            *args, norm.weight, norm.bias, *random, norm.eps, self.dropout.p, *inverses, *rest
        )  # type: ignore[no-untyped-call]
        return LazyNorm._make((*outputs, norm.weight, norm.bias))


def _unpacked(x: Tensor | LazyNorm) -> tuple[Tensor | None, ...]:
    """The first eight arguments of a sub-layer: total, path, both casts, and `LazyNorm.norm`."""
    if isinstance(x, LazyNorm):
        return *x[:4], *x.norm
    half_TD = x.bfloat16()
    half8_TD = ops.quantize_input(half_TD.detach())
    path_TD = half_TD.view_as(half_TD)  # the compiler does not accept one tensor as two arguments
    return half_TD, path_TD, half8_TD, ops.transpose(half8_TD), *NO_NORM


class _AttentionAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, path_TD: Tensor, x8_TD: Tensor, x8_DW: Tensor, *args: Any) -> Any:
        x_norm, (qkv_ND, qkv_N, output_DD, output_D), norm, random, numbers, inverses, rest = _grouped(args)
        (heads, *settings), context = rest[:3], rest[3:]
        qkv8_ND, qkv8_DN = ops.quantize_weight(qkv_ND)
        output8_DD, output8_transposed_DD = ops.quantize_weight(output_DD)
        *attended, out8_TD, out8_DW = layers.attention(x8_TD, qkv8_ND, qkv_N, inverses, context, heads, settings)
        y_TD = ops.matmul(out8_TD, output8_DD, output_D, *inverses)
        total_TD, mean_T, rstd_T, *casts = ops.add_norm(x_TD, x_norm, y_TD, random, *norm, *numbers)
        saved = *inverses, x8_DW, qkv8_DN, output8_transposed_DD, out8_DW, *attended, *context, *random
        ctx.save_for_backward(total_TD, mean_T, rstd_T, norm[0], *saved)
        ctx.dropout, ctx.settings, ctx.dtype, ctx.context_size = numbers[1], settings, qkv_ND.dtype, len(context)
        return _outputs(ctx, total_TD, *casts, mean_T, rstd_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        norm, (x_inverse, weight_inverse, *saved) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        x8_DW, qkv8_DN, output8_transposed_DD, out8_DW, *rest = saved
        attended, random = rest[: 3 + ctx.context_size], rest[3 + ctx.context_size :]
        backward_args: tuple[Any, ...] = (*_both(gradients), *norm, random, ctx.dropout)
        dtotal_TD, dy8_TD, dy8_DW, sums_3D = ops.add_norm_backward(*backward_args)
        g_inverse = ops.gradient_inverse_scale(dy8_TD, weight_inverse)
        inverses = g_inverse, x_inverse, weight_inverse
        do_TD = ops.matmul_dx(dy8_TD, output8_transposed_DD, g_inverse, weight_inverse)
        doutput_DD = ops.matmul_dw(dy8_DW, out8_DW, g_inverse, x_inverse)
        dx_TD, dqkv_ND, dqkv_N = layers.attention_backward(do_TD, x8_DW, qkv8_DN, inverses, attended, ctx.settings)
        grads = dqkv_ND, dqkv_N, doutput_DD, sums_3D[2], sums_3D[0], sums_3D[1]
        none = (None,) * (9 + ctx.context_size)
        return dtotal_TD, dx_TD, *(None,) * 6, *(grad.to(ctx.dtype) for grad in grads), *none


class _FeedForwardAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, path_TD: Tensor, x8_TD: Tensor, x8_DW: Tensor, *args: Any) -> Any:
        x_norm, (expand_FD, expand_F, contract_DF, contract_D), norm, random, numbers, inverses, rest = _grouped(args)
        (tanh,), (weights8, transposed8) = rest, layers.quantize_both(expand_FD, contract_DF)
        y_TD, *saved = layers.feed_forward(x8_TD, weights8, (expand_F, contract_D), inverses, tanh)
        total_TD, mean_T, rstd_T, *casts = ops.add_norm(x_TD, x_norm, y_TD, random, *norm, *numbers)
        ctx.save_for_backward(total_TD, mean_T, rstd_T, norm[0], *inverses, x8_DW, *transposed8, *saved, *random)
        ctx.dropout, ctx.tanh, ctx.dtype = numbers[1], tanh, expand_FD.dtype
        return _outputs(ctx, total_TD, *casts, mean_T, rstd_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        norm, (x_inverse, weight_inverse, *saved) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        backward_args: tuple[Any, ...] = (*_both(gradients), *norm, saved[5:], ctx.dropout)
        dtotal_TD, dy8_TD, dy8_DW, sums_3D = ops.add_norm_backward(*backward_args)
        inverses = ops.gradient_inverse_scale(dy8_TD, weight_inverse), x_inverse, weight_inverse
        dx_TD, dexpand_FD, dexpand_F, dcontract_DF = layers.feed_forward_backward(
            dy8_TD, dy8_DW, inverses, saved[:5], ctx.tanh
        )
        grads = dexpand_FD, dexpand_F, dcontract_DF, sums_3D[2], sums_3D[0], sums_3D[1]
        return dtotal_TD, dx_TD, *(None,) * 6, *(grad.to(ctx.dtype) for grad in grads), *(None,) * 7


def _grouped(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """`LazyNorm.norm` of the input, weights, weight and bias of the norm, random numbers, eps and dropout, inverse
    scales, the rest."""
    x_norm, random = ([each for each in group if each is not None] for group in (args[:4], args[10:12]))
    return x_norm, args[4:8], args[8:10], random, args[12:14], args[14:16], args[16:]


def _outputs(ctx: Any, total_TD: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The outputs of a sub-layer, in the order of `LazyNorm`."""
    ctx.mark_non_differentiable(*others)
    return total_TD, total_TD.new_zeros(1, 1).expand_as(total_TD), *others


def _both(gradients: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The gradients of total and path."""
    return gradients[0].contiguous(), gradients[1].contiguous()


def convert_blocks(module: nn.Module) -> int:
    """`convert_layers`, then also makes whole blocks FP8 blocks where they can be; returns the number of layers."""
    converted = layers.convert_layers(module)
    for block in module.modules():
        if type(block) is Block and _is_fp8_throughout(block):
            block.__class__ = Float8Block
    return converted


def _is_fp8_throughout(block: Block) -> bool:
    attention, norms = block.attention, (block.attention_norm, block.feed_forward_norm)
    return (
        attention is not None
        and type(attention.qkv) is layers.Float8Qkv
        and type(attention.output) is layers.Float8Output
        and isinstance(block.feed_forward, layers.Float8FeedForward)
        and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
        and attention.qkv.bias is not None
    )
