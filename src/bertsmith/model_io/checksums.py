"""checksums.json of a folder: size and sha256 of every file, with a checksum of its own.

safetensors has no checksum: a flipped bit in a weight would load without an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.model_io.untrusted_files import MEBIBYTE, UntrustedFile, exists, memory_size, shown
from bertsmith.system.durable import WrittenFile, checksummed_json, read_checksummed_json

CHECKSUMS = "checksums.json"
MAX_BYTES = MEBIBYTE
FORMAT = 1


def checksums_file(written: Mapping[str, WrittenFile]) -> bytes:
    """The contents of checksums.json."""
    files = {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in sorted(written.items())}
    return checksummed_json({"format": FORMAT, "files": files})


def difference(folder: Path, name: str, claim: WrittenFile) -> str | None:
    """How a file differs from what was written; None where it does not."""
    with UntrustedFile(folder, name, max_bytes=memory_size()) as file:
        if file.size != claim.bytes:
            return f"{file.path} has {file.size:,} bytes instead of the {claim.bytes:,} that were written"
        digest = hashlib.sha256()
        for piece in file.pieces(0, file.size):
            digest.update(piece)
    return None if digest.hexdigest() == claim.sha256 else f"{file.path} has changed: its sha256 differs"


def read_checksums(folder: Path) -> dict[str, WrittenFile] | None:
    """Size and sha256 of every file when it was written; None in a folder without checksums."""
    if not exists(folder, CHECKSUMS):
        return None
    UntrustedFile(folder, CHECKSUMS, max_bytes=MAX_BYTES).close()
    contents = read_checksummed_json(folder / CHECKSUMS, limit=MAX_BYTES + 1)
    files = contents.get("files")
    if contents.get("format") != FORMAT or not isinstance(files, dict):
        raise DataError(f"{folder / CHECKSUMS}: format {shown(contents.get('format'))} is not supported")
    try:
        return {name: WrittenFile(int(claim["bytes"]), str(claim["sha256"])) for name, claim in files.items()}
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{folder / CHECKSUMS}: every file must have bytes and sha256") from error


def verify_checksums(folder: Path, *, editable: frozenset[str] = frozenset()) -> tuple[str, ...] | None:
    """Compares every file with its checksum: a changed file is a DataError, an `editable` one only a note.

    Returns the notes, or None where the folder has no checksums.
    """
    files = read_checksums(folder)
    if files is None:
        return None
    notes = []
    for name, claim in files.items():
        if name in editable and not exists(folder, name):
            notes.append(f"{folder / name} was removed")
        elif (problem := difference(folder, name, claim)) is None:
            continue
        elif name in editable:
            notes.append(problem)
        else:
            hint = f"copy it again or, if the change was intended, remove {CHECKSUMS}"
            raise DataError(f"{problem}: it is damaged or was edited; {hint}")
    return tuple(notes)
