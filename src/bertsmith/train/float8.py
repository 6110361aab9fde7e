"""Matrix products in eight bits: forward, and backward to the input; gradients of weights stay in bfloat16.

Scales are fixed powers of two, so that no pass over the numbers is needed to find them and the compiler can put each
cast into the kernel before it. What goes in was normalised just before, what comes back is of the order of 1 / tokens.
A cast that would need a pass of its own costs what it gains: what goes into the matrix behind attention and what comes
back from attention stay in bfloat16. T rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.devices import has_eight_bits
from bertsmith.errors import ConfigError

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
INPUT = 8.0  # times what goes in: exact to 1/16 from 0.002 to 56, where it ends
WEIGHT = 128.0  # times the weights: from 0.0001 to 3.5
GRADIENT = 16.0  # times T times what comes back: from 4e-6 / T to 3584 / T
MULTIPLE = 16  # of which both sides of a matrix must be
BACK_TOO = {"qkv": False, "expand": True, "contract": True}  # which matrices of a block; whether backward as well


class Float8Linear(nn.Linear):
    """A linear layer that learns in eight bits; when it does not learn it is as any other."""

    undo_input: Tensor  # [1] what undoes INPUT
    undo_weight: Tensor  # [1] and WEIGHT
    undo_gradient: Tensor  # [1] and GRADIENT, without T

    def __init__(self, linear: nn.Linear, *, back: bool = True) -> None:
        nn.Module.__init__(self)
        self.back = back  # whether gradients of what goes in are computed in eight bits too
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        for name, scale in (("input", INPUT), ("weight", WEIGHT), ("gradient", GRADIENT)):
            # a tensor each: the kernel wants them at the beginning of a stretch of memory
            undo = torch.tensor([1 / scale], device=linear.weight.device)
            self.register_buffer(f"undo_{name}", undo, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        undo = self.undo_input, self.undo_weight, self.undo_gradient
        found: Tensor = _Product.apply(input, self.weight, self.bias, self.back, *undo)  # type: ignore[no-untyped-call]
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TK: Tensor,
        weight_NK: Tensor,
        bias_N: Tensor | None,
        back: bool,
        of_x: Tensor,
        of_weight: Tensor,
        of_g: Tensor,
    ) -> Tensor:
        x8_TK, weight8_NK = _cast(x_TK, INPUT, FORWARD), _cast(weight_NK, WEIGHT, FORWARD)
        y_TN = torch._scaled_mm(
            x8_TK,
            weight8_NK.t(),
            scale_a=of_x,
            scale_b=of_weight,
            bias=None if bias_N is None else bias_N.bfloat16(),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        ctx.save_for_backward(x_TK.bfloat16(), weight8_NK if back else weight_NK, of_weight, of_g)
        ctx.kinds, ctx.has_bias, ctx.back = (x_TK.dtype, weight_NK.dtype), bias_N is not None, back
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TN,) = gradients
        x_TK, weight_NK, of_weight, of_g = ctx.saved_tensors
        half_TN = g_TN.bfloat16()
        if ctx.back:
            rows = g_TN.shape[0]
            back_TK = torch._scaled_mm(
                _cast(g_TN, GRADIENT * rows, BACKWARD),
                weight_NK.t().contiguous().t(),  # the kernel wants it column by column
                scale_a=of_g / rows,
                scale_b=of_weight,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )
        else:
            back_TK = half_TN @ weight_NK.bfloat16()
        inputs, weights = ctx.kinds
        bias = half_TN.sum(0, dtype=torch.float32).to(weights) if ctx.has_bias else None
        return back_TK.to(inputs), (half_TN.t() @ x_TK).to(weights), bias, None, None, None, None


def _cast(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    most = torch.finfo(kind).max
    return (values.float() * scale).clamp(-most, most).to(kind)


def check(device: torch.device) -> None:
    """Raises where the device does not compute with eight bits."""
    if device.type == "cuda" and not has_eight_bits(device):
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"passes.precision=fp8: {name} knows no products in eight bits: take bf16")
    if device.type not in ("cuda", "cpu"):
        raise ConfigError(f"passes.precision=fp8 is for CUDA, not for {device.type}: take bf16")


def convert(part: nn.Module) -> int:
    """Has the linear layers of a part that gain by it learn in eight bits; how many they are."""
    changed = 0
    for parent in list(part.modules()):
        for name, back in BACK_TOO.items():
            child = getattr(parent, name, None)
            if type(child) is nn.Linear and not (child.in_features % MULTIPLE or child.out_features % MULTIPLE):
                setattr(parent, name, Float8Linear(child, back=back))
                changed += 1
    return changed
