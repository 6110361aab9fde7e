"""Matrix products in eight bits: forward, backward to the input, and to the weights where casts can be turned.

A cast that would need a pass of its own costs what it gains: GELU, attention and norms make theirs in their own
kernels. See `eight_bits` for scales and products, and `float8_block` for blocks that learn as a whole. T rows, W the
next multiple of 16, K inputs, N outputs, D width, F inner width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn import eight_bits as eight
from bertsmith.nn.activations import gelu, gelu_new
from bertsmith.nn.rotary import RotaryEmbedding
from bertsmith.nn.transformer import FeedForward

PLAIN = 3  # tensors that a look needs where nothing is turned
# which matrices of a block; whether backward as well where it is not ours to say
BACK_TOO = {"qkv": False, "output": True, "expand": True, "contract": True}


class Float8Linear(nn.Linear):
    """A linear layer that learns in eight bits; when it does not learn it is as any other."""

    undo_input: Tensor  # [1] what undoes INPUT
    undo_weight: Tensor  # [1] and WEIGHT

    def __init__(self, linear: nn.Linear, *, back: bool = True) -> None:
        nn.Module.__init__(self)
        self.back = back  # whether gradients of what goes in are computed in eight bits too
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        for name, scale in (("input", eight.INPUT), ("weight", eight.WEIGHT)):
            # a tensor each: the kernel wants them at the beginning of a stretch of memory
            undo = torch.tensor([1 / scale], device=linear.weight.device)
            self.register_buffer(f"undo_{name}", undo, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        undo = self.undo_input, self.undo_weight
        given = input, eight.cast_in(input.detach()), self.weight, self.bias, self.back
        found: Tensor = _Product.apply(*given, *undo)  # type: ignore[no-untyped-call]
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TK: Tensor,
        x8_TK: Tensor,
        weight_NK: Tensor,
        bias_N: Tensor | None,
        back: bool,
        of_x: Tensor,
        of_weight: Tensor,
    ) -> Tensor:
        weight8_NK, weight8_KN = eight.cast_weight(weight_NK)
        y_TN = eight.forth(x8_TK, weight8_NK, bias_N, of_x, of_weight)
        ctx.save_for_backward(x_TK.bfloat16(), weight8_KN if back else weight_NK, of_weight)
        ctx.kinds, ctx.has_bias, ctx.back = (x_TK.dtype, weight_NK.dtype), bias_N is not None, back
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TN,) = gradients
        x_TK, weight, of_weight = ctx.saved_tensors
        half_TN = g_TN.bfloat16()
        if ctx.back:
            back_TK = eight.back(eight.cast_back(g_TN), weight, eight.undo_back(g_TN, of_weight), of_weight)
        else:
            back_TK = half_TN @ weight.bfloat16()
        inputs, weights = ctx.kinds
        bias = half_TN.sum(0, dtype=torch.float32).to(weights) if ctx.has_bias else None
        return back_TK.to(inputs), None, (half_TN.t() @ x_TK).to(weights), bias, *(None,) * 3


class Float8Qkv(Float8Linear):
    """The matrix before attention, which attends itself where that is our kernel: this casts on both ways."""

    def attend(
        self, x_TD: Tensor, reach: tuple[Tensor, Tensor], *, heads: int, dropout: float, causal: bool,
        rotary: RotaryEmbedding | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """What each place sees [T, D], and that in eight bits; `reach` [T] each: where its text begins and ends."""
        from bertsmith.nn.packed_attention import draw_chances  # which needs triton

        given = x_TD, self.weight, self.bias, self.undo_input, self.undo_weight
        context = *reach, draw_chances(len(x_TD), x_TD.device, dropout), *rotary_tensors(rotary)
        seen_TD, seen8_TD = _Seen.apply(*given, heads, dropout, causal, *context)  # type: ignore[no-untyped-call]
        return seen_TD, seen8_TD


def rotary_tensors(rotary: RotaryEmbedding | None) -> tuple[Tensor, ...]:
    """What turns queries and keys, the last of what a look needs; nothing where they are not turned."""
    return () if rotary is None else (rotary.cos, rotary.sin)


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        (weight_ND, bias_N, of_x, of_weight, heads), how, context = given[:5], given[5:7], given[7:]
        x8_TD, (weight8_ND, weight8_DN) = eight.cast_in(x_TD), eight.cast_weight(weight_ND)
        x8_DW = eight.transpose(x8_TD)
        seen = look_forth(x8_TD, weight8_ND, bias_N, (of_x, of_weight), context, heads, how)
        _, out_TD, _, out8_TD, _ = seen
        ctx.save_for_backward(x8_DW, weight8_DN, of_x, of_weight, *seen[:3], *context)
        ctx.kinds, ctx.how = (x_TD.dtype, weight_ND.dtype, bias_N is not None), how
        ctx.mark_non_differentiable(out8_TD)
        return out_TD, out8_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x8_DW, weight8_DN, of_x, of_weight, *seen = ctx.saved_tensors
        of_g = eight.undo_back(gradients[0], of_weight)
        undo = of_g, of_x, of_weight
        dx_TD, dweight_ND, dbias_N = look_back(gradients[0].contiguous(), x8_DW, weight8_DN, undo, seen, ctx.how)
        inputs, weights, has_bias = ctx.kinds
        found = dx_TD.to(inputs), dweight_ND.to(weights), dbias_N.to(weights) if has_bias else None
        return *found, *(None,) * (2 + len(seen))  # as many as came with them: three of how, two of undoing


def look_forth(
    x8_TD: Tensor, weight8_ND: Tensor, bias_N: Tensor | None, undo: Sequence[Tensor], context: Sequence[Tensor],
    heads: int, how: Sequence[Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values [T, 3, H, K], what is seen [T, D], logarithms of sums [H, T]; seen in 8 bits, turned.

    `context`: where texts begin and end [T], what dropout takes, and `turning`.
    """
    from bertsmith.nn.packed_attention import attend_forth_eight, turn_both  # which needs triton

    qkv_T3HK = eight.forth(x8_TD, weight8_ND, bias_N, *undo).view(len(x8_TD), 3, heads, -1)
    if len(context) > PLAIN:
        qkv_T3HK = turn_both(qkv_T3HK, *context[PLAIN:])
    out_THK, lse_HT, out8_TD, out8_DW = attend_forth_eight(qkv_T3HK, *context[:PLAIN], *how, eight.INPUT)
    return qkv_T3HK, out_THK.flatten(1), lse_HT, out8_TD, out8_DW


