"""The checkpoints of a run: saved, kept at least in twos, and the newest good one found again.

There is no pointer to the latest: names carry the step, and what does not verify is passed over and said so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bertsmith.errors import ConfigError, DataError, StorageError
from bertsmith.system.durable import PARTIAL, Disk, partial_path
from bertsmith.training.checkpoint import Checkpoint, write_checkpoint
from bertsmith.training.state import TrainingState

FOLDER = "checkpoints"
LEAST = 2  # verified checkpoints that are never given up


@dataclass(frozen=True)
class Resumed:
    """Where a run can go on: nowhere yet (`state` is None), or at the newest checkpoint that verifies."""

    state: TrainingState | None = None
    checkpoint: Checkpoint | None = None
    skipped: tuple[str, ...] = ()  # one line for each newer one: which, and why


class Checkpoints:
    """`with Checkpoints(run) as checkpoints:` holds the run's folder against other processes while it is open."""

    def __init__(
        self,
        run: str | Path,
        *,
        keep: int = LEAST,
        files: Mapping[str, bytes] | None = None,
        facts: Mapping[str, Any] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`files` (recipe, tokenizer) and `facts` (fingerprints; plain JSON) go into every checkpoint."""
        if keep < LEAST:
            raise ConfigError(f"keep_checkpoints={keep} must be at least {LEAST}: one checkpoint alone may be damaged")
        self.run, self.folder, self.keep = Path(run), Path(run) / FOLDER, keep
        self.files, self.facts, self.disk = dict(files or {}), dict(facts or {}), disk or Disk()
        self._good: set[Path] = set()  # written or verified by this process
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.disk.make_folder(self.run)
        self._open.enter_context(self.disk.lock(self.run))
        try:
            self.disk.make_folder(self.folder)
            for leftover in sorted(self.folder.glob(f"*{PARTIAL}")):
                self.disk.remove_folder(leftover)
            for made in (self.folder, self.run, self.run.parent):  # a killed process may not have come to sync them
                if os.access(made, os.R_OK):  # what lies above the run need not be ours
                    self.disk.sync_folder(made)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def save(self, state: TrainingState) -> Path:
        """Writes a state and gives up what need not be kept; once this returns, the state is not lost any more.

        A step that this process has already saved or gone on from is not written again.
        """
        final = self.folder / f"step-{state.step:08}"
        if final not in self._good:
            self._write(final, state)
        self._retire(final)
        return final

    def _write(self, final: Path, state: TrainingState) -> None:
        try:
            for old in (
                partial_path(final),
                final,
            ):  # damaged, or of a run that was abandoned for an earlier checkpoint
                if old.exists():
                    self.disk.remove_folder(old)
            write_checkpoint(final, state, files=self.files, facts=self.facts, disk=self.disk)
        except BaseException:
            if partial_path(final).exists():
                with suppress(StorageError):  # what matters is the first error; opening again removes the rest
                    self.disk.remove_folder(partial_path(final))
            raise
        self._good.add(final)

    def _retire(self, newest: Path) -> None:
        """Removes all but the newest `keep` that verify; nothing as long as fewer than two do."""
        kept: list[Path] = []
        for path in reversed([path for path in self.all() if _step(path) <= _step(newest)]):
            if len(kept) < self.keep and self._verifies(path):
                kept.append(path)
        if len(kept) < LEAST:
            return
        for path in self.all():
            # newer ones are damaged, or of a run that was abandoned for an earlier checkpoint
            if not _step(kept[-1]) <= _step(path) <= _step(newest):
                self._good.discard(path)
                self.disk.remove_folder(path)

    def _verifies(self, path: Path) -> bool:
        if path not in self._good:
            try:
                Checkpoint(path).verify()
            except (DataError, StorageError):
                return False
            self._good.add(path)
        return True

    def all(self) -> list[Path]:
        """Every checkpoint by its name, oldest first, whether it verifies or not."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in found if re.fullmatch(r"step-\d{8,}", path.name)), key=_step)

    def resume(self) -> Resumed:
        """The newest checkpoint that verifies; an error where there are some, but none does."""
        skipped: list[str] = []
        for path in reversed(self.all()):
            try:
                checkpoint = Checkpoint(path)
                state = checkpoint.state()
            except (DataError, StorageError) as error:
                skipped.append(f"{path.name} was passed over: {error}")
                continue
            self._good.add(path)
            return Resumed(state, checkpoint, tuple(skipped))
        if skipped:
            reasons = "; ".join(skipped)
            raise DataError(f"no checkpoint in {self.folder} can be gone on from: {reasons}; remove them to begin anew")
        return Resumed()


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
