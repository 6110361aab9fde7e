"""Paths of text files, and files -> blocks of text: opening, decompressing and decoding, with one-line errors.

Blocks have a fixed size, so that a file has the same blocks whether it is compressed or not.
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
from itertools import chain
from pathlib import Path
from typing import Any

from bertsmith.config import did_you_mean
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
MAX_PATH = 200  # characters of a string that looks like a path although it does not exist
EXTENSION = re.compile(
    r"\.(txt|text|csv|tsv|tab|jsonl?|ndjson|parquet|arrow|md|rst|html?|xml|log|conllu?|bio|iob|tokens|raw|docx?|pdf|xlsx?|"
    r"npy|zip|tar|gz|bz2|xz|zst)",
    re.IGNORECASE,
)

SHORT_EXTENSION = re.compile(r"\w\.[A-Za-z]{2,4}$")  # such as .en, .src or .test
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")  # a sentence may have no spaces


def printable(path: str | os.PathLike[str]) -> str:
    """A path that can be printed even if its name is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def looks_like_path(text: str) -> bool:
    """Whether a string is the path of a file or folder, or probably a mistyped one, rather than a text.

    A string that is not an existing path looks like one if it is short, has no white space, and has the extension of a
    data file (`new.txt`), starts like a path (`./new`) or lies below an existing folder (`corpus/new`). URLs, words,
    `and/or` and `24/7` do not.
    """
    if not text or "\n" in text or "\0" in text or len(text) > 4096:
        return False
    if os.path.lexists(text):
        return True
    if not _is_word(text):
        return False
    if EXTENSION.fullmatch(os.path.splitext(text)[1]) or text.startswith(("./", "../", "~/")):
        return True
    folder = re.match(r"[/\\]*[^/\\]+(?=[/\\])", text)
    return folder is not None and os.path.isdir(folder[0])


def missing_path_error(path: str | os.PathLike[str], advice: str = "") -> DataError:
    """The error for a path that does not exist, with the nearest name in its folder."""
    parent, name = os.path.split(printable(path).rstrip(os.sep))
    if parent and not os.path.isdir(parent):
        near = f": the folder {parent} is missing"
    else:
        near = did_you_mean(name, map(printable, os.listdir(parent or ".")), f"{parent}/" if parent else "")
    if os.path.islink(path):
        near = f": it is a link to {printable(os.readlink(path))}, which is missing"
    return DataError(f"{printable(path)} does not exist{near}{advice}")


def check_text(text: str, *, instead: str = "") -> str:
    """The text of an argument; an error if it looks like a path. `instead`: what to do with an existing file.

    Beside what `looks_like_path`, a word with any short extension (`test.en`) does.
    """
    if not looks_like_path(text) and not (_is_word(text) and SHORT_EXTENSION.search(text)):
        return text
    anyway = as_text_advice(text)
    if not os.path.exists(text):
        raise missing_path_error(text, anyway)
    if os.path.isdir(text):
        raise DataError(f"{text} is a folder, but a text is expected{anyway}")
    instead = instead or f'pass its contents, "$(cat {text})"'
    raise DataError(f"{text} is a file, but a text is expected: {instead}{anyway}")


def check_source(text: str, *, output: Path | None = None) -> str:
    """The text of an argument that may also be a file; an error if it looks like a path.

    Beside what `check_text` refuses, a word with a path separator looks like one, and any word where the results are
    written to an `output`.
    """
    mistyped = _is_word(text) and not os.path.lexists(text) and (output is not None or "/" in text or "\\" in text)
    if mistyped and not text.endswith(SENTENCE_ENDS):
        raise missing_path_error(text, as_text_advice(text))
    return check_text(text)


def as_text_advice(text: str) -> str:
    """How to use the name of a file as a text."""
    return f' (to use the name itself as a text, add a space: "{text} ")'


def _is_word(text: str) -> bool:
    """Whether it could be a path: short, without white space, and not a URL."""
    is_url = "://" in text or text.startswith("www.")
    return 0 < len(text) <= MAX_PATH and not is_url and not any(map(str.isspace, text))


def read_error(path: str | os.PathLike[str], error: OSError) -> DataError | StorageError:
    """The error for an OSError while reading."""
    kind = StorageError if error.errno == errno.EIO else DataError
    return kind(f"{printable(path)} cannot be read: {error.strerror or error}")


