"""Modules without memory: names and shapes alone, of any size, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DRAWS = {"normal_", "uniform_", "erfinv_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"}
CHANGES = {"zero_", "fill_", "div_", "mul_"}


@contextmanager
def on_meta_device() -> Iterator[None]:
    """What is built within has weights with shapes and no numbers."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """First numbers are not drawn: where there is no memory, torch would load its compiler for it, for seconds.

    Nor are numbers changed that are not there: dividing them loads an algebra system.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        name = func.__name__
        if name in DRAWS or (name in CHANGES and args[0].is_meta):
            return args[0] if args else named["tensor"]
        return func(*args, **named)
