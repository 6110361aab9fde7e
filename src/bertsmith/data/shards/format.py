"""The format of a shard file: header, checksum table, tokens, sentence lengths, sentences per document, unknown words.

docs/shards.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from bertsmith.data.shards.unknown_words import UnknownWords, merge
from bertsmith.errors import DataError, StorageError
from bertsmith.system.durable import Disk, WrittenFile

FORMAT = 1
BLOCK = 1 << 16  # bytes of the body under one checksum
MAGIC = b"BSSHARD1"
PRELUDE = struct.Struct("<8sII")  # magic, bytes of the header, CRC32 of header and checksum table
HEADER_LIMIT = 1 << 16
ALIGNMENT = 64  # of the body in the file
OPTIONAL = ("unknown", "word_bytes")  # fields of the header that sets without spelling do not have

Tokens = NDArray[np.unsignedinteger[Any]]


def token_type(vocab_size: int, *, spelling: bool = False) -> np.dtype[Any]:
    """Two bytes per token if the vocabulary allows it, else four, as with `spelling`; little-endian."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 and not spelling else "<u4")


@dataclass(frozen=True, slots=True)
class EncodedDocuments:
    """Tokenized documents as flat arrays."""

    tokens: Tokens  # of all sentences, concatenated
    sentence_lengths: NDArray[np.uint16]  # tokens of each sentence
    document_sentences: NDArray[np.uint32]  # sentences of each document
    unknown: UnknownWords | None = None  # what ids beyond the vocabulary refer to, in a set with spelling

    @classmethod
    def concatenate(cls, parts: Sequence[EncodedDocuments], dtype: DTypeLike) -> EncodedDocuments:
        """Concatenates several, or none; `dtype` is that of the tokens. Unused unknown words are left out."""
        tokens: list[Tokens] = [part.tokens for part in parts]
        unknown = [part.unknown for part in parts if part.unknown is not None]
        merged, tokens = merge(unknown, tokens) if unknown else (None, tokens)
        return cls(
            np.concatenate([np.empty(0, dtype), *tokens]),
            np.concatenate([np.empty(0, np.uint16), *(part.sentence_lengths for part in parts)]),
            np.concatenate([np.empty(0, np.uint32), *(part.document_sentences for part in parts)]),
            merged,
        )

    def check(self, vocab_size: int, *, spelling: bool = False) -> None:
        """Raises ValueError unless the arrays match each other and the vocabulary."""
        if spelling != (self.unknown is not None):
            raise ValueError(f"documents {'without' if spelling else 'with'} unknown words, spelling={spelling}")
        if self.unknown is not None and self.unknown.base != vocab_size:
            raise ValueError(f"unknown words start at {self.unknown.base}, the vocabulary ends at {vocab_size:,}")
        dtypes = [array.dtype.name for array in (self.tokens, self.sentence_lengths, self.document_sentences)]
        expected = [token_type(vocab_size, spelling=spelling).name, "uint16", "uint32"]
        if dtypes != expected:
            raise ValueError(f"documents are {', '.join(dtypes)}, not {', '.join(expected)}")
        if int(self.sentence_lengths.sum(dtype=np.int64)) != len(self.tokens):
            raise ValueError(f"sentence_lengths do not add up to the {len(self.tokens):,} tokens")
        if int(self.document_sentences.sum(dtype=np.int64)) != len(self.sentence_lengths):
            raise ValueError(f"document_sentences do not add up to the {len(self.sentence_lengths):,} sentences")
        limit = vocab_size + (0 if self.unknown is None else len(self.unknown.words))
        if len(self.tokens) and int(self.tokens.max()) >= limit:
            raise ValueError(f"token {self.tokens.max()} is outside the vocabulary of {vocab_size:,}")


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a shard file."""

    split: str
    part: int
    fingerprint: str  # of the tokenizer
    dtype: str  # "uint16" or "uint32"
    tokens: int
    sentences: int
    documents: int
    first_unit: int  # work units of this commit, both ends included
    last_unit: int
    documents_consumed: int  # of all splits, from the start of the set to the end of this commit
    counts: dict[str, int] = field(default_factory=dict)  # totals of the caller, likewise
    companion: dict[str, Any] | None = None  # name, bytes and sha256 of the held-out file of the same commit
    unknown: Sequence[Sequence[int]] = ()  # of a set with spelling: unknown tokens and the words of each in the table
    word_bytes: int = 0  # of the words in that table
    block_bytes: int = BLOCK
    format: int = FORMAT

    @property
    def sections(self) -> dict[str, tuple[int, int]]:
        """First byte and number of bytes of each array in the body."""
        sizes = {
            "tokens": self.tokens * np.dtype(self.dtype).itemsize,
            "sentence_lengths": self.sentences * 2,
            "document_sentences": self.documents * 4,
            **({"word_ends": self.words * 4, "words": self.word_bytes} if self.words else {}),
        }
        ends = accumulate(sizes.values())
        return {name: (end - size, size) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def words(self) -> int:
        """The number of unknown words in the table."""
        return sum(count for _, count in self.unknown)

    @property
    def body_bytes(self) -> int:
        return sum(size for _, size in self.sections.values())


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard file in the index. `crc32` is that of its header and checksum table."""

    name: str
    split: str
    part: int
    bytes: int
    sha256: str
    crc32: int
    tokens: int
    sentences: int
    documents: int
    words: int = 0  # in its table of unknown words
    word_bytes: int = 0