def look_back(
    g_TD: Tensor, x8_DW: Tensor, weight8_DN: Tensor, undo: Sequence[Tensor], seen: Sequence[Tensor], how: Sequence[Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of what went in [T, D], of the matrix [N, D], and of its bias.

    `seen`: the first three that `look_forth` gave, and its `context`.
    """
    from bertsmith.nn.packed_attention import attend_back, attend_back_eight, turn_back_eight

    (qkv_T3HK, out_TD, lse_HT), context = seen[:3], seen[3:]
    of_g, of_x, of_weight = undo
    g_THK, out_THK = (each_TD.view(len(g_TD), *qkv_T3HK.shape[2:]) for each_TD in (g_TD, out_TD))
    given = g_THK, qkv_T3HK, *context[:PLAIN], out_THK, lse_HT, *how
    scale = eight.GRADIENT * len(g_TD)
    if len(context) > PLAIN:
        g8_TN, g8_NW, sums_PN = turn_back_eight(attend_back(*given), *context[PLAIN:], scale)
    else:
        g8_TN, g8_NW, sums_PN = attend_back_eight(*given, scale)
    dx_TD = eight.back(g8_TN, weight8_DN, of_g, of_weight)
    return dx_TD, eight.of_weight(g8_NW, x8_DW, of_g, of_x), sums_PN.sum(0)


class Float8Output(Float8Linear):
    """The matrix behind attention: in eight bits where attention has cast what it takes, else as any other."""

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        return F.linear(input, self.weight, self.bias)

    def project(self, x_TK: Tensor, x8_TK: Tensor) -> Tensor:
        """[T, K], and that in eight bits -> [T, N]."""
        given = x_TK, x8_TK, self.weight, self.bias, True
        undo = self.undo_input, self.undo_weight
        found: Tensor = _Product.apply(*given, *undo)  # type: ignore[no-untyped-call]
        return found


class Float8FeedForward(nn.Module):
    """Two matrices with GELU between them that learn in eight bits; GELU casts for both in its own pass.

    When it does not learn it is as the one that it was made of.
    """

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
        undo = self.expand.undo_input, self.expand.undo_weight
        out_TD = _Feed.apply(x_TD, *weights, *undo, self.activation is gelu_new)  # type: ignore[no-untyped-call]
        return out_TD


class _Feed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *given: Any) -> Tensor:
        expand_FD, expand_F, contract_DF, contract_D, of_x, of_weight, ctx.tanh = given
        x8_TD, (weights8, turned8) = eight.cast_in(x_TD), cast_both(expand_FD, contract_DF)
        x8_DW = eight.transpose(x8_TD)
        out_TD, *kept = feed_forth(x8_TD, weights8, (expand_F, contract_D), (of_x, of_weight), ctx.tanh)
        ctx.save_for_backward(of_x, of_weight, x8_DW, *turned8, *kept)
        ctx.kinds = x_TD.dtype, expand_FD.dtype
        return out_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_weight, *kept = ctx.saved_tensors
        (g_TD,) = gradients
        g8_TD, undo = eight.cast_back(g_TD), (eight.undo_back(g_TD, of_weight), of_x, of_weight)
        g8_DW = eight.transpose(g8_TD)
        dx_TD, *found = feed_back(g8_TD, g8_DW, undo, kept, ctx.tanh)
        inputs, weights = ctx.kinds
        of_weights = *found, g_TD.sum(0, dtype=torch.float32)
        return dx_TD.to(inputs), *(each.to(weights) for each in of_weights), *(None,) * 3


def cast_both(expand_FD: Tensor, contract_DF: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Both matrices in eight bits, and both turned."""
    (expand8_FD, expand8_DF), (contract8_DF, contract8_FD) = (
        eight.cast_weight(expand_FD),
        eight.cast_weight(contract_DF),
    )
    return (expand8_FD, contract8_DF), (expand8_DF, contract8_FD)


def feed_forth(
    x8_TD: Tensor, weights8: Sequence[Tensor], biases: Sequence[Tensor], undo: Sequence[Tensor], tanh: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What two matrices with GELU between them give [T, D]; what GELU takes [T, F]; it in eight bits, turned [F, W]."""
    expand8_FD, contract8_DF = weights8
    h_TF = eight.forth(x8_TD, expand8_FD, biases[0], *undo)
    y8_TF, y8_FW = eight.gelu_forth(h_TF, tanh)
    return eight.forth(y8_TF, contract8_DF, biases[1], *undo), h_TF, y8_FW


def feed_back(
    g8_TD: Tensor, g8_DW: Tensor, undo: Sequence[Tensor], kept: Sequence[Tensor], tanh: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of what went in [T, D], of the first matrix, of its bias, and of the second matrix."""
    x8_DW, expand8_DF, contract8_FD, h_TF, y8_FW = kept
    of_g, of_x, of_weight = undo
    dy_TF = eight.back(g8_TD, contract8_FD, of_g, of_weight)
    dh8_TF, dh8_FW, expand_F = eight.gelu_back(dy_TF, h_TF, eight.GRADIENT * len(g8_TD), tanh)
    dx_TD = eight.back(dh8_TF, expand8_DF, of_g, of_weight)
    return dx_TD, eight.of_weight(dh8_FW, x8_DW, of_g, of_x), expand_F, eight.of_weight(g8_DW, y8_FW, of_g, of_x)


def convert(part: nn.Module) -> int:
    """Has the linear layers in a part that gain by it learn in eight bits; how many they are."""
    changed = 0
    for name, child in list(part.named_children()):
        if isinstance(child, FeedForward) and serves(child):
            setattr(part, name, Float8FeedForward(child))
            changed += 2
        elif type(child) is nn.Linear and name in BACK_TOO:
            if _fits(child):
                kind = {"qkv": Float8Qkv, "output": Float8Output}.get(name, Float8Linear)
                setattr(part, name, kind(child, back=BACK_TOO[name]))
                changed += 1
        else:
            changed += convert(child)
    return changed


def serves(feeds: FeedForward) -> bool:
    """Whether both matrices and GELU between them can be one in eight bits."""
    plain = type(feeds) is FeedForward and feeds.activation in (gelu, gelu_new) and feeds.expand.bias is not None
    return plain and _fits(feeds.expand)


def _fits(linear: nn.Linear) -> bool:
    """Whether the kernels take its shape."""
    return linear.in_features % eight.MULTIPLE == 0 and linear.out_features % eight.MULTIPLE == 0
