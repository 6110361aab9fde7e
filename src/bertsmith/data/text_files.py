"""Files -> blocks of text: opening, decompressing, decoding, each failure told in one line.

Owns what bytes can do to us. Blocks have a fixed size, so the same file gives the same blocks, compressed or not.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError, StorageError

BLOCK = 2**20
SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
}
ARCHIVES = {"zip": (0, b"PK\x03\x04"), "7-Zip": (0, b"7z\xbc\xaf\x27\x1c"), "tar": (257, b"ustar")}
SURROGATE = re.compile("[\ud800-\udfff]")


def shown(path: str | os.PathLike[str]) -> str:
    """A path as it can be printed: names that are not UTF-8 exist."""
    return os.fsencode(path).decode("utf-8", "replace")


def unreadable(path: str | os.PathLike[str], error: OSError) -> DataError | StorageError:
    """What the operating system refused."""
    kind = StorageError if error.errno == errno.EIO else DataError
    return kind(f"{shown(path)} cannot be read: {error.strerror or error}")


class OpenFile:
    """The bytes of one file, decompressed. `position` is how many of its bytes on disk have been read."""

    def __init__(self, path: Path) -> None:
        self.name = shown(path)
        self._path = path
        self.delivered = 0  # bytes, after decompression
        with ExitStack() as stack:
            try:
                self._raw = stack.enter_context(open(path, "rb", buffering=0))
                head = self._raw.read(512)
                self._raw.seek(0)
            except OSError as error:
                raise unreadable(path, error) from None
            self.compression = _compression(path, head)
            self._stream = _decompressed(self._raw, self.compression)
            stack.pop_all()  # from here on close() does it

    @property
    def position(self) -> int:
        return 0 if self._raw.closed else self._raw.tell()

    def close(self) -> None:
        self._raw.close()

    def read(self) -> bytes:
        """The next `BLOCK` bytes; fewer, or none, only at the end."""
        parts: list[bytes] = []
        missing = BLOCK
        while missing and (part := self._read_some(missing)):
            parts.append(part)
            missing -= len(part)
            self.delivered += len(part)
        return b"".join(parts)

    def line_at(self, offset: int) -> int:
        """The line that a byte is in. Reads the file once more: counting lines always would slow every reader."""
        line, again = 1, OpenFile(self._path)
        with closing(again):
            while again.delivered < offset and (block := again.read()):
                line += block.count(b"\n", 0, len(block) - max(again.delivered - offset, 0))
        return line

    def _read_some(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size) if self._stream is self._raw else self._stream.read1(size))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise unreadable(self.name, error) from None
            cut_short = isinstance(error, EOFError) or "truncated" in str(error).lower()
            raise DataError(
                f"{self.name}: the {self.compression} data {'ends too early' if cut_short else 'is damaged'}; "
                f"{self.delivered:,} bytes of text could be read before that: fetch the file again"
            ) from None


def text_blocks(file: OpenFile, *, encoding: str = "utf-8", errors: str = "strict") -> Iterator[str]:
    """The text of a file, block by block: no byte order mark, every line end a \\n, no lone surrogate."""
    may_surrogate = codecs.lookup(encoding).name != "utf-8"
    first, held = True, ""
    for block in _decoded(file, encoding, errors):
        if first and block:
            block, first = block.removeprefix("\ufeff"), False
        block = held + block
        held = "\r" if block.endswith("\r") else ""  # its \n may come with the next block
        block = block[: len(block) - len(held)]
        if "\r" in block:
            block = block.replace("\r\n", "\n").replace("\r", "\n")
        if may_surrogate:
            block = SURROGATE.sub("\ufffd", block)
        if block:
            yield block
    if held:
        yield "\n"


def _decoded(file: OpenFile, encoding: str, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    data = file.read()
    _refuse_archives(file.name, data)
    while True:
        try:
            block = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise _not_text(file, encoding, error) from None
        except UnicodeError as error:
            raise DataError(f"{file.name} is not {encoding}: {error}") from None
        yield block
        if not data:
            return
        data = file.read()


def _compression(path: Path, head: bytes) -> str | None:
    """What the file is packed with; a name that promises what the bytes are not is an error."""
    promised = SUFFIXES.get(path.suffix.lower())
    found = next((kind for kind, magic in MAGIC.items() if magic.match(head)), None)
    if promised and found != promised:
        what = f"{found} data" if found else "nothing" if not head else "uncompressed or unknown data"
        raise DataError(f"{shown(path)} is named {path.suffix} but holds {what}: rename it or fetch it again")
    return found


def _decompressed(raw: Any, compression: str | None) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bzip2":
        return bz2.BZ2File(raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zstd":
        import pyarrow  # here, because it takes long to import

        return pyarrow.CompressedInputStream(raw, "zstd")
    return raw


def _refuse_archives(name: str, data: bytes) -> None:
    for kind, (place, magic) in ARCHIVES.items():
        if data[place : place + len(magic)] == magic and b"\0" in data[:512]:
            raise DataError(f"{name} is a {kind} archive, not text: unpack it and name the folder")


def _not_text(file: OpenFile, encoding: str, error: UnicodeDecodeError) -> DataError:
    """Says where: `error.object` ends with what the file delivered last, perhaps after bytes kept from before."""
    offset = file.delivered - len(error.object) + error.start
    found = " ".join(f"0x{byte:02x}" for byte in error.object[error.start : error.end][:4])
    if offset == 0 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        advice = "it looks like --encoding utf-16"
    else:
        advice = "name its --encoding (such as cp949 or latin-1), or pass --errors replace"
        if file.compression:
            advice += f"; or the {file.compression} data is damaged"
    return DataError(f"{file.name}:{file.line_at(offset)}: byte {offset:,} ({found}) is not {encoding}: {advice}")