def damaged_error(path: Path, reason: str) -> DataError:
    advice = f"run `bertsmith verify {path.parent}`, and prepare these shards again"
    return DataError(f"{path} is damaged: {reason}; {advice}")


def write_shard(path: Path, header: Header, documents: EncodedDocuments, disk: Disk) -> ShardEntry:
    """Writes prelude, header, checksum table and body; returns the entry for the index."""
    arrays = (documents.tokens, documents.sentence_lengths.astype("<u2"), documents.document_sentences.astype("<u4"))
    words = () if documents.unknown is None else documents.unknown.sections()
    body = b"".join([*(array.tobytes() for array in arrays), *words])
    view = memoryview(body)
    sums = [zlib.crc32(view[start : start + BLOCK]) for start in range(0, len(body), BLOCK)]
    table = np.array(sums, "<u4").tobytes()
    fields = {name: value for name, value in asdict(header).items() if value or name not in OPTIONAL}
    text = json.dumps({**fields, "sections": header.sections}, separators=(",", ":")).encode()
    text += b" " * (-(PRELUDE.size + len(text) + len(table)) % ALIGNMENT)
    if len(text) > HEADER_LIMIT:
        raise ValueError(f"the counts of part {header.part} make a header of {len(text):,} bytes: pass fewer counts")
    crc32 = zlib.crc32(table, zlib.crc32(text))
    written = disk.write_file(path, [PRELUDE.pack(MAGIC, len(text), crc32), text, table, body])
    return _entry(path, header, written, crc32)


@dataclass(frozen=True, slots=True)
class Head:
    """The checked part of a file before its body."""

    header: Header
    crc32: int
    table: NDArray[np.uint32]  # CRC32 of each block
    body: int  # offset of the body


class ShardFile:
    """A file open for reading; it is closed with its last reference, so that threads cannot close each other's files.

    Reads with pread, which threads and forked processes can share; a truncated file is an error, where a memory map
    would kill the process.
    """

    descriptor = -1

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing: prepare these shards again") from error
        except OSError as error:
            raise StorageError(f"{error.strerror}: opening {path}") from error

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, size: int, offset: int) -> bytes:
        """`size` bytes from `offset`."""
        data = b""
        try:
            while len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading {size:,} bytes at byte {offset:,} of {self.path}") from error
        if len(data) < size:
            end = f"it is truncated at byte {offset + len(data):,}, before byte {offset + size:,}"
            raise damaged_error(self.path, end)
        return data

    def read_head(self) -> Head:
        """Header and checksum table, after all checks that do not need the body."""
        magic, length, crc = PRELUDE.unpack(self.read(PRELUDE.size, 0))
        if magic != MAGIC or length > HEADER_LIMIT:
            raise damaged_error(self.path, "it does not start like a shard")
        text = self.read(length, PRELUDE.size)
        try:
            fields = json.loads(text)
            sections = fields.pop("sections")
            header = Header(**fields)
            counts = (header.tokens, header.sentences, header.documents)
            units, pairs = (header.first_unit, header.last_unit), list(header.unknown)
            numbers = (header.part, *counts, *units, header.word_bytes, *chain.from_iterable(pairs))
            valid = (
                all(type(number) is int and number >= 0 for number in numbers)
                and header.dtype in ("uint16", "uint32")
                and (header.format, header.block_bytes) == (FORMAT, BLOCK)
                and all(len(pair) == 2 for pair in pairs)
                and sections == {name: list(section) for name, section in header.sections.items()}
            )
            blocks = -(-header.body_bytes // BLOCK)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged_error(self.path, "its header cannot be read") from error
        body = PRELUDE.size + length + 4 * blocks
        size = os.fstat(self.descriptor).st_size
        if not valid or size != body + header.body_bytes:
            raise damaged_error(self.path, f"its {size:,} bytes do not match its header")
        table = self.read(4 * blocks, PRELUDE.size + length)
        if zlib.crc32(table, zlib.crc32(text)) != crc:
            raise damaged_error(self.path, "header and checksum table do not match their checksum")
        return Head(header, crc, np.frombuffer(table, "<u4"), body)

    def read_block(self, block: int, head: Head) -> bytes:
        """A block of the body that matches its checksum."""
        start = head.body + block * BLOCK
        data = self.read(min(BLOCK, head.header.body_bytes - block * BLOCK), start)
        if zlib.crc32(data) != head.table[block]:
            where = f"block {block} (bytes {start:,} to {start + len(data):,})"
            raise damaged_error(self.path, f"{where} does not match its checksum")
        return data


def check_file(path: Path) -> tuple[Header, ShardEntry]:
    """Reads and checks a complete file; returns its header and its entry for the index."""
    file = ShardFile(path)
    head = file.read_head()
    digest = hashlib.sha256(file.read(head.body, 0))
    for block in range(len(head.table)):
        digest.update(file.read_block(block, head))
    written = WrittenFile(head.body + head.header.body_bytes, digest.hexdigest())
    return head.header, _entry(path, head.header, written, head.crc32)


def _entry(path: Path, header: Header, written: WrittenFile, crc32: int) -> ShardEntry:
    keys = ("split", "part", "tokens", "sentences", "documents", "words", "word_bytes")
    shared = {key: getattr(header, key) for key in keys}
    return ShardEntry(name=path.name, crc32=crc32, **asdict(written), **shared)
