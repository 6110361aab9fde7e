"""Training in FP8 (e4m3 inputs and weights, e5m2 gradients): the functions that other packages use."""

from __future__ import annotations

from torch import nn

from bertsmith.nn.fp8.block import convert_blocks
from bertsmith.nn.fp8.layers import convert_layers, supports_fp8
from bertsmith.nn.fp8.ops import LazyNorm, materialize

__all__ = ["LazyNorm", "enable_fp8", "materialize", "supports_fp8"]


def enable_fp8(module: nn.Module, *, blocks: bool = True) -> int:
    """Converts the linear layers of a module in place, and whole blocks where they can be; returns how many layers.

    Parameters and their names stay the same. `blocks`: see `block`; a block then uses the weights of the norm below it.
    """
    return convert_blocks(module) if blocks else convert_layers(module)
