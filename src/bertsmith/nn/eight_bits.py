"""Casts to eight bits and products of what was cast, which whole blocks and single matrices share.

Scales are fixed powers of two, so that no pass over the numbers is needed to find them and whatever kernel stands
before a product can cast for it. What goes in was normalised just before, what comes back is of the order of
1 / tokens. What is turned is turned before it is multiplied: the compiler would make the cast twice.
T rows, W the next multiple of 16, K inputs, N outputs, F inner width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.library import custom_op

from bertsmith.nn.activations import gelu, gelu_new
from bertsmith.nn.attention import HAS_TRITON

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
INPUT = 8.0  # times what goes in: exact to 1/16 from 0.002 to 56, where it ends
WEIGHT = 128.0  # times the weights: from 0.0001 to 3.5
GRADIENT = 16.0  # times T times what comes back: from 4e-6 / T to 3584 / T
MULTIPLE = 16  # of which both sides of a matrix must be


def gelu_forth(h_TF: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """GELU in eight bits [T, F], and that turned [F, W]."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import gelu_eight  # which needs triton

        found: tuple[Tensor, Tensor] = gelu_eight(h_TF, INPUT, tanh)
        return found
    y8_TF = cast_in(gelu_new(h_TF) if tanh else gelu(h_TF))
    return y8_TF, transpose(y8_TF)


def gelu_back(dy_TF: Tensor, h_TF: Tensor, scale: float, tanh: bool) -> tuple[Tensor, Tensor, Tensor]:
    """GELU's gradient in eight bits [T, F], that turned [F, W], and its column sums."""
    if h_TF.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import gelu_eight_back

        dh8_TF, dh8_FW, sums_PF = gelu_eight_back(dy_TF, h_TF, scale, tanh)
        return dh8_TF, dh8_FW, sums_PF.sum(0)
    dh_TF = torch.ops.aten.gelu_backward(dy_TF, h_TF, approximate="tanh" if tanh else "none")
    dh8_TF = cast(dh_TF, scale, BACKWARD)
    return dh8_TF, transpose(dh8_TF), dh_TF.sum(0, dtype=torch.float32)


def transpose(small_TN: Tensor) -> Tensor:
    """Eight bits turned [N, W], zeros at the end."""
    if small_TN.is_cuda and HAS_TRITON:
        from bertsmith.nn import fused_gelu

        found: Tensor = fused_gelu.turn(small_TN)
        return found
    bits_NT = small_TN.view(torch.uint8).t()
    return F.pad(bits_NT, (0, -bits_NT.shape[1] % MULTIPLE)).contiguous().view(small_TN.dtype)


def forth(x8_TK: Tensor, weight8_NK: Tensor, bias_N: Tensor | None, of_x: Tensor, of_weight: Tensor) -> Tensor:
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


def back(g8_TN: Tensor, weight8_KN: Tensor, of_g: Tensor, of_weight: Tensor) -> Tensor:
    """The gradient [T, K] of what went in, by the weights as they were turned."""
    return torch._scaled_mm(
        g8_TN,
        weight8_KN.t(),
        scale_a=of_g,
        scale_b=of_weight,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )


def of_weight(g8_NW: Tensor, x8_KW: Tensor, of_g: Tensor, of_x: Tensor) -> Tensor:
    """The gradient [N, K] of the weights; sums over all places are kept exact."""
    return torch._scaled_mm(g8_NW, x8_KW.t(), scale_a=of_g, scale_b=of_x, out_dtype=torch.float32, use_fast_accum=False)


def cast_in(x: Tensor) -> Tensor:
    """What goes into a product."""
    return cast(x, INPUT, FORWARD)


@custom_op("bertsmith::cast_weight", mutates_args=())
def cast_weight(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Weights, and these turned. What the compiler could look into it would do anew for each product."""
    if weight_NK.is_cuda and HAS_TRITON:
        from bertsmith.nn.fused_gelu import cast_eight  # which needs triton

        found: tuple[Tensor, Tensor] = cast_eight(weight_NK.contiguous(), WEIGHT)
        return found
    weight8_NK = cast(weight_NK, WEIGHT, FORWARD)
    return weight8_NK, transpose(weight8_NK)


@cast_weight.register_fake
def _(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    outputs, inputs = weight_NK.shape
    return weight_NK.new_empty(outputs, inputs, dtype=FORWARD), weight_NK.new_empty(inputs, outputs, dtype=FORWARD)


def cast_back(g_TN: Tensor) -> Tensor:
    """What comes back."""
    return cast(g_TN, GRADIENT * len(g_TN), BACKWARD)


def undo_back(g_TN: Tensor, of_weight: Tensor) -> Tensor:
    """What undoes it [1]."""
    found: Tensor = _times(of_weight, WEIGHT / (GRADIENT * len(g_TN)))
    return found


@custom_op("bertsmith::times", mutates_args=())
def _times(number: Tensor, factor: float) -> Tensor:
    """A product of two numbers; see `cast_weight`."""
    return number * factor


@_times.register_fake
def _(number: Tensor, factor: float) -> Tensor:
    return torch.empty_like(number)


def cast(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    """Numbers times the scale; what is too large is held at the end of it."""
    most = torch.finfo(kind).max
    return (values.float() * scale).clamp(-most, most).to(kind)
