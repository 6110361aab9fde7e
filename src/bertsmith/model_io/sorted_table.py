"""The index of a TensorFlow checkpoint: LevelDB's sorted table, and as much of protocol buffers as its values need.

The format (tensorflow: core/lib/io/table_format.txt): blocks of prefix-compressed keys, each followed by one byte
(0: not compressed) and a masked CRC-32C; a block that lists the blocks; a footer of 48 bytes. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.model_io.crc32c import crc32c, masked
from bertsmith.model_io.untrusted_files import UntrustedFile, shown

FOOTER = 48
MAGIC = bytes.fromhex("57fb808b247547db")
MOST_KEYS = 20_000
MOST_KEY_BYTES = 512
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the wire types of protocol buffers


def read_table(file: UntrustedFile) -> dict[bytes, bytes]:
    """Every key and value, in order; every block checked."""
    if file.size < FOOTER:
        raise DataError(f"{file.path} is cut short: {file.size} bytes are no index of a TensorFlow checkpoint")
    footer = file.read(file.size - FOOTER, FOOTER)
    if footer[-len(MAGIC) :] != MAGIC:
        raise DataError(f"{file.path} is no index of a TensorFlow checkpoint, or is cut short: its last bytes say so")
    handle = Cursor(footer, file.path)
    meta, blocks = (_block(file, handle.varint(), handle.varint()) for _ in range(2))
    if any(_pairs(meta, file.path)) or any(footer[handle.place : -len(MAGIC)]):
        raise DataError(f"{file.path} is damaged: there is something where TensorFlow leaves nothing")
    found: dict[bytes, bytes] = {}
    for _, place in _pairs(blocks, file.path):
        inner = Cursor(place, file.path)
        for key, value in _pairs(_block(file, inner.varint(), inner.varint()), file.path):
            if found and key <= next(reversed(found)):
                raise DataError(f"{file.path}: the key {shown(key)} is not in its order")
            found[key] = value
            if len(found) > MOST_KEYS:
                raise DataError(f"{file.path} has more than {MOST_KEYS:,} keys: that is no model of ours")
    return found


def fields(message: bytes, path: Path) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: number and value; what they mean is the caller's."""
    cursor = Cursor(message, path)
    while cursor.place < len(message):
        tag = cursor.varint()
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            yield number, cursor.varint()
        elif wire == BYTES:
            yield number, cursor.take(cursor.varint())
        elif wire in (FIXED32, FIXED64):
            yield number, int.from_bytes(cursor.take(4 if wire == FIXED32 else 8), "little")
        else:
            raise DataError(f"{path} is damaged: a field of wire type {wire}")


class Cursor:
    """Walks through bytes and never beyond them."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.place = data, path, 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self.data) - self.place:
            raise DataError(f"{self.path} is damaged: {count:,} bytes promised where {len(self.data)} end")
        self.place += count
        return self.data[self.place - count : self.place]

    def varint(self) -> int:
        """A whole number, seven bits a byte."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte == 0 and shift:
                break  # nobody writes a number longer than it need be
            if byte < 0x80:
                return value
        raise DataError(f"{self.path} is damaged: a number without its end")


def _block(file: UntrustedFile, begin: int, size: int) -> bytes:
    if begin + size + 5 > file.size:
        raise DataError(f"{file.path} is damaged: a block at {begin:,} of {size:,} bytes lies outside it")
    data = file.read(begin, size + 5)
    if masked(crc32c([data[:-4]])) != int.from_bytes(data[-4:], "little"):
        raise DataError(f"{file.path} is damaged: the block at byte {begin:,} does not match its checksum")
    if data[size]:
        raise DataError(f"{file.path}: its blocks are compressed, which checkpoints never are")
    return data[:size]


def _pairs(block: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; at its end stand places for binary search, which we do not need."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise DataError(f"{path} is damaged: a block of {len(block)} bytes with {restarts:,} restarts")
    cursor, key = Cursor(block[:end], path), b""
    while cursor.place < end:
        shared, own, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + own > MOST_KEY_BYTES:
            raise DataError(f"{path} is damaged: a key of {shared:,} + {own:,} bytes after one of {len(key):,}")
        key = key[:shared] + cursor.take(own)
        yield key, cursor.take(size)
