"""Checkpoints of a run: weights, optimizer state and progress, with a manifest that has a checksum of every file.

No file points to the latest one: names carry the step, and a run resumes from the newest checkpoint that verifies.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import torch as safetensors
from torch import Tensor

from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.system.durable import PARTIAL, Disk, WrittenFile, checksummed_json, partial_path, read_checksummed_json

FOLDER = "checkpoints"
MANIFEST, PROGRESS = "manifest.json", "progress.json"
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
RECURRENT = "recurrent_state.safetensors"  # of stateful encoders only
FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 24
MIN_KEPT = 2  # verified checkpoints that are never removed


@dataclass(frozen=True)
class TrainingState:
    """Everything a trainer needs to resume. The tensors are the trainer's own: use them before its next step."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    progress: dict[str, Any]  # plain JSON: step, seconds, tokens
    environment: dict[str, Any] = field(default_factory=dict)  # plain JSON: versions, threads, ranks, device
    recurrent: tuple[Tensor, ...] = ()  # state of a stateful encoder for the rows of the next step, [batch size, ...]

    @property
    def step(self) -> int:
        return int(self.progress["step"])

    def check_finite(self) -> None:
        """Raises where a value is not finite: such a state must not replace a good one."""
        recurrent = _numbered(self.recurrent)
        for what, tensors in (("weight", self.weights), ("optimizer state", self.optimizer), ("state", recurrent)):
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise BertsmithError(
                        f"the {what} {name} is not finite after step {self.step:,}: nothing was saved; "
                        "resume from the last checkpoint with a lower learning rate"
                    )


def environment_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each difference between the environments of a saved and of a resumed run."""
    return tuple(f"{name} was {before[name]}, now {now.get(name)}" for name in before if before[name] != now.get(name))


def write_checkpoint(
    final: Path, state: TrainingState, *, files: Mapping[str, bytes], facts: Mapping[str, Any], disk: Disk
) -> None:
    """Writes a state to a new folder; returns once it is durable. `facts` (plain JSON) go into the manifest."""
    state.check_finite()
    temporary = partial_path(final)
    disk.make_folder(temporary)
    contents = _contents(state, files)
    written = {name: disk.write_file(temporary / name, [data], atomic=False) for name, data in contents}
    manifest = {
        "format": FORMAT,
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in written.items()},
        "made_with": state.environment,
        "facts": dict(facts),
    }
    disk.write_file(temporary / MANIFEST, [checksummed_json(manifest)], atomic=False)
    disk.commit_folder(temporary, final)


def _contents(state: TrainingState, files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """The files of a checkpoint, one after another, so that only one is serialized at a time."""
    yield PROGRESS, json.dumps(state.progress, indent=1, allow_nan=False).encode()
    for name, data in files.items():
        assert name not in {MANIFEST, PROGRESS, WEIGHTS, OPTIMIZER, RECURRENT}, f"{name} is a reserved name"
        assert Path(name).name == name, f"{name} is not a plain file name"
        yield name, data
    recurrent = [(RECURRENT, _numbered(state.recurrent))] if state.recurrent else []
    for name, tensors in [(WEIGHTS, state.weights), (OPTIMIZER, state.optimizer), *recurrent]:
        # equal tensors give equal bytes
        yield name, safetensors.save({key: tensors[key].detach().cpu().contiguous() for key in sorted(tensors)})


def _numbered(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """The tensors by their numbers, in an order that is also alphabetical."""
    return {f"{number:04}": tensor for number, tensor in enumerate(tensors)}


class Checkpoint:
    """A checkpoint whose manifest has the right checksum; `read` and `verify` check the other files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        manifest = read_checksummed_json(path, limit=MAX_MANIFEST_BYTES)
        if manifest.get("format") != FORMAT:
            raise DataError(f"{path}: format {manifest.get('format')!r} is not supported by this version")
        self.facts: dict[str, Any] = manifest["facts"]
        self.environment: dict[str, Any] = manifest["made_with"]
        self.files = {name: WrittenFile(file["bytes"], file["sha256"]) for name, file in manifest["files"].items()}

    def verify(self) -> None:
        """Compares every file with the manifest."""
        for name in self.files:
            self.read(name)

    def read(self, name: str) -> bytes:
        """The verified bytes of a file; a DataError that names it where they are damaged."""
        path, expected = self.folder / name, self.files[name]
        try:
            with open(path, "rb") as file:
                data = file.read(expected.bytes + 1)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing") from error
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading {path}") from error
        if len(data) != expected.bytes:
            size = f"{len(data):,}" if len(data) < expected.bytes else "more"
            raise DataError(f"{path} has {size} bytes instead of {expected.bytes:,}")
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise DataError(f"{path} is damaged: its sha256 differs from the manifest")
        return data

    def state(self) -> TrainingState:
        """The saved state, every file verified."""
        for name in sorted(self.files.keys() - {PROGRESS, WEIGHTS, OPTIMIZER, RECURRENT}):
            self.read(name)
        weights, optimizer = (safetensors.load(self.read(name)) for name in (WEIGHTS, OPTIMIZER))
        stored = safetensors.load(self.read(RECURRENT)) if RECURRENT in self.files else {}
        recurrent = tuple(stored[name] for name in sorted(stored))
        return TrainingState(weights, optimizer, json.loads(self.read(PROGRESS)), self.environment, recurrent)


