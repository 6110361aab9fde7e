"""Matrix products in eight bits: forward, and backward to the input; gradients of weights stay in bfloat16.

Scales are fixed powers of two, so that no pass over the numbers is needed to find them and the compiler can put each
cast into the kernel before it. What goes in was normalised just before, what comes back is of the order of 1 / tokens.
T rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.errors import ConfigError

FORWARD, BACKWARD = torch.float8_e4m3fn, torch.float8_e5m2
INPUT = 8.0  # times what goes in: exact to 1/16 from 0.002 to 56, where it ends
WEIGHT = 128.0  # times the weights: from 0.0001 to 3.5
GRADIENT = 16.0  # times T times what comes back: from 4e-6 / T to 3584 / T
MULTIPLE = 16  # of which both sides of a matrix must be
CAPABILITY = (8, 9)  # of the first CUDA devices with such products


class Float8Linear(nn.Linear):
    """A linear layer that learns in eight bits; when it does not learn it is as any other."""

    undo_input: Tensor  # [1] what undoes INPUT
    undo_weight: Tensor  # [1] and WEIGHT
    undo_gradient: Tensor  # [1] and GRADIENT, without T

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
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
        found: Tensor = _Product.apply(input, self.weight, self.bias, *undo)  # type: ignore[no-untyped-call]
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, of_x: Tensor, of_weight: Tensor, of_g: Tensor
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
        ctx.save_for_backward(x_TK.bfloat16(), weight8_NK, of_weight, of_g)
        ctx.kinds, ctx.has_bias = (x_TK.dtype, weight_NK.dtype), bias_N is not None
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g_TN,) = gradients
        x_TK, weight8_NK, of_weight, of_g = ctx.saved_tensors
        rows = g_TN.shape[0]
        g8_TN = _cast(g_TN, GRADIENT * rows, BACKWARD)
        back_TK = torch._scaled_mm(
            g8_TN,
            weight8_NK.t().contiguous().t(),  # the kernel wants it column by column
            scale_a=of_g / rows,
            scale_b=of_weight,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        half_TN = g_TN.bfloat16()
        inputs, weights = ctx.kinds
        bias = half_TN.sum(0, dtype=torch.float32).to(weights) if ctx.has_bias else None
        return back_TK.to(inputs), (half_TN.t() @ x_TK).to(weights), bias, None, None, None


def _cast(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    most = torch.finfo(kind).max
    return (values.float() * scale).clamp(-most, most).to(kind)


def check(device: torch.device) -> None:
    """Raises where the device does not compute with eight bits."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < CAPABILITY:
        name = torch.cuda.get_device_name(device)
        raise ConfigError(f"passes.precision=fp8: {name} knows no products in eight bits: take bf16")
    if device.type not in ("cuda", "cpu"):
        raise ConfigError(f"passes.precision=fp8 is for CUDA, not for {device.type}: take bf16")


def convert(part: nn.Module) -> int:
    """Has every linear layer of a part that can do so learn in eight bits; how many they are."""
    changed = 0
    for parent in list(part.modules()):
        for name, child in list(parent.named_children()):
            sides = getattr(child, "in_features", 1), getattr(child, "out_features", 1)
            if type(child) is nn.Linear and not any(side % MULTIPLE for side in sides):
                setattr(parent, name, Float8Linear(child))
                changed += 1
    return changed
