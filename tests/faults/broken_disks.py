"""Deliberately broken disks: a fault campaign must detect each of them.

Each is mixed in front of a `RecordingDisk` or `FailingDisk`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from faults.faulty_disks import FailingDisk, RecordingDisk

from bertsmith.system.durable import Chunk, Disk, WrittenFile


class QuickDisk(Disk):
    """Not broken, but without syncs: faster for checks after the fault."""

    def _fsync(self, descriptor: int, path: Path) -> None:
        pass

    def _sync_folder(self, path: Path) -> None:
        pass


class NoFsync(Disk):
    def _fsync(self, descriptor: int, path: Path) -> None:
        pass


class NoFolderSync(Disk):
    def _sync_folder(self, path: Path) -> None:
        pass


class InPlace(Disk):
    def write_file(self, path: str | Path, chunks: Iterable[Chunk], *, atomic: bool = True) -> WrittenFile:
        return super().write_file(path, chunks, atomic=False)


class _Delaying(Disk):
    """Delays files whose name begins with `delayed` until one that begins with `until` is written."""

    delayed: str
    until: str

    def write_file(self, path: str | Path, chunks: Iterable[Chunk], *, atomic: bool = True) -> WrittenFile:
        waiting: list[tuple[Path, bytes]] = self.__dict__.setdefault("_waiting", [])
        data = b"".join(chunks)
        if Path(path).name.startswith(self.delayed):
            waiting.append((Path(path), data))
            return WrittenFile(len(data), hashlib.sha256(data).hexdigest())
        written = super().write_file(path, [data], atomic=atomic)
        while waiting and Path(path).name.startswith(self.until):
            late, data = waiting.pop(0)
            super().write_file(late, [data], atomic=atomic)
        return written


class TrainFirst(_Delaying):
    delayed, until = "held-out-", "train-"


class IndexFirst(_Delaying):
    delayed, until = "train-00002", "index.json"  # the last commit


class QuickFailing(FailingDisk, QuickDisk):
    """Counts and fails at syncs like any other operation, but does not sync."""


class NoFsyncRecording(NoFsync, RecordingDisk):
    pass


class NoFolderSyncRecording(NoFolderSync, RecordingDisk):
    pass


class InPlaceRecording(InPlace, RecordingDisk):
    pass


class TrainFirstRecording(TrainFirst, RecordingDisk):
    pass


class IndexFirstRecording(IndexFirst, RecordingDisk):
    pass


class InPlaceFailing(InPlace, QuickFailing):
    pass


class TrainFirstFailing(TrainFirst, QuickFailing):
    pass


class IndexFirstFailing(IndexFirst, QuickFailing):
    pass
