"""Matrix products in eight bits: forward, backward to the input, and to the weights where casts can be turned.

Scales are fixed powers of two, so that no pass over the numbers is needed to find them and the compiler can put each
cast into the kernel before it. What goes in was normalised just before, what comes back is of the order of 1 / tokens.
A cast that would need a pass of its own costs what it gains: GELU and attention make theirs in their own kernels, and
the gradient of the matrix behind attention stays in bfloat16. What is turned is turned before it is multiplied: the
compiler would make the cast twice. T rows, W the next multiple of 16, K inputs, N outputs, D width, F inner width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.nn.activations import gelu, gelu_new
from bertsmith.nn.attention import HAS_TRITON
from bertsmith.nn.transformer import FeedForward

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
INPUT = 8.0  # times what goes in: exact to 1/16 from 0.002 to 56, where it ends
WEIGHT = 128.0  # times the weights: from 0.0001 to 3.5
GRADIENT = 16.0  # times T times what comes back: from 4e-6 / T to 3584 / T
MULTIPLE = 16  # of which both sides of a matrix must be
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
        for name, scale in (("input", INPUT), ("weight", WEIGHT)):
            # a tensor each: the kernel wants them at the beginning of a stretch of memory
            undo = torch.tensor([1 / scale], device=linear.weight.device)
            self.register_buffer(f"undo_{name}", undo, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        undo = self.undo_input, self.undo_weight
        given = input, _cast_in(input.detach()), self.weight, self.bias, self.back
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
        weight8_NK = _cast_weight(weight_NK)
        y_TN = _forth(x8_TK, weight8_NK, bias_N, of_x, of_weight)
        ctx.save_for_backward(x_TK.bfloat16(), weight8_NK if back else weight_NK, of_weight)
        ctx.kinds, ctx.has_bias, ctx.back = (x_TK.dtype, weight_NK.dtype), bias_N is not None, back
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TN,) = gradients
        x_TK, weight_NK, of_weight = ctx.saved_tensors
        half_TN = g_TN.bfloat16()
        if ctx.back:
            back_TK = _back(_cast_back(g_TN), weight_NK, _undo_back(g_TN), of_weight)
        else:
            back_TK = half_TN @ weight_NK.bfloat16()
        inputs, weights = ctx.kinds
        bias = half_TN.sum(0, dtype=torch.float32).to(weights) if ctx.has_bias else None
        return back_TK.to(inputs), None, (half_TN.t() @ x_TK).to(weights), bias, *(None,) * 3


class Float8Qkv(Float8Linear):
    """The matrix before attention, which attends itself where that is our kernel: this casts on both ways."""

    def attend(
        self, x_TD: Tensor, reach: tuple[Tensor, Tensor], *, heads: int, dropout: float, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """What each place sees [T, D], and that in eight bits; `reach` [T] each: where its text begins and ends."""
        from bertsmith.nn.packed_attention import draw_seed  # which needs triton

        given = self.weight, self.bias, *reach, draw_seed(x_TD.device, dropout)
        undo = self.undo_input, self.undo_weight
        seen_TD, seen8_TD = _Seen.apply(x_TD, *given, *undo, heads, dropout, causal)  # type: ignore[no-untyped-call]
        return seen_TD, seen8_TD


class _Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        from bertsmith.nn.packed_attention import attend_forth_eight

        weight_ND, bias_N, begin_T, end_T, seed, of_x, of_weight, heads, dropout, causal = given
        x8_TD, weight8_ND = _cast_in(x_TD), _cast_weight(weight_ND)
        x8_DW = _turn(x8_TD)
        qkv_T3HK = _forth(x8_TD, weight8_ND, bias_N, of_x, of_weight).view(len(x_TD), 3, heads, -1)
        seen = qkv_T3HK, begin_T, end_T, seed
        out_THK, lse_HT, out8_THK = attend_forth_eight(*seen, dropout, causal, INPUT)
        ctx.save_for_backward(x8_DW, weight8_ND, of_x, of_weight, *seen, out_THK, lse_HT)
        ctx.kinds, ctx.how = (x_TD.dtype, weight_ND.dtype, bias_N is not None), (dropout, causal)
        out_TD, out8_TD = out_THK.flatten(1), out8_THK.flatten(1)
        ctx.mark_non_differentiable(out8_TD)
        return out_TD, out8_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from bertsmith.nn.packed_attention import attend_back_eight

        x8_DW, weight8_ND, of_x, of_weight, *seen = ctx.saved_tensors
        g_THK, of_g = gradients[0].contiguous().view_as(seen[4]), _undo_back(gradients[0])
        g8_TN, g8_NW, sums_PN = attend_back_eight(g_THK, *seen, *ctx.how, GRADIENT * len(g_THK))
        dx_TD = _back(g8_TN, weight8_ND, of_g, of_weight)
        dweight_ND = _of_weight(g8_NW, x8_DW, of_g, of_x)
        inputs, weights, has_bias = ctx.kinds
        dbias_N = sums_PN.sum(0).to(weights) if has_bias else None
        return dx_TD.to(inputs), dweight_ND.to(weights), dbias_N, *(None,) * 8


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
        x8_TD, expand8_FD, contract8_DF = (_cast_in(x_TD), _cast_weight(expand_FD), _cast_weight(contract_DF))
        x8_DW = _turn(x8_TD)
        h_TF = _forth(x8_TD, expand8_FD, expand_F, of_x, of_weight)
        y8_TF, y8_FW = _gelu(h_TF, ctx.tanh)
        out_TD = _forth(y8_TF, contract8_DF, contract_D, of_x, of_weight)
        ctx.save_for_backward(x8_DW, h_TF, y8_FW, expand8_FD, contract8_DF, of_x, of_weight)
        ctx.kinds = x_TD.dtype, expand_FD.dtype
        return out_TD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x8_DW, h_TF, y8_FW, expand8_FD, contract8_DF, of_x, of_weight = ctx.saved_tensors
        (g_TD,) = gradients
        g8_TD, of_g = _cast_back(g_TD), _undo_back(g_TD)
        g8_DW = _turn(g8_TD)
        dy_TF = _back(g8_TD, contract8_DF, of_g, of_weight)
        dh8_TF, dh8_FW, expand_F = _gelu_back(dy_TF, h_TF, GRADIENT * len(g_TD), ctx.tanh)
        dx_TD = _back(dh8_TF, expand8_FD, of_g, of_weight)
        expand_FD, contract_DF = _of_weight(dh8_FW, x8_DW, of_g, of_x), _of_weight(g8_DW, y8_FW, of_g, of_x)
        inputs, weights = ctx.kinds
        found = expand_FD, expand_F, contract_DF, g_TD.sum(0, dtype=torch.float32)
        return dx_TD.to(inputs), *(each.to(weights) for each in found), *(None,) * 3


def _gelu(h_TF: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """GELU in eight bits [T, F], and that turned [F, W]."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import gelu_eight  # which needs triton

        found: tuple[Tensor, Tensor] = gelu_eight(h_TF, INPUT, tanh)
        return found
    y8_TF = _cast_in(gelu_new(h_TF) if tanh else gelu(h_TF))
    return y8_TF, _turn(y8_TF)


