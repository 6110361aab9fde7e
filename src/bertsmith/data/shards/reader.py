"""Reading shards: any span of tokens by its position in the split, and where sentences and documents begin."""

from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertsmith.data.shards.folder import SPLITS, read_index
from bertsmith.data.shards.format import BLOCK, PRELUDE, Head, ShardEntry, ShardFile, Tokens, damaged_error, token_type
from bertsmith.data.shards.unknown_words import SPELLING, unknown_ids
from bertsmith.errors import BertsmithError, DataError, StorageError


class Part:
    """One file of a split: its counts, the counts of the files before it, and where its sentences start."""

    def __init__(self, reader: ShardReader, number: int, *, bases: Sequence[int]) -> None:
        entry = reader.entries[number]
        self.tokens, self.sentences, self.documents = entry.tokens, entry.sentences, entry.documents
        self.token_base, self.sentence_base, self.document_base = bases
        self._reader, self._number = reader, number

    @property
    def sentence_starts(self) -> NDArray[np.integer[Any]]:
        """[sentences + 1] first token of each sentence relative to the part; last: its number of tokens."""
        begin = self._reader.token_bytes[self._number]
        return self._starts(begin, "<u2", count=self.sentences, total=self.tokens)

    @property
    def document_starts(self) -> NDArray[np.integer[Any]]:
        """[documents + 1] first sentence of each document relative to the part; last: its number of sentences."""
        begin = self._reader.token_bytes[self._number] + 2 * self.sentences
        return self._starts(begin, "<u4", count=self.documents, total=self.sentences)

    def _starts(self, begin: int, dtype: str, *, count: int, total: int) -> NDArray[np.integer[Any]]:
        starts: NDArray[np.integer[Any]] = np.zeros(count + 1, np.uint32 if total < 1 << 32 else np.int64)
        if count:
            size = count * np.dtype(dtype).itemsize
            data = self._reader.read(np.array([self._number]), np.array([begin]), np.array([size]))
            np.cumsum(np.frombuffer(data, dtype), dtype=starts.dtype, out=starts[1:])
        if int(starts[-1]) != total:
            path = self._reader.paths[self._number]
            raise damaged_error(path, f"its lengths add up to {int(starts[-1]):,}, not {total:,}")
        return starts


