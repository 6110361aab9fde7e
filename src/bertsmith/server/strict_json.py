"""JSON from strangers: no names twice, no NaN, no half characters, bounded in depth, size and number of values."""

from __future__ import annotations

import json
import math
from typing import Any

from bertsmith.server.errors import RequestError, over_limit
from bertsmith.server.settings import Limits

DEPTH = 16  # objects and lists within each other
VALUES = 65_536  # strings, numbers and the like in one body: 32 texts of 512 token ids are 16,384
DIGITS = 20  # of a whole number


def parse(body: bytes, limits: Limits) -> Any:
    """The value that a body holds; anything that is not plain JSON of text is a `Problem` that does not repeat it."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_whole,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise _wrong(f"the body is no text in UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _wrong(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _wrong(f"the body is nested deeper than {DEPTH} levels") from None
    _look_through(value, limits)
    return value


def _wrong(message: str, status: int = 400) -> RequestError:
    return RequestError(status, "validation", message)


def _no_constant(name: str) -> Any:
    raise _wrong(f"the body has {name}, which is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _wrong("the body has a number that is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise _wrong(f"the body has a whole number of more than {DIGITS} digits")
    return int(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _wrong("the body has an object with one name twice")
    return found


def _look_through(value: Any, limits: Limits) -> None:
    """Every value once, without recursion."""
    left: list[tuple[Any, int]] = [(value, 0)]
    seen = 0
    while left:
        one, depth = left.pop()
        seen += 1
        if seen > VALUES:
            raise RequestError(413, "too_large", f"the body has more than {VALUES:,} values: send fewer at a time")
        if depth > DEPTH:
            raise _wrong(f"the body is nested deeper than {DEPTH} levels")
        if isinstance(one, str):
            _check_text(one, limits)
        elif isinstance(one, dict):
            for name in one:
                _check_text(name, limits)
            left += [(part, depth + 1) for part in one.values()]
        elif isinstance(one, list):
            left += [(part, depth + 1) for part in one[: VALUES + 1]]


def _check_text(text: str, limits: Limits) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise _wrong("a text has half of a character (a lone surrogate): send whole ones", 422) from None
    if size > limits.max_bytes_per_text:
        raise over_limit(f"a text of {size:,} bytes", "max_bytes_per_text", limits.max_bytes_per_text)
