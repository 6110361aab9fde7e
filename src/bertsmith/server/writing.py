"""Answers as JSON bytes. Arrays are written row by row, so that other threads get their turn between two rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.responses import Response

from bertsmith.server.errors import RequestError


@dataclass(frozen=True)
class Reply:
    """An answer, ready to be sent."""

    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """For the web framework."""
        return Response(self.content, media_type="application/json", headers=dict(self.headers))


def plain(value: Any, **headers: str) -> Reply:
    """Any small answer."""
    return Reply(json.dumps(value, ensure_ascii=False, allow_nan=False).encode(), headers)


def numbers(values: NDArray[Any], form: str = "%.9g") -> str:
    """An array as nested lists; nine digits give back every float32 as it was."""
    if not np.isfinite(values).all():
        raise RequestError(503, "unhealthy", "the model gives numbers that are not finite: its weights are damaged")
    return _nested(values, ",".join([form] * values.shape[-1]))


def _nested(values: NDArray[Any], row: str) -> str:
    if values.ndim == 1:
        return f"[{row % tuple(values.tolist())}]"
    return f"[{','.join(_nested(part, row) for part in values)}]"


def rounded(values: NDArray[Any]) -> str:
    """An array of shares as nested lists, to five places."""
    return numbers(np.round(values.astype(np.float64), 5), "%.5g")
