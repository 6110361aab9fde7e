"""Files and config values from untrusted sources: regular files inside their folder, of bounded size.

Files are read with `pread`: a memory-mapped file that is truncated while it is read kills the process.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from bertsmith import config
from bertsmith.errors import ConfigError, DataError, StorageError

MEBIBYTE = 1 << 20
MAX_JSON_BYTES = 16 * MEBIBYTE
MAX_SIZE = 1 << 31  # of an integer setting
MAX_JSON_VALUES = 500_000  # an empty list is 3 bytes on disk and 64 in memory
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # what git checks out without Git LFS
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device"}


class Closing:
    """A context manager that calls `close`."""

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class UntrustedFile(Closing):
    """A regular file of a folder, opened for reading by position."""

    def __init__(self, folder: Path, name: str, *, max_bytes: int | None = None) -> None:
        self.path = folder / name
        self.descriptor = _open(_inside(folder, name), self.path)
        status = os.fstat(self.descriptor)
        self.size = status.st_size
        kind = stat.S_IFMT(status.st_mode)
        if kind != stat.S_IFREG:
            self.close()
            raise DataError(f"{self.path} is {KINDS.get(kind, 'not a regular file')}, not a file")
        if max_bytes is not None and self.size > max_bytes:
            self.close()
            raise DataError(f"{self.path} has {self.size:,} bytes: expected at most {max_bytes:,}")
        if self.size >= len(LFS_POINTER) and self.read(0, len(LFS_POINTER)) == LFS_POINTER:
            self.close()
            raise DataError(f"{self.path} is a Git LFS pointer, not the file: run `git lfs pull` in {folder}")

    def fill(self, buffer: memoryview, begin: int) -> None:
        """Fills a buffer with the bytes of the file from `begin` on."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self.descriptor, [buffer[done : done + MEBIBYTE * 64]], begin + done)
            except OSError as error:
                raise StorageError(f"{error.strerror}: reading {self.path}") from error
            if not count:
                raise DataError(f"{self.path} ends at byte {begin + done:,} instead of byte {begin + len(buffer):,}")
            done += count

    def read(self, begin: int, count: int) -> bytes:
        """`count` bytes from byte `begin` on."""
        buffer = bytearray(count)
        self.fill(memoryview(buffer), begin)
        return bytes(buffer)

    def pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """The bytes from `begin` to `end` in pieces; each piece is valid until the next one."""
        buffer = memoryview(bytearray(min(MEBIBYTE, end - begin)))
        for offset in range(begin, end, MEBIBYTE):
            piece = buffer[: end - offset]
            self.fill(piece, offset)
            yield piece

    def close(self) -> None:
        os.close(self.descriptor)


def exists(folder: Path, name: str) -> bool:
    """Whether the folder has an entry of that name, even a broken link."""
    return os.path.lexists(folder / name)


def memory_size() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def read_json(folder: Path, name: str, *, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """The object in a JSON file of the folder."""
    with UntrustedFile(folder, name, max_bytes=max_bytes) as file:
        return parse_object(file.read(0, file.size), file.path)


def parse_object(data: bytes, path: Path, *, what: str = "", max_values: int = MAX_JSON_VALUES) -> dict[str, Any]:
    """A JSON object: UTF-8, no key twice, no NaN, bounded in values and depth; else a DataError naming `path`."""
    values = data.count(b",") + data.count(b"[") + data.count(b"{")  # an upper bound
    if values > max_values:
        raise DataError(f"{path}{what} has more than {max_values:,} values")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_without_repeats, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}{what} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise DataError(f"{path}{what} is nested too deeply") from error
    except ValueError as error:
        raise DataError(f"{path}{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}{what} must be a JSON object, not {shown(value)}")
    return value


def shown(value: object, max_length: int = 60) -> str:
    """An untrusted value for an error message: as JSON, strings quoted, without control characters, truncated."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | None | list | dict) else repr(value)
    text = text if text.isprintable() else repr(value)
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def _inside(folder: Path, name: str) -> Path:
    """The resolved path of a file, which must be in the folder itself."""
    path = folder / name
    if name in {"", ".", ".."} or "/" in name or "\\" in name or not name.isprintable():
        raise DataError(f"{folder}: {shown(name)} is not the name of a file in this folder")
    try:
        root, real = folder.resolve(strict=True), path.resolve(strict=True)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing") from error
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if real.parent != root and real.parent != _blobs(root):
        raise DataError(f"{path} is a link to a file outside its folder: {shown(str(real), 200)}")
    return real


def _blobs(root: Path) -> Path | None:
    """The blobs of huggingface_hub's cache: x/snapshots/y, and y/z, hold links into x/blobs."""
    for above in (root.parent, root.parent.parent):
        if above.name == "snapshots":
            return above.parent / "blobs"
    return None


def _open(real: Path, path: Path) -> int:
    try:
        # without O_NONBLOCK, opening a pipe waits for a writer
        return os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        kind = "is a socket, not a file" if error.errno == errno.ENXIO else f"cannot be read: {error.strerror}"
        raise DataError(f"{path} {kind}") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {shown(key)} occurs twice")
        table[key] = value
    return table


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(frozen=True)
class ConfigReader:
    """The values of an untrusted config.json, each of the right type and within its limits, or an error."""

    settings: Mapping[str, Any]
    path: Path

    @classmethod
    def open(cls, folder: Path, name: str) -> Self:
        """The values of a file of the folder."""
        return cls(read_json(folder, name), folder / name)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, unchecked."""
        return self.settings.get(key, default)

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """An integer."""
        value = self.get(key, default)
        if value is None:
            raise ConfigError(f"{self.path} has no {key}: it is not a config of such a model")
        if type(value) is not int or not least <= value < MAX_SIZE:
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be an integer of at least {least}")
        return value

    def build(self, settings: Any, values: Mapping[str, Any]) -> Any:
        """A dataclass of settings; an error names this file."""
        try:
            return config.from_dict(settings, values)
        except ConfigError as error:
            text = str(error)
            raise ConfigError(f"{self.path}: {text[:300] if text.isprintable() else shown(text, 300)}") from error

    def share(self, key: str, default: float) -> float:
        """A number in [0, 1)."""
        value = self.get(key, default)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be a number in [0, 1)")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be a string")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.path}: {key}={shown(value)} must be true or false")
        return value

    def require(self, key: str, value: Any) -> None:
        """Raises where a setting is present with another value."""
        if self.get(key, value) not in (value, None):
            raise ConfigError(f"{self.path}: {key}={shown(self.get(key))}; bertsmith reads {shown(value)} only")
