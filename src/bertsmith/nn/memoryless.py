"""Modules without memory: names and shapes alone, of any size, at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

DRAWS = {"normal_", "uniform_", "erfinv_", "kaiming_normal_", "kaiming_uniform_", "xavier_normal_", "xavier_uniform_"}


@contextmanager
def without_memory() -> Iterator[None]:
    """What is built within has weights with shapes and no numbers."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """First numbers are not drawn: where there is no memory, torch would load its compiler for it, for seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = kwargs or {}
        if func.__name__ in DRAWS:
            return args[0] if args else named["tensor"]
        return func(*args, **named)
