"""Safetensors files with false headers: the file, and words of the expected error."""

from __future__ import annotations

from typing import Any

from model_io.folder_fixtures import raw


def claim(shape: Any = (2,), offsets: Any = (0, 8), kind: Any = "F32", **more: Any) -> dict[str, Any]:
    """The entry of one tensor in a header."""
    return {"dtype": kind, "shape": shape, "data_offsets": offsets, **more}


EIGHT = b"\0" * 8
WRONG: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated: 0 bytes"),
    "seven bytes": (b"\0" * 7, "truncated: 7 bytes"),
    "header longer than the file": (raw(b"{}", length=3), "truncated: it has 10 bytes"),
    "huge header": (raw(b"{}", length=1 << 62), "its header has 4,611,686,018,427,387,904 bytes"),
    "no brace": (raw(b" {}"), "does not start with a brace"),
    "not JSON": (raw(b'{"a": }'), "the header is not JSON"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "the header is not UTF-8"),
    "a key twice": (raw(b'{"a": 1, "a": 1}'), "'a' occurs twice"),
    "NaN": (raw(b'{"a": NaN}'), "NaN is not a JSON number"),
    "deep": (raw(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested too deeply"),
    "many values": (raw(b'{"a":[' + b"[]," * 600_000 + b"0]}"), "more than 500,000 values"),
    "long number": (raw(b'{"a":' + b"9" * 5000 + b"}"), "not JSON"),
    "metadata that is not text": (raw({"__metadata__": {"a": 1}}), "__metadata__ must map names to strings"),
    "entry that is not a table": (raw({"a": 1}), "must have dtype, shape and data_offsets"),
    "entry without shape": (raw({"a": {"dtype": "F32", "data_offsets": [0, 8]}}), "must have dtype"),
    "entry with more": (raw({"a": claim(more=1)}, EIGHT), "must have dtype"),
    "unknown type": (raw({"a": claim(kind="F33")}, EIGHT), "of type 'F33'"),
    "type that is a list": (raw({"a": claim(kind=["F32"])}, EIGHT), 'of type ["F32"]'),
    "negative size": (raw({"a": claim([-2])}, EIGHT), "the invalid shape [-2]"),
    "size that is true": (raw({"a": claim([True, 2])}, EIGHT), "the invalid shape [true, 2]"),
    "size with a fraction": (raw({"a": claim([2.0])}, EIGHT), "the invalid shape [2.0]"),
    "sizes that overflow": (raw({"a": claim([1 << 32, 1 << 32])}, EIGHT), "does not match data_offsets"),
    "size beyond 2**63": (raw({"a": claim([1 << 64])}, EIGHT), "the invalid shape"),
    "too many dimensions": (raw({"a": claim([1] * 9 + [2])}, EIGHT), "the invalid shape"),
    "one offset": (raw({"a": claim(offsets=[0])}, EIGHT), "the invalid data_offsets"),
    "negative offset": (raw({"a": claim(offsets=[-8, 0])}, EIGHT), "the invalid data_offsets"),
    "end before begin": (raw({"a": claim(offsets=[8, 0])}, EIGHT), "does not match data_offsets"),
    "shape and offsets differ": (raw({"a": claim([3])}, EIGHT), "does not match data_offsets"),
    "gap at the start": (raw({"a": claim(offsets=[8, 16])}, EIGHT * 2), "a gap before 'a'"),
    "gap": (raw({"a": claim(), "b": claim(offsets=[16, 24])}, EIGHT * 3), "a gap before 'b'"),
    "overlap": (raw({"a": claim(), "b": claim(offsets=[4, 12])}, EIGHT * 2), "an overlap at 'b'"),
    "the same place twice": (raw({"a": claim(), "b": claim()}, EIGHT), "an overlap at 'b'"),
    "cut short": (raw({"a": claim()}, EIGHT[:7]), "is truncated"),
    "trailing bytes": (raw({"a": claim()}, EIGHT + b"!"), "has bytes after its last tensor"),
    "long name": (raw({"a" * 600: claim()}, EIGHT), "the name has 600 characters"),
    "name with a line end": (raw({"a\nb": claim(kind="?")}, EIGHT), "'a\\nb'"),
}
