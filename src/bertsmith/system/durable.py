"""The one module for every persistent write: a file is there whole or not at all, and stays once we say so.

`Disk` is the real thing; `durable_faults` holds versions that record every change or fail on demand, which is why
each system call that changes the disk is a method of its own here. This module knows nothing of what is written.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, DataError, StorageError

PARTIAL = ".partial"  # ends the name of what is still being written, or being removed
SLICE = 1 << 24  # bytes handed to one write: macOS refuses more than 2 GiB, and Ctrl-C must not wait for long

Chunk = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file holds, counted and hashed while it was written."""

    bytes: int
    sha256: str


@dataclass(slots=True)
class _Progress:
    wanted: int = 0  # bytes of the whole file where that is known beforehand, else of what has come so far
    bytes: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)


def partial_path(path: Path) -> Path:
    """The name beside `path` under which it is written until it is whole."""
    return path.with_name(path.name + PARTIAL)


class Disk:
    """Writes that survive a crash of this process or of the machine; every OSError becomes a StorageError."""

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o666)

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        return os.write(descriptor, data)

    def _fsync(self, descriptor: int, path: Path) -> None:
        _flush(descriptor)

    def _rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def _unlink(self, path: Path) -> None:
        os.unlink(path)

    def _mkdir(self, path: Path) -> None:
        os.mkdir(path)

    def _rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def _sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)

    def write_file(self, path: str | Path, chunks: Iterable[Chunk], *, atomic: bool = True) -> WrittenFile:
        """Writes `chunks` to `path` and returns once they are on the disk under that name.

        `atomic=False` writes under the final name at once and leaves the entry in the folder unsynced: only for files
        of a folder that is itself written aside and then goes through `commit_folder`.
        """
        path = Path(path)
        target = partial_path(path) if atomic else path
        progress = _Progress()
        try:
            self._write_chunks(target, chunks, progress)
            if atomic:
                self._rename(target, path)
                self._sync_folder(path.parent)
        except BaseException as error:
            with suppress(OSError):  # before the free bytes are counted, so that they include its own
                self._unlink(target)
            if isinstance(error, OSError):
                raise _storage_error(error, "writing", path, progress.wanted) from error
            raise
        return WrittenFile(progress.bytes, progress.digest.hexdigest())

    def _write_chunks(self, path: Path, chunks: Iterable[Chunk], progress: _Progress) -> None:
        if isinstance(chunks, (list, tuple)):
            progress.wanted = sum(memoryview(chunk).nbytes for chunk in chunks)
        descriptor = self._open(path)
        try:
            for chunk in chunks:
                rest = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
                progress.wanted = max(progress.wanted, progress.bytes + rest.nbytes)
                while rest:
                    count = self._write(descriptor, path, rest[:SLICE])
                    if not count:
                        raise OSError(errno.EIO, "The disk took no byte")
                    progress.digest.update(rest[:count])
                    progress.bytes += count
                    rest = rest[count:]
            self._fsync(descriptor, path)
        finally:
            os.close(descriptor)

    def make_folder(self, path: str | Path) -> None:
        """Makes `path` and the folders above it, as far as they are missing."""
        path = Path(path)
        if path.is_dir():
            return
        self.make_folder(path.parent)
        with _explained("making folder", path):
            try:
                self._mkdir(path)
            except FileExistsError:
                if not path.is_dir():  # a file; a folder is another process's, which was sooner
                    raise
            self._sync_folder(path.parent)

    def sync_folder(self, path: str | Path) -> None:
        """Returns once the names now in `path` are on the disk, whoever made them."""
        with _explained("syncing folder", Path(path)):
            self._sync_folder(Path(path))

    def commit_folder(self, aside: str | Path, final: str | Path) -> None:
        """Gives a folder written aside, whose files are synced, its final name, all of it or nothing."""
        aside, final = Path(aside), Path(final)
        with _explained(f"renaming {aside.name} to", final):
            for below, _, _ in os.walk(aside, topdown=False):
                self._sync_folder(Path(below))
            self._rename(aside, final)
            self._sync_folder(final.parent)

    def remove(self, path: str | Path) -> None:
        """Removes one file, for good."""
        path = Path(path)
        with _explained("removing", path):
            self._unlink(path)
            self._sync_folder(path.parent)

    def remove_folder(self, path: str | Path) -> None:
        """Removes a folder and all below it; it loses its name first, so that half of it is never taken for all."""
        path = Path(path)
        with _explained("removing folder", path):
            if path.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            aside = path
            if not path.name.endswith(PARTIAL):
                aside = partial_path(path)
                if aside.exists():
                    self.remove_folder(aside)
                self._rename(path, aside)
                self._sync_folder(path.parent)
            for below, folders, files in os.walk(aside, topdown=False):
                for name in files:
                    self._unlink(Path(below, name))
                for name in folders:
                    entry = Path(below, name)
                    (self._unlink if entry.is_symlink() else self._rmdir)(entry)
            self._rmdir(aside)
            self._sync_folder(path.parent)

    @contextmanager
    def lock(self, folder: str | Path) -> Iterator[None]:
        """Holds `folder` against other processes; the lock goes with its holder and leaves no file behind."""
        folder = Path(folder)
        with _explained("locking", folder):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _locks.add(descriptor)
        try:
            with _explained("locking", folder):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    reason = f"another process is working in {folder}: wait until it ends, or choose another folder"
                    raise BertsmithError(reason) from error
            yield
        finally:
            if descriptor in _locks:
                _locks.remove(descriptor)
                os.close(descriptor)


_locks: set[int] = set()


def _leave_locks_to_parent() -> None:
    # a forked worker that outlives its killed parent would otherwise keep the folder locked
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_leave_locks_to_parent)


def _flush(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS fsync stops at the drive's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


@contextmanager
def _explained(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(error, doing, path, 0) from error


def _storage_error(error: OSError, doing: str, path: Path, wanted: int) -> StorageError:
    there = path.parent
    while not there.is_dir() and there != there.parent:
        there = there.parent
    try:
        status = os.statvfs(there)
        free = f"{status.f_bavail * status.f_frsize:,} are free in {there}"
    except OSError as unknown:
        free = f"how many are free in {there} is unknown ({unknown.strerror})"
    return StorageError(f"{error.strerror or error}: {doing} {path} wanted {wanted:,} bytes, {free}")


SEAL = b',\n "seal": "%s"\n}\n'  # the last member: sha256 of every byte before it


def checksummed_json(contents: dict[str, Any]) -> bytes:
    """JSON whose last member is the sha256 of all that stands before it, so that any changed byte shows."""
    body = json.dumps(contents, indent=1, allow_nan=False).encode().removesuffix(b"\n}")
    return body + SEAL % hashlib.sha256(body).hexdigest().encode()


def read_checksummed_json(path: str | Path, *, limit: int = 1 << 28) -> dict[str, Any]:
    """What `sealed` was given, or a DataError naming the file if it is missing or a byte is not as written."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    body = data[: -len(SEAL) - 62]
    if data != body + SEAL % hashlib.sha256(body).hexdigest().encode():
        raise DataError(f"{path} is damaged: its {len(data):,} bytes do not match the checksum at their end")
    try:
        contents: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    return contents