def one_line(text: str) -> str:
    """The text without white space around it, and with spaces for line ends within it."""
    return text.strip().replace("\n", " ")


class OpenFile:
    """The decompressed bytes of a file. `position` is the number of its bytes on disk that have been read."""

    def __init__(self, path: Path) -> None:
        self.name = printable(path)
        self._path = path
        self.delivered = 0  # bytes, after decompression
        with ExitStack() as stack:
            try:
                self._raw = stack.enter_context(open(path, "rb", buffering=0))
                head = self._raw.read(512)
                self._raw.seek(0)
            except OSError as error:
                raise read_error(path, error) from None
            self.compression = _compression(path, head)
            self._stream = _decompressed(self._raw, self.compression)
            stack.pop_all()  # now close() is responsible

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
        """The line of a byte. Reads the file again, because counting lines would slow down all reading."""
        line, file = 1, OpenFile(self._path)
        with closing(file):
            while file.delivered < offset and (block := file.read()):
                line += block.count(b"\n", 0, len(block) - max(file.delivered - offset, 0))
        return line

    def _read_some(self, size: int) -> bytes:
        try:
            return bytes(self._stream.read(size) if self._stream is self._raw else self._stream.read1(size))
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise read_error(self.name, error) from None
            truncated = isinstance(error, EOFError) or "truncated" in str(error).lower()
            raise DataError(
                f"{self.name}: the {self.compression} data is {'truncated' if truncated else 'damaged'} "
                f"after {self.delivered:,} bytes of text: download the file again"
            ) from None


def text_blocks(file: OpenFile, *, encoding: str = "utf-8", errors: str = "strict") -> Iterator[str]:
    """The text of a file in blocks, without byte order mark and lone surrogates, every line end as \\n."""
    may_surrogate = codecs.lookup(encoding).name != "utf-8"
    first, held = True, ""
    for block in _decoded(file, encoding, errors):
        if first and block:
            block, first = block.removeprefix("\ufeff"), False
        block = held + block
        held = "\r" if block.endswith("\r") else ""  # its \n may be in the next block
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
    try:
        for data in chain(iter(file.read, b""), [b""]):
            if file.delivered == len(data):  # the first block
                _refuse_archives(file.name, data)
            yield decoder.decode(data, final=not data)
    except UnicodeDecodeError as error:
        raise _not_text(file, encoding, error) from None
    except UnicodeError as error:
        raise DataError(f"{file.name} is not {encoding}: {error}") from None


def _compression(path: Path, head: bytes) -> str | None:
    """The compression by the first bytes; a suffix of another compression is an error."""
    by_name = SUFFIXES.get(path.suffix.lower())
    by_bytes = next((kind for kind, magic in MAGIC.items() if magic.match(head)), None)
    if by_name and by_bytes != by_name:
        what = f"{by_bytes} data" if by_bytes else "no data" if not head else "uncompressed or unknown data"
        raise DataError(f"{printable(path)} has suffix {path.suffix} but {what}: rename or download it again")
    return by_bytes


def _decompressed(raw: Any, compression: str | None) -> Any:
    if compression == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if compression == "bzip2":
        return bz2.BZ2File(raw)
    if compression == "xz":
        return lzma.LZMAFile(raw)
    if compression == "zstd":
        import pyarrow  # slow to import

        return pyarrow.CompressedInputStream(raw, "zstd")
    return raw


def _refuse_archives(name: str, data: bytes) -> None:
    for kind, (offset, magic) in ARCHIVES.items():
        if data[offset : offset + len(magic)] == magic and b"\0" in data[:512]:
            raise DataError(f"{name} is a {kind} archive, not text: unpack it and pass the folder")


def _not_text(file: OpenFile, encoding: str, error: UnicodeDecodeError) -> DataError:
    """`error.object` ends with the last block read and may start with bytes of the block before."""
    offset = file.delivered - len(error.object) + error.start
    shown = " ".join(f"0x{byte:02x}" for byte in error.object[error.start : error.end][:4])
    if offset == 0 and error.object.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        advice = "try --encoding utf-16"
    else:
        advice = "pass its --encoding (such as cp949 or latin-1), or --errors replace"
        if file.compression:
            advice += f"; or the {file.compression} data is damaged"
    return DataError(f"{file.name}:{file.line_at(offset)}: byte {offset:,} ({shown}) is not {encoding}: {advice}")
