"""Bytes out of the bodies of many shard files: checked the first time they are touched, few files open at a time.

Knows parts and byte offsets, not tokens. Reads with pread, which threads and forked processes can share and which
answers a truncated file with an error that can be named, where a memory map would kill the process.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.data.shard_file import (
    BLOCK,
    PRELUDE,
    Head,
    ShardEntry,
    check_block,
    damaged,
    open_file,
    read_exactly,
    read_head,
)
from bertsmith.errors import StorageError

OPEN_FILES = max(16, min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))  # at most, for one split


class _OpenFile:
    """A descriptor that is closed when nobody reads from it any more, so that threads cannot close each other's."""

    descriptor = -1

    def __init__(self, path: Path) -> None:
        self.descriptor = open_file(path)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


class ShardReader:
    """The bodies of the files of one split, by part number and byte."""

    def __init__(self, folder: Path, entries: Sequence[ShardEntry], itemsize: int) -> None:
        self.entries = entries
        self.paths = [folder / entry.name for entry in entries]
        self.sizes = [entry.tokens * itemsize + entry.sentences * 2 + entry.documents * 4 for entry in entries]
        bodies = [entry.bytes - size for entry, size in zip(entries, self.sizes, strict=True)]
        self.bodies = np.array(bodies, np.int64)  # where the body of each file begins
        self.first_blocks = np.cumsum([0, *(-(-size // BLOCK) for size in self.sizes)], dtype=np.int64)
        self.checked = np.zeros(int(self.first_blocks[-1]), bool)
        self._files: dict[int, _OpenFile] = {}
        self._heads: dict[int, Head] = {}

    def read(self, parts: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> bytearray:
        """Spans of bytes, none empty, each within the body of its part, end to end."""
        self._check(parts, starts, starts + sizes)
        return self._read(parts.tolist(), (self.bodies[parts] + starts).tolist(), sizes.tolist())

    def _check(self, parts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        first = self.first_blocks[parts] + starts // BLOCK
        last = self.first_blocks[parts] + (ends - 1) // BLOCK
        doubtful = ~(self.checked[first] & self.checked[last]) | (last - first > 1)
        for span in np.flatnonzero(doubtful).tolist():
            for block in range(int(first[span]), int(last[span]) + 1):
                if not self.checked[block]:
                    self._check_block(int(parts[span]), block)

    def _check_block(self, part: int, block: int) -> None:
        file, path = self._file(part), self.paths[part]
        head, number = self._heads[part], block - int(self.first_blocks[part])
        size = min(BLOCK, self.sizes[part] - number * BLOCK)
        check_block(read_exactly(file.descriptor, size, head.body + number * BLOCK, path), number, head, path)
        self.checked[block] = True

    def _read(self, parts: list[int], offsets: list[int], sizes: list[int]) -> bytearray:
        wanted = set(parts)
        if len(wanted) > OPEN_FILES:
            half = len(parts) // 2
            left = self._read(parts[:half], offsets[:half], sizes[:half])
            return left + self._read(parts[half:], offsets[half:], sizes[half:])
        files = {part: self._file(part) for part in wanted}  # held here, so that they stay open
        descriptors = {part: file.descriptor for part, file in files.items()}
        pread = os.pread
        spans = zip(parts, sizes, offsets, strict=True)
        try:
            data = bytearray().join([pread(descriptors[part], size, offset) for part, size, offset in spans])
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading shards in {self.paths[0].parent}") from error
        if len(data) == sum(sizes):
            return data
        # some read was short: once more with care, which names the file unless it is whole again
        spans = zip(parts, sizes, offsets, strict=True)
        return bytearray().join(
            [read_exactly(descriptors[part], size, offset, self.paths[part]) for part, size, offset in spans]
        )

    def _file(self, part: int) -> _OpenFile:
        file = self._files.get(part)
        if file is None:
            path, entry = self.paths[part], self.entries[part]
            file = _OpenFile(path)
            if (size := os.fstat(file.descriptor).st_size) != entry.bytes:
                raise damaged(path, f"it has {size:,} bytes and should have {entry.bytes:,}")
            if PRELUDE.unpack(read_exactly(file.descriptor, PRELUDE.size, 0, path))[2] != entry.crc32:
                raise damaged(path, "it is not the file that the index lists")
            if part not in self._heads:
                self._heads[part] = self._checked_head(file.descriptor, path, entry)
            while len(self._files) >= OPEN_FILES:
                self._files.pop(next(iter(self._files)), None)
            self._files[part] = file
        return file

    def _checked_head(self, descriptor: int, path: Path, entry: ShardEntry) -> Head:
        head = read_head(descriptor, path)
        found = (head.header.tokens, head.header.sentences, head.header.documents, head.header.split)
        if found != (entry.tokens, entry.sentences, entry.documents, entry.split):
            raise damaged(path, "its header is not what the index says")
        return head
