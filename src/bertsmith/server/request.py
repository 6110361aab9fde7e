"""One request: its context, and its JSON body, parsed strictly.

Strict JSON has no duplicate keys, NaN or lone surrogates, and a bounded depth, size and number of values.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from bertsmith.server.errors import RequestError, over_limit
from bertsmith.server.settings import Limits

SCOPE_KEY = "bertsmith.context"
NO_BODY = object()
MAX_DEPTH = 16
MAX_VALUES = 65_536  # in one body: 32 texts of 512 token ids are 16,384
MAX_DIGITS = 20  # of an integer


@dataclass
class RequestContext:
    """State of a request that middleware, routes, logs and metrics share."""

    method: str
    route: str = "unknown"  # the route's path template, never the path that was sent
    model: str | None = None  # from /models/NAME
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    began: float = field(default_factory=time.monotonic)
    body: bytes = b""
    json: Any = NO_BODY  # the parsed body
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    status: int = 0  # of the response, once it has started
    tokens: int = 0  # computed for this request

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


def context_of(request: Request) -> RequestContext:
    """The context that the middleware created."""
    context: RequestContext = request.scope[SCOPE_KEY]
    return context


class ParsedRequest(Request):
    """A request whose body the middleware has already read and parsed."""

    async def body(self) -> bytes:
        """The raw body."""
        return context_of(self).body

    async def json(self) -> Any:
        """The parsed body."""
        return context_of(self).json


def parse_json(body: bytes, limits: Limits) -> Any:
    """The value of a body. Errors never repeat its contents."""
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_constant=_reject_constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_parse_object,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"the body is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"the body is not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels") from None
    _check_values(value, limits)
    return value


def _invalid(message: str, status: int = 400) -> RequestError:
    return RequestError(status, "validation", message)


def _reject_constant(name: str) -> Any:
    raise _invalid(f"the body has {name}, which is not JSON")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("the body has a number that is too large")
    return value


def _parse_int(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _invalid(f"the body has an integer of more than {MAX_DIGITS} digits")
    return int(text)


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise _invalid("the body has an object with a duplicate key")
    return value


def _check_values(body: Any, limits: Limits) -> None:
    """Visits every value once, without recursion."""
    stack: list[tuple[Any, int]] = [(body, 0)]
    count = 0
    while stack:
        value, depth = stack.pop()
        count += 1
        if count > MAX_VALUES:
            raise RequestError(413, "too_large", f"the body has more than {MAX_VALUES:,} values: send fewer at a time")
        if depth > MAX_DEPTH:
            raise _invalid(f"the body is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            _check_text(value, limits)
        elif isinstance(value, dict):
            for key in value:
                _check_text(key, limits)
            stack += [(child, depth + 1) for child in value.values()]
        elif isinstance(value, list):
            stack += [(child, depth + 1) for child in value[: MAX_VALUES + 1]]


def _check_text(text: str, limits: Limits) -> None:
    try:
        size = len(text) if text.isascii() else len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise _invalid("a text has a lone surrogate, which is not a character: send valid Unicode", 422) from None
    if size > limits.max_bytes_per_text:
        raise over_limit(f"a text of {size:,} bytes", "max_bytes_per_text", limits.max_bytes_per_text)