def _gelu_back(dy_TF: Tensor, h_TF: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """GELU's gradient in eight bits [T, F], that turned [F, W], and its column sums."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import gelu_eight_back

        dh8_TF, dh8_FW, sums_PF = gelu_eight_back(dy_TF, h_TF, scale, tanh)
        return dh8_TF, dh8_FW, sums_PF.sum(0)
    dh_TF = torch.ops.aten.gelu_backward(dy_TF, h_TF, approximate="tanh" if tanh else "none")
    dh8_TF = _cast(dh_TF, scale, BACKWARD)
    return dh8_TF, _turn(dh8_TF), dh_TF.sum(0, dtype=torch.float32)


def _turn(small_TN: Tensor) -> Tensor:
    """Eight bits turned [N, W], zeros at the end."""
    if small_TN.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import turn

        found: Tensor = turn(small_TN)
        return found
    bits_NT = small_TN.view(torch.uint8).t()
    return F.pad(bits_NT, (0, -bits_NT.shape[1] % MULTIPLE)).contiguous().view(small_TN.dtype)


def _forth(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor | None, of_x: Tensor, of_weight: Tensor) -> Tensor:
    """The product [T, N] of what goes in and the weights."""
    return torch._scaled_mm(
        x8_TK,
        weight8_NK.t(),
        scale_a=of_x,
        scale_b=of_weight,
        bias=None if bias_N is None else bias_N.bfloat16(),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def _back(g8_TN: Tensor, weight8_NK: Tensor, of_g: Tensor, of_weight: Tensor) -> Tensor:
    """The gradient [T, K] of what went in."""
    return torch._scaled_mm(
        g8_TN,
        weight8_NK.t().contiguous().t(),  # the kernel wants it column by column
        scale_a=of_g,
        scale_b=of_weight,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def _of_weight(g8_NW: Tensor, x8_KW: Tensor, of_g: Tensor, of_x: Tensor) -> Tensor:
    """The gradient [N, K] of the weights; sums over all places are kept exact."""
    return torch._scaled_mm(g8_NW, x8_KW.t(), scale_a=of_g, scale_b=of_x, out_dtype=torch.float32, use_fast_accum=False)


def _cast_in(x: Tensor) -> Tensor:
    return _cast(x, INPUT, FORWARD)


def _cast_weight(weight: Tensor) -> Tensor:
    return _cast(weight, WEIGHT, FORWARD)


def _cast_back(g_TN: Tensor) -> Tensor:
    return _cast(g_TN, GRADIENT * len(g_TN), BACKWARD)


def _undo_back(g_TN: Tensor) -> Tensor:
    """What undoes it [1]: the compiler makes one for all that have as many rows."""
    return torch.full((1,), 1 / (GRADIENT * len(g_TN)), device=g_TN.device)


def _cast(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    most = torch.finfo(kind).max
    return (values.float() * scale).clamp(-most, most).to(kind)


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
    return linear.in_features % MULTIPLE == 0 and linear.out_features % MULTIPLE == 0
