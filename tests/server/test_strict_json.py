"""Strict JSON: what is accepted and rejected. Errors never repeat the body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from bertsmith.server.errors import RequestError
from bertsmith.server.schemas import MAX_DEPTH, MAX_VALUES, parse_json
from bertsmith.server.settings import Limits

LIMITS = Limits(max_bytes_per_text=10)
VALUE = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.floats(allow_nan=False, allow_infinity=False)
    | some.text("ab쇠", max_size=3),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text("xyz", max_size=3), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(VALUE)
@settings(max_examples=50, deadline=None)
def test_json_is_parsed(value: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(), LIMITS) == value


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"\xef\xbb\xbf{}", 400),
        (b"{} {}", 400),
        (b"NaN", 400),
        (b'{"secret": -Infinity}', 400),
        (b"1e999", 400),
        (b"9" * 5000, 400),
        (b'{"secret": 1, "secret": 2}', 400),
        (b"[" * 100_000, 400),
        (b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2), 400),
        (b'"\\ud800"', 422),
        (b'{"\\udfff": 1}', 422),
        (b'["' + b"a" * 11 + b'"]', 413),
        ('["쇠쇠쇠쇠"]', 413),
        (b"[" + b"1," * MAX_VALUES + b"1]", 413),
    ],
)
def test_invalid_json_is_rejected(body: bytes | str, status: int) -> None:
    with pytest.raises(RequestError) as found:
        parse_json(body.encode() if isinstance(body, str) else body, LIMITS)
    assert found.value.status == status
    assert "secret" not in found.value.message
    assert found.value.message.isprintable()


def test_limit_error_names_the_flag() -> None:
    with pytest.raises(RequestError, match=r"11 bytes, at most 10 \(--max-bytes-per-text\)"):
        parse_json(b'["aaaaaaaaaaa"]', LIMITS)
    assert parse_json('["쇠쇠쇠"]'.encode(), LIMITS) == ["쇠쇠쇠"]
