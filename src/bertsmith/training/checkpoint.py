"""One checkpoint: a folder with weights, the optimiser's state, progress, and a manifest that vouches for every byte.

Written aside, synced, and only then given its name; read only if every byte is as it was written. Which checkpoints
there are and which are kept is `checkpoints.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import torch as safetensors
from torch import Tensor

from bertsmith.errors import DataError, StorageError
from bertsmith.system.durable import Disk, WrittenFile, checksummed_json, partial_path, read_checksummed_json
from bertsmith.training.state import TrainingState

MANIFEST, PROGRESS = "manifest.json", "progress.json"
WEIGHTS, OPTIMIZER = "weights.safetensors", "optimizer.safetensors"
FORMAT = 1
MOST_MANIFEST_BYTES = 1 << 24


def write_checkpoint(
    final: Path, state: TrainingState, *, files: Mapping[str, bytes], facts: Mapping[str, Any], disk: Disk
) -> None:
    """Writes a state under a name that must be free; returns once it is there for good.

    `files` go along as they are, `facts` (plain JSON) into the manifest.
    """
    state.check_finite()
    aside = partial_path(final)
    disk.make_folder(aside)
    written = {name: disk.write_file(aside / name, chunks, atomic=False) for name, chunks in _contents(state, files)}
    manifest = {
        "format": FORMAT,
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in written.items()},
        "made_with": state.environment,
        "facts": dict(facts),
    }
    disk.write_file(aside / MANIFEST, [checksummed_json(manifest)], atomic=False)
    disk.commit_folder(aside, final)


def _contents(state: TrainingState, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """The files of a checkpoint, one after the other, so that only one is in memory twice."""
    yield PROGRESS, [json.dumps(state.progress, indent=1, allow_nan=False).encode()]
    for name, data in files.items():
        assert name not in {MANIFEST, PROGRESS, WEIGHTS, OPTIMIZER}, f"{name} is the checkpoint's own"
        assert Path(name).name == name, f"{name} is no plain name"
        yield name, [data]
    yield WEIGHTS, [_packed(state.weights)]
    yield OPTIMIZER, [_packed(state.optimizer)]


def _packed(tensors: Mapping[str, Tensor]) -> bytes:
    """A safetensors file: equal tensors, equal bytes."""
    return safetensors.save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})


class Checkpoint:
    """A checkpoint whose manifest is as it was written; `read` and `verify` vouch for the other files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / MANIFEST
        manifest = read_checksummed_json(path, limit=MOST_MANIFEST_BYTES)
        if manifest.get("format") != FORMAT:
            raise DataError(f"{path}: format {manifest.get('format')!r} is not one that this version reads")
        self.facts: dict[str, Any] = manifest["facts"]
        self.made_with: dict[str, Any] = manifest["made_with"]
        self.files = {name: WrittenFile(file["bytes"], file["sha256"]) for name, file in manifest["files"].items()}

    def verify(self) -> None:
        """Compares every file with the manifest."""
        for name in self.files:
            self.read(name)

    def read(self, name: str) -> bytes:
        """A file as it was written, or a DataError that names it: what is returned is what was checked."""
        path, claim = self.folder / name, self.files[name]
        try:
            with open(path, "rb") as file:
                data = file.read(claim.bytes + 1)
        except FileNotFoundError as error:
            raise DataError(f"{path} is missing") from error
        except OSError as error:
            raise StorageError(f"{error.strerror}: reading {path}") from error
        if len(data) != claim.bytes:
            found = f"{len(data):,}" if len(data) < claim.bytes else "more"
            raise DataError(f"{path} has {found} bytes, not the {claim.bytes:,} that were written")
        if hashlib.sha256(data).hexdigest() != claim.sha256:
            raise DataError(f"{path} is damaged: its sha256 is not that of what was written")
        return data

    def state(self) -> TrainingState:
        """What was saved, with every file checked."""
        extra = self.files.keys() - {PROGRESS, WEIGHTS, OPTIMIZER}
        for name in sorted(extra):
            self.read(name)
        return TrainingState(
            weights=safetensors.load(self.read(WEIGHTS)),
            optimizer=safetensors.load(self.read(OPTIMIZER)),
            progress=json.loads(self.read(PROGRESS)),
            environment=self.made_with,
        )
