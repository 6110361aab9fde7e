"""Linear layers of a model in bfloat16 or int8, for inference. Norms, embeddings and activations are unchanged."""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertsmith.errors import BertsmithError
from bertsmith.model_io.model import Model

Precision = Literal["float32", "bfloat16", "int8"]
PRECISIONS = get_args(Precision)


def convert_precision(model: Model, precision: str, device: str) -> bool:
    """Converts the linear layers of a model in place. Returns whether its forward runs under bfloat16 autocast.

    On a CPU without bfloat16 kernels each weight is dequantized when it is used: this saves memory, not time.
    """
    if precision not in PRECISIONS:
        raise BertsmithError(f'precision "{precision}" does not exist: choose {", ".join(PRECISIONS)}')
    if precision == "float32":
        return False
    autocast = precision == "bfloat16" and supports_bfloat16(device)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is not nn.Linear:
                continue
            if autocast:
                child.to(torch.bfloat16)
            else:
                setattr(module, name, QuantizedLinear(child, int8=precision == "int8"))
    return autocast


def supports_bfloat16(device: str) -> bool:
    """Whether a device has bfloat16 matrix products; without them a CPU takes about a hundred times as long."""
    if device != "cpu":
        return True
    has_kernels: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return has_kernels and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class QuantizedLinear(nn.Module):
    """A linear layer with its weight in bfloat16, or in int8 with a scale per output, dequantized in each forward."""

    weight: Tensor  # [out, in]
    scale: Tensor | None  # [out]
    bias: Tensor | None  # [out]

    def __init__(self, linear: nn.Linear, *, int8: bool) -> None:
        super().__init__()
        weight, scale = linear.weight.detach(), None
        if int8:
            scale = weight.abs().amax(1).clamp(min=1e-12) / 127
            weight = (weight / scale[:, None]).round().to(torch.int8)
        self.register_buffer("weight", weight if int8 else weight.to(torch.bfloat16))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x_TD: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        out = F.linear(x_TD, self.weight.to(x_TD.dtype))
        if self.scale is not None:
            out = out.mul_(self.scale)
        return out if self.bias is None else out.add_(self.bias)
