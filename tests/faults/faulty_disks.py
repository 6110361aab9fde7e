"""Disks that record every change or fail on demand.

Only the primitives of `Disk` are wrapped: writers above them behave exactly as on the real disk.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from bertsmith.system.durable import Disk

Kind = Literal["create", "write", "fsync", "rename", "unlink", "mkdir", "rmdir", "sync_folder"]
Result = TypeVar("Result")
# the end of an error; only writes need bytes, and only a full disk has to do with free ones
SPACE = r"( needs [\d,]+ bytes, [\d,]+ bytes are free|: [\d,]+ bytes are free|(?=\n?$))"


@dataclass(frozen=True, slots=True)
class Operation:
    """One disk operation. `target` is the new name of a rename, `data` what a write appended."""

    kind: Kind
    path: Path
    target: Path | None = None
    data: bytes = b""


class WatchedDisk(Disk):
    """Passes every primitive to `_perform`, as an `Operation` and a callable."""

    def _perform(self, operation: Operation, act: Callable[[], Result]) -> Result:
        return act()

    def _open(self, path: Path) -> int:
        return self._perform(Operation("create", path), partial(super()._open, path))

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        return self._perform(Operation("write", path), partial(super()._write, descriptor, path, data))

    def _fsync(self, descriptor: int, path: Path) -> None:
        self._perform(Operation("fsync", path), partial(super()._fsync, descriptor, path))

    def _rename(self, old: Path, new: Path) -> None:
        self._perform(Operation("rename", old, new), partial(super()._rename, old, new))

    def _unlink(self, path: Path) -> None:
        self._perform(Operation("unlink", path), partial(super()._unlink, path))

    def _mkdir(self, path: Path) -> None:
        self._perform(Operation("mkdir", path), partial(super()._mkdir, path))

    def _rmdir(self, path: Path) -> None:
        self._perform(Operation("rmdir", path), partial(super()._rmdir, path))

    def _sync_folder(self, path: Path) -> None:
        self._perform(Operation("sync_folder", path), partial(super()._sync_folder, path))


class RecordingDisk(WatchedDisk):
    """Performs and records all operations, for `power_loss.power_loss_states`."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def _perform(self, operation: Operation, act: Callable[[], Result]) -> Result:
        result = act()
        self.operations.append(operation)
        return result

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        count = Disk._write(self, descriptor, path, data)
        self.operations.append(Operation("write", path, data=bytes(data[:count])))
        return count


class FailingDisk(WatchedDisk):
    """Fails at operation number `fail_at`, counted from 0; `landed` tells whether it was reached.

    "kill" ends this process by SIGKILL before the operation or, with `halfway`, after half of a write or right after
    any other operation. "ENOSPC" and "EIO" raise once, or permanently with `lasting`, after half of a write. "short"
    makes one write incomplete, which is not an error.
    """

    def __init__(
        self,
        fail_at: int,
        how: Literal["ENOSPC", "EIO", "short", "kill"],
        *,
        halfway: bool = False,
        lasting: bool = False,
    ) -> None:
        self.fail_at, self.how, self.halfway, self.lasting = fail_at, how, halfway, lasting
        self.done = self.landed = 0

    def _strikes(self) -> bool:
        now = self.done
        self.done += 1
        self.landed += now == self.fail_at
        return now == self.fail_at or (self.lasting and now > self.fail_at)

    def _fail(self) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        code = getattr(errno, self.how)
        raise OSError(code, os.strerror(code))

    def _perform(self, operation: Operation, act: Callable[[], Result]) -> Result:
        if not self._strikes():
            return act()
        if self.how == "short":
            raise ValueError(f"only a write can be short, but operation {self.fail_at} is a {operation.kind}")
        if self.halfway and self.how == "kill":
            act()
        self._fail()
        raise AssertionError("unreachable")

    def _write(self, descriptor: int, path: Path, data: memoryview) -> int:
        if not self._strikes():
            return Disk._write(self, descriptor, path, data)
        if self.how == "short":
            return Disk._write(self, descriptor, path, data[: max(1, len(data) // 2)])
        if self.halfway or self.how != "kill":
            Disk._write(self, descriptor, path, data[: len(data) // 2])
        self._fail()
        raise AssertionError("unreachable")
