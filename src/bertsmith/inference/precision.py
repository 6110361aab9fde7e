"""Matrices of a model in fewer bits, for use and not for training.

Norms, tables and everything between two matrices stay as they are. T places.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS = ("float32", "bfloat16", "int8")


def convert_precision(model: Model, precision: str, device: str) -> bool:
    """Exchanges the matrices of a model; whether it is then computed in bfloat16.

    A processor that knows no bfloat16 gets its matrices widened one at a time: it saves memory there, not time.
    """
    if precision not in PRECISIONS:
        raise BertsmithError(f"precision {precision} is not known: {', '.join(PRECISIONS)}")
    if precision == "float32":
        return False
    half = precision == "bfloat16" and supports_bfloat16(device)
    for module in list(model.modules()):
        for name, part in list(module.named_children()):
            if type(part) is not nn.Linear:
                continue
            if half:
                part.to(torch.bfloat16)
            else:
                setattr(module, name, QuantizedLinear(part, whole=precision == "int8"))
    return half


def supports_bfloat16(device: str) -> bool:
    """Whether a device multiplies in bfloat16; a CPU that does not takes a hundred times as long over it."""
    if device != "cpu":
        return True
    has_kernels: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_kernels and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class QuantizedLinear(nn.Module):
    """A linear layer whose matrix is kept in bfloat16, or in int8 with a scale for each output, and widened for use."""

    weight: Tensor  # [out, in]
    scale: Tensor | None  # [out]
    bias: Tensor | None  # [out]

    def __init__(self, linear: nn.Linear, *, whole: bool) -> None:
        super().__init__()
        weight, scale = linear.weight.detach(), None
        if whole:
            scale = weight.abs().amax(1).clamp(min=1e-12) / 127
            weight = (weight / scale[:, None]).round().to(torch.int8)
        self.register_buffer("weight", weight if whole else weight.to(torch.bfloat16))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x_TD: Tensor) -> Tensor:
        """What the linear layer would give, but for the rounding of its weights."""
        out = F.linear(x_TD, self.weight.to(x_TD.dtype))
        if self.scale is not None:
            out = out.mul_(self.scale)
        return out if self.bias is None else out.add_(self.bias)