@dataclass(frozen=True)
class Resumed:
    """The newest checkpoint that verifies; `state` is None where there is none."""

    state: TrainingState | None = None
    checkpoint: Checkpoint | None = None
    skipped: tuple[str, ...] = ()  # one message for each newer checkpoint that does not verify


class Checkpoints:
    """`with Checkpoints(run) as checkpoints:` locks the run folder while it is open."""

    def __init__(
        self,
        run: str | Path,
        *,
        keep: int = MIN_KEPT,
        files: Mapping[str, bytes] | None = None,
        facts: Mapping[str, Any] | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`files` (recipe, tokenizer) and `facts` (fingerprints; plain JSON) go into every checkpoint."""
        if keep < MIN_KEPT:
            raise ConfigError(
                f"keep_checkpoints={keep} must be at least {MIN_KEPT}: one checkpoint alone may be damaged"
            )
        self.run, self.folder, self.keep = Path(run), Path(run) / FOLDER, keep
        self.files, self.facts, self.disk = dict(files or {}), dict(facts or {}), disk or Disk()
        self._verified: set[Path] = set()  # written or read by this process
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self.disk.make_folder(self.run)
        self._open.enter_context(self.disk.lock(self.run))
        try:
            self.disk.make_folder(self.folder)
            for leftover in sorted(self.folder.glob(f"*{PARTIAL}")):
                self.disk.remove_folder(leftover)
            for made in (self.folder, self.run, self.run.parent):  # a killed process may not have synced them
                if os.access(made, os.R_OK):  # the parent folder may belong to another user
                    self.disk.sync_folder(made)
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def save(self, state: TrainingState) -> Path:
        """Writes a state and removes old checkpoints; once this returns, the state is durable.

        A step that this process has already saved or resumed from is not written again.
        """
        final = self.folder / f"step-{state.step:08}"
        if final not in self._verified:
            self._write(final, state)
        self._remove_old(final)
        return final

    def _write(self, final: Path, state: TrainingState) -> None:
        try:
            for old in (partial_path(final), final):  # damaged, or of a run that resumed from an earlier checkpoint
                if old.exists():
                    self.disk.remove_folder(old)
            write_checkpoint(final, state, files=self.files, facts=self.facts, disk=self.disk)
        except BaseException:
            if partial_path(final).exists():
                with suppress(StorageError):  # the first error matters; opening again removes the rest
                    self.disk.remove_folder(partial_path(final))
            raise
        self._verified.add(final)

    def _remove_old(self, newest: Path) -> None:
        """Removes all but the newest `keep` that verify; nothing while fewer than two do."""
        kept: list[Path] = []
        for path in reversed([path for path in self.all() if _step(path) <= _step(newest)]):
            if len(kept) < self.keep and self._verifies(path):
                kept.append(path)
        if len(kept) < MIN_KEPT:
            return
        for path in self.all():
            # newer ones are damaged, or of a run that was resumed from an earlier checkpoint
            if not _step(kept[-1]) <= _step(path) <= _step(newest):
                self._verified.discard(path)
                self.disk.remove_folder(path)

    def _verifies(self, path: Path) -> bool:
        if path not in self._verified:
            try:
                Checkpoint(path).verify()
            except (DataError, StorageError):
                return False
            self._verified.add(path)
        return True

    def all(self) -> list[Path]:
        """Every checkpoint folder, oldest first, whether it verifies or not."""
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in paths if re.fullmatch(r"step-\d{8,}", path.name)), key=_step)

    def resume(self) -> Resumed:
        """The newest checkpoint that verifies; an error where none of the existing ones does."""
        skipped: list[str] = []
        for path in reversed(self.all()):
            try:
                checkpoint = Checkpoint(path)
                state = checkpoint.state()
            except (DataError, StorageError) as error:
                skipped.append(f"{path.name} was skipped: {error}")
                continue
            self._verified.add(path)
            return Resumed(state, checkpoint, tuple(skipped))
        if skipped:
            reasons = "; ".join(skipped)
            raise DataError(f"no checkpoint in {self.folder} can be resumed: {reasons}; remove them to start again")
        return Resumed()


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))
