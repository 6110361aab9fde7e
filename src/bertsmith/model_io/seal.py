"""The seal on a folder that we wrote: checksums.json, with size and sha256 of every file, itself sealed.

safetensors carries no checksum: a flipped bit in a weight would load without a word. Knows nothing of models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.model_io.foreign_files import MEBIBYTE, ForeignFile, exists, memory_size, shown
from bertsmith.system.durable import WrittenFile, checksummed_json, read_checksummed_json

SEAL = "checksums.json"
MOST_BYTES = MEBIBYTE
FORMAT = 1


def seal(written: Mapping[str, WrittenFile]) -> bytes:
    """The contents of checksums.json."""
    files = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in sorted(written.items())}
    return checksummed_json({"format": FORMAT, "files": files})


def changed(folder: Path, name: str, claim: WrittenFile) -> str | None:
    """What is wrong with a file, or nothing."""
    with ForeignFile(folder, name, most=memory_size()) as file:
        if file.size != claim.bytes:
            return f"{file.path} has {file.size:,} bytes, not the {claim.bytes:,} that were written"
        digest = hashlib.sha256()
        for piece in file.pieces(0, file.size):
            digest.update(piece)
    return None if digest.hexdigest() == claim.sha256 else f"{file.path} is not as it was written: its sha256 differs"


def read_seal(folder: Path) -> dict[str, WrittenFile] | None:
    """What every file was when it was written; nothing in a folder without a seal."""
    if not exists(folder, SEAL):
        return None
    ForeignFile(folder, SEAL, most=MOST_BYTES).close()
    contents = read_checksummed_json(folder / SEAL, limit=MOST_BYTES + 1)
    files = contents.get("files")
    if contents.get("format") != FORMAT or not isinstance(files, dict):
        raise DataError(f"{folder / SEAL}: format {shown(contents.get('format'))} is not one that this version reads")
    try:
        return {name: WrittenFile(int(claim["bytes"]), str(claim["sha256"])) for name, claim in files.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{folder / SEAL}: every file must have bytes and sha256") from error


def check_seal(folder: Path, *, editable: frozenset[str] = frozenset()) -> tuple[str, ...] | None:
    """Compares every file with the seal; a changed one is a DataError, an `editable` one only a note.

    Returns the notes, or None where the folder has no seal.
    """
    files = read_seal(folder)
    if files is None:
        return None
    notes = []
    for name, claim in files.items():
        if name in editable and not exists(folder, name):
            notes.append(f"{folder / name} was removed")
        elif (problem := changed(folder, name, claim)) is None:
            continue
        elif name in editable:
            notes.append(problem)
        else:
            hint = f"copy it again, or, if it was changed on purpose, remove {SEAL}"
            raise DataError(f"{problem}: it is damaged or was edited; {hint}")
    return tuple(notes)
