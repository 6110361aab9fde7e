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

    scales: Tensor  # [3] what undoes INPUT, WEIGHT and GRADIENT, the last without T

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        undo = torch.tensor([1 / INPUT, 1 / WEIGHT, 1 / GRADIENT], device=linear.weight.device)
        self.register_buffer("scales", undo, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """[T, K] -> [T, N]."""
        if not (self.training and torch.is_grad_enabled()):
            return super().forward(input)
        found: Tensor = _Product.apply(input, self.weight, self.bias, self.scales)  # type: ignore[no-untyped-call]
        return found


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor, scales: Tensor) -> Tensor:
        x8_TK, weight8_NK = _cast(x_TK, INPUT, FORWARD), _cast(weight_NK, WEIGHT, FORWARD)
        y_TN = torch._scaled_mm(
            x8_TK,
            weight8_NK.t(),
            scale_a=scales[0],
            scale_b=scales[1],
            bias=bias_N.bfloat16(),
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        ctx.save_for_backward(x_TK.bfloat16(), weight8_NK, scales)
        ctx.kinds = x_TK.dtype, weight_NK.dtype
        return y_TN

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (g_TN,) = gradients
        x_TK, weight8_NK, scales = ctx.saved_tensors
        rows = len(g_TN)
        g8_TN = _cast(g_TN, GRADIENT * rows, BACKWARD)
        back_TK = torch._scaled_mm(
            g8_TN,
            weight8_NK.t().contiguous().t(),  # the kernel wants it column by column
            scale_a=scales[2] / rows,
            scale_b=scales[1],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        half_TN = g_TN.bfloat16()
        inputs, weights = ctx.kinds
        return (
            back_TK.to(inputs),
            (half_TN.t() @ x_TK).to(weights),
            half_TN.sum(0, dtype=torch.float32).to(weights),
            None,
        )


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
            if type(child) is nn.Linear and child.bias is not None and not any(side % MULTIPLE for side in sides):
                setattr(parent, name, Float8Linear(child))
                changed += 1
    return changed