class Shards:
    """One split of a finished shard set; cheap to open, pickled as its path, safe to use after a fork."""

    def __init__(self, folder: Path, split: str, index: dict[str, Any]) -> None:
        self.folder, self.split, self.index = folder, split, index
        self.fingerprint: str = index["fingerprint"]
        self.vocab_size: int = index["vocab_size"]
        self.spelling = bool(index["settings"].get(SPELLING))  # words outside of the vocabulary keep their bytes
        self._dtype = token_type(self.vocab_size, spelling=self.spelling)
        entries = [ShardEntry(**entry) for entry in index["files"] if entry["split"] == split]
        reader = ShardReader(folder, entries, self._dtype.itemsize)
        counts = [(0, 0, 0), *((entry.tokens, entry.sentences, entry.documents) for entry in entries)]
        bases = np.cumsum(counts, axis=0, dtype=np.int64)
        *before, (self.tokens, self.sentences, self.documents) = bases.tolist()
        self.parts = [Part(reader, number, bases=base) for number, base in enumerate(before)]
        self._reader, self._bases = reader, bases[:, 0]
        self._word_bases = np.cumsum([0, *(entry.words for entry in entries)], dtype=np.int64)

    @classmethod
    def open(cls, folder: str | Path, split: str = "train", *, fingerprint: str | None = None) -> Self:
        """The split of the set in `folder`; raises if `fingerprint` is not that of its tokenizer."""
        folder = Path(folder)
        if split not in SPLITS:
            raise BertsmithError(f"{split!r} is not a split of a shard set: choose {' or '.join(SPLITS)}")
        index = read_index(folder)
        if fingerprint is not None and fingerprint != index["fingerprint"]:
            raise DataError(
                f"shards in {folder} were written with tokenizer {_short(index['fingerprint'])} but this run uses "
                f"{_short(fingerprint)}: pass the tokenizer of the shards, or prepare them again"
            )
        shards = cls(folder, split, index)
        for path, entry in zip(shards._reader.paths, shards._reader.entries, strict=True):
            if not path.exists():
                raise DataError(f"{path} is missing: prepare these shards again")
            _check_size(path, path.stat().st_size, entry)
        return shards

    @property
    def digest(self) -> str:
        """SHA-256 of the tokenizer's fingerprint and the contents of all shard files, independent of paths."""
        files = sorted((entry["split"], entry["part"], entry["sha256"]) for entry in self.index["files"])
        return hashlib.sha256(json.dumps([self.fingerprint, files]).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (type(self), str(self.folder.absolute()), self.split, self.index["seal"])

    def read(self, starts: ArrayLike, lengths: ArrayLike) -> Tokens:
        """The tokens of the spans given by `starts` and `lengths`, concatenated. [T]

        Words outside of the vocabulary are unknown tokens, even where the shards keep their spelling.
        """
        starts = np.atleast_1d(np.asarray(starts, np.int64))
        lengths = np.broadcast_to(np.asarray(lengths, np.int64), starts.shape)
        ends = starts + lengths
        if len(starts) and (starts.min() < 0 or lengths.min() < 0 or ends.max() > self.tokens):
            raise IndexError(f"spans are outside the {self.tokens:,} tokens of {self.split} in {self.folder}")
        if len(lengths) and not lengths.min():
            starts, ends = starts[lengths > 0], ends[lengths > 0]
        if not len(starts):
            return np.empty(0, self._dtype)
        parts = np.searchsorted(self._bases, starts, side="right") - 1
        if np.any(ends > self._bases[parts + 1]):
            parts, starts, ends = self._split_spans(parts, starts, ends)
        itemsize = self._dtype.itemsize
        data = self._reader.read(parts, (starts - self._bases[parts]) * itemsize, (ends - starts) * itemsize)
        tokens = np.frombuffer(data, self._dtype)
        return self._resolved(tokens, parts, ends - starts) if self.spelling else tokens

    def _resolved(self, tokens: Tokens, parts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Tokens:
        """Tokens of spans of these parts, without references to tables of unknown words."""
        outside = np.flatnonzero(tokens >= self.vocab_size)
        owner = np.repeat(parts, lengths)[outside]
        return self._with_ids(tokens, outside, self._word_bases[owner] + tokens[outside] - self.vocab_size)

    def _with_ids(self, tokens: Tokens, outside: NDArray[np.int64], numbers: NDArray[np.int64]) -> Tokens:
        """The tokens with ids for those `outside` of the vocabulary, which are these words of the split."""
        tokens[outside] = self.unknown_ids(numbers)
        return tokens

    def unknown_ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The unknown tokens that stand for these words, numbered through the tables of all parts."""
        ids = np.zeros(len(numbers), np.int64)
        part_of = np.searchsorted(self._word_bases, numbers, "right") - 1
        for part in np.unique(part_of).tolist():
            own = part_of == part
            ids[own] = unknown_ids(self._reader.head(part).header.unknown, numbers[own] - self._word_bases[part])
        return ids

    def unknown_words(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """The UTF-8 bytes of these words, numbered likewise."""
        if not len(numbers):
            return []
        parts = np.searchsorted(self._word_bases, numbers, "right") - 1
        sections = {part: self._reader.head(part).header.sections for part in np.unique(parts).tolist()}
        begins_of = np.array([[sections[part][name][0] for name in ("word_ends", "words")] for part in parts.tolist()])
        table, content = begins_of.T
        index = numbers - self._word_bases[parts]
        first = np.maximum(index - 1, 0)
        data = self._reader.read(parts, table + 4 * first, 4 * (index + 1 - first))
        ends = np.frombuffer(data, "<u4").astype(np.int64)
        last = np.cumsum(index + 1 - first) - 1
        begins = np.where(index > 0, ends[np.maximum(last - 1, 0)], 0)
        sizes = ends[last] - begins
        full = sizes > 0
        data = self._reader.read(parts[full], (content + begins)[full], sizes[full]) if full.any() else bytearray()
        stops = np.cumsum(sizes)
        return [bytes(data[stop - size : stop]) for stop, size in zip(stops.tolist(), sizes.tolist(), strict=True)]

    def _split_spans(
        self, parts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The same spans, split at the boundaries of parts; skips parts without tokens."""
        spans: list[tuple[int, int, int]] = []
        for part, start, end in zip(parts.tolist(), starts.tolist(), ends.tolist(), strict=True):
            while start < end:
                stop = min(end, int(self._bases[part + 1]))
                if start < stop:
                    spans.append((part, start, stop))
                part, start = part + 1, stop
        result = np.array(spans, np.int64)
        return result[:, 0], result[:, 1], result[:, 2]


class SpelledShards(Shards):
    """Shards whose `read` keeps words outside of the vocabulary apart: id V + n is word n of `unknown_words`."""

    def _with_ids(self, tokens: Tokens, outside: NDArray[np.int64], numbers: NDArray[np.int64]) -> Tokens:
        tokens[outside] = self.vocab_size + numbers
        return tokens


def _check_size(path: Path, size: int, entry: ShardEntry) -> None:
    if size != entry.bytes:
        raise damaged_error(path, f"it has {size:,} bytes and should have {entry.bytes:,}")


def _short(fingerprint: str) -> str:
    return fingerprint if len(fingerprint) <= 12 else fingerprint[:12] + "…"


def _reopen(cls: type[Shards], folder: str, split: str, checksum: str) -> Shards:
    shards = cls.open(folder, split)
    if shards.index["seal"] != checksum:
        raise DataError(f"the shards in {folder} were replaced after they were opened: start again")
    return shards


OPEN_FILES = max(16, min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))  # maximum per split


class ShardReader:
    """Bytes of the bodies of the files of one split; each block is checked when it is first read."""

    def __init__(self, folder: Path, entries: Sequence[ShardEntry], itemsize: int) -> None:
        self.entries = entries
        self.paths = [folder / entry.name for entry in entries]
        self.token_bytes = [entry.tokens * itemsize for entry in entries]
        rest = [entry.sentences * 2 + entry.documents * 4 + entry.words * 4 + entry.word_bytes for entry in entries]
        self.sizes = [size + other for size, other in zip(self.token_bytes, rest, strict=True)]
        bodies = [entry.bytes - size for entry, size in zip(entries, self.sizes, strict=True)]
        self.bodies = np.array(bodies, np.int64)  # where the body of each file begins
        self.first_blocks = np.cumsum([0, *(-(-size // BLOCK) for size in self.sizes)], dtype=np.int64)
        self.checked = np.zeros(int(self.first_blocks[-1]), bool)
        self._files: dict[int, ShardFile] = {}
        self._heads: dict[int, Head] = {}

    def read(self, parts: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytearray:
        """Nonempty spans of bytes, each within the body of its part, concatenated."""
        self._check(parts, starts, starts + sizes)
        return self._read(parts.tolist(), (self.bodies[parts] + starts).tolist(), sizes.tolist())

    def head(self, part: int) -> Head:
        """The header of a part."""
        if part not in self._heads:
            self._file(part)
        return self._heads[part]

    def _check(self, parts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        first = self.first_blocks[parts] + starts // BLOCK
        last = self.first_blocks[parts] + (ends - 1) // BLOCK
        unchecked = ~(self.checked[first] & self.checked[last]) | (last - first > 1)
        for span in np.flatnonzero(unchecked).tolist():
            for block in range(int(first[span]), int(last[span]) + 1):
                if not self.checked[block]:
                    part = int(parts[span])
                    self._file(part).read_block(block - int(self.first_blocks[part]), self._heads[part])
                    self.checked[block] = True

    def _read(self, parts: list[int], offsets: list[int], sizes: list[int]) -> bytearray:
        needed = set(parts)
        if len(needed) > OPEN_FILES:
            half = len(parts) // 2
            left = self._read(parts[:half], offsets[:half], sizes[:half])
            return left + self._read(parts[half:], offsets[half:], sizes[half:])
        files = {part: self._file(part) for part in needed}  # referenced, so that they stay open
        descriptors = {part: file.descriptor for part, file in files.items()}
        pread = os.pread
        spans = zip(parts, sizes, offsets, strict=True)
        try:
            data = bytearray().join([pread(descriptors[part], size, offset) for part, size, offset in spans])
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading shards in {self.paths[0].parent}") from error
        if len(data) < sum(sizes):  # a read was short: read again with checks that name the file
            spans = zip(parts, sizes, offsets, strict=True)
            data = bytearray().join([files[part].read(size, offset) for part, size, offset in spans])
        return data

    def _file(self, part: int) -> ShardFile:
        file = self._files.get(part)
        if file is None:
            path, entry = self.paths[part], self.entries[part]
            file = ShardFile(path)
            _check_size(path, os.fstat(file.descriptor).st_size, entry)
            if PRELUDE.unpack(file.read(PRELUDE.size, 0))[2] != entry.crc32:
                raise damaged_error(path, "it is not the file in the index")
            if part not in self._heads:
                head = file.read_head()
                names = ("tokens", "sentences", "documents", "split", "words", "word_bytes")
                if any(getattr(head.header, name) != getattr(entry, name) for name in names):
                    raise damaged_error(path, "its header does not match the index")
                self._heads[part] = head
            while len(self._files) >= OPEN_FILES:
                self._files.pop(next(iter(self._files)), None)
            self._files[part] = file
        return file
