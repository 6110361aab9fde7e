"""Durable writes: a file appears complete or not at all, and survives a crash once its write has returned.

Each system call that changes the disk is a method of `Disk`, so that tests can record or fail it.
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

PARTIAL = ".partial"  # suffix of a file or folder that is being written or removed
NAME_ERRORS = (
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
)
# errors that another path avoids, and those for lack of space
PATH_ERRORS = (*NAME_ERRORS, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EBUSY, errno.EXDEV)
SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SLICE = 1 << 24  # bytes per write call: macOS refuses more than 2 GiB, and Ctrl-C must not wait long

Chunk = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Size and hash of a file, computed while it was written."""

    bytes: int
    sha256: str


@dataclass(slots=True)
class _Progress:
    expected: int = 0  # bytes of the file if known in advance, else of the chunks so far
    bytes: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)


def partial_path(path: Path) -> Path:
    """The name next to `path` under which it is written until it is complete."""
    return path.with_name(path.name + PARTIAL)


class Disk:
    """Writes that survive a crash of the process or the machine; every OSError becomes a StorageError."""

    def _open(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(path, flags, 0o666)

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        return os.write(descriptor, data)

    def _fsync(self, descriptor: int, path: Path) -> None:
        _flush(descriptor)

    def _rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

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

        `atomic=False` writes under the final name and does not sync the folder: only for files of a folder that
        `commit_folder` renames afterwards.
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
            with suppress(OSError):  # before the free bytes are counted, so that they include its space
                self._unlink(target)
            if isinstance(error, OSError):
                raise _storage_error(error, "writing", path, progress.expected) from error
            raise
        return WrittenFile(progress.bytes, progress.digest.hexdigest())

    def _write_chunks(self, path: Path, chunks: Iterable[Chunk], progress: _Progress) -> None:
        if isinstance(chunks, (list, tuple)):
            progress.expected = sum(memoryview(chunk).nbytes for chunk in chunks)
        descriptor = self._open(path)
        try:
            for chunk in chunks:
                rest = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
                progress.expected = max(progress.expected, progress.bytes + rest.nbytes)
                while rest:
                    count = self._write(descriptor, path, rest[:SLICE])
                    if not count:
                        raise OSError(errno.EIO, "The disk accepted no byte")
                    progress.digest.update(rest[:count])
                    progress.bytes += count
                    rest = rest[count:]
            self._fsync(descriptor, path)
        finally:
            os.close(descriptor)

    def make_folder(self, path: str | Path) -> None:
        """Creates `path` and its missing parents."""
        path = Path(path)
        if os.path.isdir(path):  # Path.is_dir raises for a name that is too long
            return
        self.make_folder(path.parent)
        with _explained("making folder", path):
            try:
                self._mkdir(path)
            except FileExistsError:
                if not path.is_dir():  # another process may have created the folder
                    raise
            self._sync_folder(path.parent)

    def sync_folder(self, path: str | Path) -> None:
        """Returns once the names in `path` are on the disk."""
        with _explained("syncing folder", Path(path)):
            self._sync_folder(Path(path))

    def commit_folder(self, temporary: str | Path, final: str | Path) -> None:
        """Renames a folder of synced files to its final name, atomically."""
        temporary, final = Path(temporary), Path(final)
        with _explained(f"renaming {temporary.name} to", final):
            for below, _, _ in os.walk(temporary, topdown=False):
                self._sync_folder(Path(below))
            self._rename(temporary, final)
            self._sync_folder(final.parent)

    def remove(self, path: str | Path) -> None:
        """Removes one file durably."""
        path = Path(path)
        with _explained("removing", path):
            self._unlink(path)
            self._sync_folder(path.parent)

    def remove_folder(self, path: str | Path) -> None:
        """Removes a folder; it is renamed first, so that a partly removed folder never looks complete."""
        path = Path(path)
        with _explained("removing folder", path):
            if path.is_symlink():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            temporary = path
            if not path.name.endswith(PARTIAL):
                temporary = partial_path(path)
                if temporary.exists():
                    self.remove_folder(temporary)
                self._rename(path, temporary)
                self._sync_folder(path.parent)
            for below, folders, files in os.walk(temporary, topdown=False):
                for name in files:
                    self._unlink(Path(below, name))
                for name in folders:
                    entry = Path(below, name)
                    (self._unlink if entry.is_symlink() else self._rmdir)(entry)
            self._rmdir(temporary)
            self._sync_folder(path.parent)

    @contextmanager
    def lock(self, folder: str | Path) -> Iterator[None]:
        """Locks `folder` against other processes; the lock ends with its process and leaves no file."""
        folder = Path(folder)
        with _explained("locking", folder):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _locks.add(descriptor)
        try:
            with _explained("locking", folder):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    reason = f"another process is using {folder}: wait until it ends, or choose another folder"
                    raise BertsmithError(reason) from error
            yield
        finally:
            if descriptor in _locks:
                _locks.remove(descriptor)
                os.close(descriptor)


_locks: set[int] = set()


def _close_inherited_locks() -> None:
    # a forked worker that outlives its parent would otherwise keep the folder locked
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)


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


def _storage_error(error: OSError, doing: str, path: Path, needed: int) -> StorageError:
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if error.errno in PATH_ERRORS:
        return StorageError(f"{error.strerror}: {doing} {path}: {_obstacle(path)}choose another path")
    try:
        status = os.statvfs(folder)
        free = f"{status.f_bavail * status.f_frsize:,} bytes are free in {folder}"
    except OSError as unknown:
        free = f"the free space in {folder} is unknown ({unknown.strerror})"
    wanted = f" needs {needed:,} bytes, {free}" if needed else f": {free}" if error.errno in SPACE_ERRORS else ""
    return StorageError(f"{error.strerror or error}: {doing} {path}{wanted}")


def _obstacle(path: Path) -> str:
    """The file, link or missing folder that prevents writing `path`, if it is one of these."""
    with suppress(OSError):  # such as a name that is too long
        if path.is_symlink():
            return f"{path} is a symbolic link, "
        if blocking := [one for one in (path, *path.parents) if one.is_file()]:
            return f"{blocking[0]} is a file, "
        return "" if path.parent.is_dir() else f"the folder {path.parent} is missing, "
    return ""


CHECKSUM = b',\n "seal": "%s"\n}\n'  # the last member: SHA-256 of every byte before it


def checksummed_json(contents: dict[str, Any]) -> bytes:
    """JSON whose last member is the SHA-256 of all bytes before it, so that any changed byte is detected."""
    body = json.dumps(contents, indent=1, allow_nan=False).encode().removesuffix(b"\n}")
    return body + CHECKSUM % hashlib.sha256(body).hexdigest().encode()


def read_checksummed_json(path: str | Path, *, limit: int = 1 << 28) -> dict[str, Any]:
    """The contents that `checksummed_json` wrote; a DataError if the file is missing or any byte changed."""
    try:
        with open(path, "rb") as file:
            data = file.read(limit)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    body = data[: -len(CHECKSUM) - 62]
    if data != body + CHECKSUM % hashlib.sha256(body).hexdigest().encode():
        raise DataError(f"{path} is damaged: its {len(data):,} bytes do not match the checksum at their end")
    try:
        contents: dict[str, Any] = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    return contents
