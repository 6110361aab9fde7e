"""Whole blocks in eight bits: each half, with its sum and its norm, there and back in one.

So a norm casts for the products on both sides of it, turns what they want turned, and sums up their biases' gradients,
all in the pass that it needs anyway. T places, W the next multiple of 16, D width, N = 3D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.nn import eight_bits as eight
from bertsmith.nn import float8
from bertsmith.nn.activations import gelu_new
from bertsmith.nn.attention import AttentionContext
from bertsmith.nn.dropout import draw
from bertsmith.nn.eight_norm import norm_back, norm_forth
from bertsmith.nn.normed import Normed, in_full
from bertsmith.nn.transformer import Block

NO_NORM = (None,) * 4  # what goes in is meant as it is


class Float8Block(Block):
    """A block that learns as a whole where all its places are read; else as the parts that it has."""

    def forward(  # type: ignore[override]
        self, x: Tensor | Normed, context: AttentionContext, places: Tensor | None = None
    ) -> tuple[Tensor | Normed, Tensor | None]:
        """See `Block.forward`; what goes in and what comes out may stand for [T, D]."""
        learns = self.training and torch.is_grad_enabled()
        if not learns or places is not None or context.kernel != "triton":
            return super().forward(in_full(x), context, places)
        return self._feed(self._attend(x, context)), None

    def _attend(self, x: Tensor | Normed, context: AttentionContext) -> Normed:
        from bertsmith.nn.packed_attention import draw_chances  # which needs triton

        attention = self.attention
        assert attention is not None
        assert context.sequence_bounds is not None
        qkv, output = attention.qkv, attention.output
        given = *_taken(x), qkv.weight, qkv.bias, output.weight, output.bias
        chances = draw_chances(len(context.sequence_bounds[0]), qkv.weight.device, attention.dropout)
        how = attention.heads, attention.dropout, context.causal
        seen = *context.sequence_bounds, chances, *float8.rotary_tensors(context.rotary)
        return self._half(_Attended, given, self.attention_norm, how, seen)

    def _feed(self, x: Tensor | Normed) -> Normed:
        feeds = self.feed_forward
        assert feeds is not None
        given = *_taken(x), feeds.expand.weight, feeds.expand.bias, feeds.contract.weight, feeds.contract.bias
        return self._half(_Fed, given, self.feed_forward_norm, (feeds.activation is gelu_new,), ())

    def _half(
        self, half: type[torch.autograd.Function], given: tuple[Any, ...], norm: nn.Module, how: tuple[Any, ...],
        context: tuple[Tensor, ...],
    ) -> Normed:  # fmt: skip
        """What comes of a half: `given` are what goes in and its weights."""
        assert isinstance(norm, nn.LayerNorm)
        draws = draw(given[0].shape, given[0].device) if self.dropout.p > 0 else (None, None)
        undo = self.feed_forward.expand.undo_input, self.feed_forward.expand.undo_weight  # type: ignore[union-attr]
        rest = *draws, norm.eps, self.dropout.p, *undo, *how, *context
        found: tuple[Any, ...] = half.apply(*given, norm.weight, norm.bias, *rest)  # type: ignore[no-untyped-call]
        return Normed._make((*found, norm.weight, norm.bias))


def _taken(x: Tensor | Normed) -> tuple[Tensor | None, ...]:
    """What goes into a half: a sum, the way of gradients, both casts, and what makes the norm of the sum."""
    if isinstance(x, Normed):
        return *x[:4], *x.norm
    half_TD = x.bfloat16()
    small_TD = eight.cast_in(half_TD.detach())
    way_TD = half_TD.view_as(half_TD)  # the compiler takes nothing twice
    return half_TD, way_TD, small_TD, eight.transpose(small_TD), *NO_NORM


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, way_TD: Tensor, x8_TD: Tensor, x8_DW: Tensor, *given: Any) -> Any:
        x_norm, (qkv_ND, qkv_N, output_DD, output_D), norm, draws, numbers, undo, rest = _grouped(given)
        (heads, *how), context = rest[:3], rest[3:]
        (qkv8_ND, qkv8_DN), (output8_DD, turned8_DD) = eight.cast_weight(qkv_ND), eight.cast_weight(output_DD)
        *seen, seen8_TD, seen8_DW = float8.look_forth(x8_TD, qkv8_ND, qkv_N, undo, context, heads, how)
        more_TD = eight.forth(seen8_TD, output8_DD, output_D, *undo)
        total_TD, mean_T, rise_T, *casts = norm_forth(x_TD, x_norm, more_TD, draws, *norm, *numbers)
        kept = *undo, x8_DW, qkv8_DN, turned8_DD, seen8_DW, *seen, *context, *draws
        ctx.save_for_backward(total_TD, mean_T, rise_T, norm[0], *kept)
        ctx.dropped, ctx.how, ctx.kind, ctx.looks = numbers[1], how, qkv_ND.dtype, len(context)
        return _given(ctx, total_TD, *casts, mean_T, rise_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        norm, (of_x, of_weight, *kept) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        x8_DW, qkv8_DN, turned8_DD, seen8_DW, *rest = kept
        seen, draws = rest[: 3 + ctx.looks], rest[3 + ctx.looks :]
        come: tuple[Any, ...] = (*_come(gradients), *norm, draws, ctx.dropped)
        g_TD, g8_TD, g8_DW, sums_3D = norm_back(*come)
        of_g = eight.undo_back(g8_TD, of_weight)
        seen_TD = eight.back(g8_TD, turned8_DD, of_g, of_weight)
        output_DD = eight.of_weight(g8_DW, seen8_DW, of_g, of_x)
        dx_TD, qkv_ND, qkv_N = float8.look_back(seen_TD, x8_DW, qkv8_DN, (of_g, of_x, of_weight), seen, ctx.how)
        found = qkv_ND, qkv_N, output_DD, sums_3D[2], sums_3D[0], sums_3D[1]
        return g_TD, dx_TD, *(None,) * 6, *(each.to(ctx.kind) for each in found), *(None,) * (9 + ctx.looks)


class _Fed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, way_TD: Tensor, x8_TD: Tensor, x8_DW: Tensor, *given: Any) -> Any:
        x_norm, (expand_FD, expand_F, contract_DF, contract_D), norm, draws, numbers, undo, rest = _grouped(given)
        (tanh,), (weights8, turned8) = rest, float8.cast_both(expand_FD, contract_DF)
        more_TD, *kept = float8.feed_forth(x8_TD, weights8, (expand_F, contract_D), undo, tanh)
        total_TD, mean_T, rise_T, *casts = norm_forth(x_TD, x_norm, more_TD, draws, *norm, *numbers)
        ctx.save_for_backward(total_TD, mean_T, rise_T, norm[0], *undo, x8_DW, *turned8, *kept, *draws)
        ctx.dropped, ctx.tanh, ctx.kind = numbers[1], tanh, expand_FD.dtype
        return _given(ctx, total_TD, *casts, mean_T, rise_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        norm, (of_x, of_weight, *kept) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        come: tuple[Any, ...] = (*_come(gradients), *norm, kept[5:], ctx.dropped)
        g_TD, g8_TD, g8_DW, sums_3D = norm_back(*come)
        undo = eight.undo_back(g8_TD, of_weight), of_x, of_weight
        dx_TD, expand_FD, expand_F, contract_DF = float8.feed_back(g8_TD, g8_DW, undo, kept[:5], ctx.tanh)
        found = expand_FD, expand_F, contract_DF, sums_3D[2], sums_3D[0], sums_3D[1]
        return g_TD, dx_TD, *(None,) * 6, *(each.to(ctx.kind) for each in found), *(None,) * 7


def _grouped(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """What makes the norm that goes in; weights; the norm's; draws; its two numbers; what undoes casts; the rest."""
    x_norm, draws = ([each for each in group if each is not None] for group in (given[:4], given[10:12]))
    return x_norm, given[4:8], given[8:10], draws, given[12:14], given[14:16], given[16:]


def _given(ctx: Any, total_TD: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """What a half gives, in the order of `Normed`."""
    ctx.mark_non_differentiable(*others)
    return total_TD, total_TD.new_zeros(1, 1).expand_as(total_TD), *others


def _come(gradients: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """On both ways."""
    return gradients[0].contiguous(), gradients[1].contiguous()


def convert(part: nn.Module) -> int:
    """Has the linear layers in a part that gain by it learn in eight bits, in whole blocks if can be; their number."""
    changed = float8.convert(part)
    for block in part.modules():
        if type(block) is Block and _whole(block):
            block.__class__ = Float8Block
    return changed


def _whole(block: Block) -> bool:
    """Whether all of it is in eight bits."""
    attention, feeds = block.attention, block.feed_forward
    norms = block.attention_norm, block.feed_forward_norm
    halves = (
        attention is not None
        and type(attention.qkv) is float8.Float8Qkv
        and type(attention.output) is float8.Float8Output
    )
    biased = all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)
    return halves and isinstance(feeds, float8.Float8FeedForward) and biased and attention.qkv.bias is not None
