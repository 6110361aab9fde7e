"""Modules on the meta device: parameter names and shapes without memory, for models of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

INITIALIZERS = {"normal_", "uniform_", "erfinv_"} | {
    f"{scheme}_{distribution}_" for scheme in ("kaiming", "xavier") for distribution in ("normal", "uniform")
}
IN_PLACE = {"zero_", "fill_", "div_", "mul_"}


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Modules built within have parameters without values."""
    with torch.device("meta"), _SkipInitialization():
        yield


class _SkipInitialization(TorchFunctionMode):
    """Skips initialisers and in-place arithmetic on meta tensors.

    For initialisers torch would import its compiler, which takes seconds; for a division it would import sympy.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, keywords = func.__name__, kwargs or {}
        if name in INITIALIZERS or (name in IN_PLACE and args[0].is_meta):
            return args[0] if args else keywords["tensor"]
        return func(*args, **keywords)
