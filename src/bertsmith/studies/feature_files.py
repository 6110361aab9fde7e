"""What a frozen encoder says of rows, on disk: parts of whole rows, each with a sealed note of what it holds.

A row is found by its own tokens, whatever batch it comes in: an encoder that does not learn always says the same of it.
Knows rows and numbers, no encoder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from bertsmith.errors import BertsmithError, ConfigError, DataError
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.system.progress import Progress
from bertsmith.types import Row

FORMAT = 1
PART_BYTES = 1 << 28  # of one part: what is lost where the work is stopped
PIECE = 1 << 24  # bytes that are read at a time to check a part
Precision = Literal["float32", "float16"]
Numbers = NDArray[np.float32]
Say = Callable[[Sequence[Row]], Iterator[Numbers]]  # for each row in order: [layers, L, D]


@dataclass(frozen=True)
class Kind:
    """What is kept of every row."""

    encoder: str  # digest of settings and weights
    layers: tuple[int, ...]  # ascending; 0 is the embeddings
    width: int
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float16"):
            raise ConfigError(f"precision={self.precision} must be float32 or float16")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers on disk, the same on every machine."""
        return np.dtype(self.precision).newbyteorder("<")

    def bytes_of(self, length: int) -> int:
        """What a row of so many tokens takes."""
        return len(self.layers) * length * self.width * self.dtype.itemsize


@dataclass(frozen=True)
class Place:
    """Where a row lies."""

    part: Path
    begin: int  # byte
    length: int  # tokens


@dataclass(frozen=True)
class Part:
    """Rows that share a file."""

    path: Path
    rows: tuple[tuple[str, Row], ...]  # key and row
    kind: Kind

    @classmethod
    def planned(cls, folder: Path, rows: Mapping[str, Row], kind: Kind) -> list[Self]:
        """Short rows first, cut into parts: a function of the rows, not of their order."""
        order = sorted(rows.items(), key=lambda item: (len(item[1]), item[0]))
        found: list[list[tuple[str, Row]]] = []
        filled = PART_BYTES
        for key, row in order:
            if filled >= PART_BYTES:
                found.append([])
                filled = 0
            found[-1].append((key, row))
            filled += kind.bytes_of(len(row))
        return [cls(folder / f"part-{number:05}.bin", tuple(some), kind) for number, some in enumerate(found)]

    @property
    def note(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(self.kind.bytes_of(len(row)) for _, row in self.rows)

    def contents(self) -> dict[str, Any]:
        """What the note says besides bytes and checksum, as plain JSON."""
        kind = asdict(self.kind) | {"layers": list(self.kind.layers)}
        return {"format": FORMAT, "kind": kind, "rows": [[key, len(row)] for key, row in self.rows]}

    def is_whole(self) -> bool:
        """Whether it lies there just as it was written."""
        try:
            note = read_checksummed_json(self.note)
        except DataError:
            return False
        claim = {"bytes": note.pop("bytes", None), "sha256": note.pop("sha256", None)}
        note.pop("seal", None)
        return note == self.contents() and claim == _measured(self.path)

    def write(self, say: Say, disk: Disk) -> None:
        """The rows first, then the note that vouches for them."""
        written = disk.write_file(self.path, self._chunks(say))
        contents = self.contents() | {"bytes": written.bytes, "sha256": written.sha256}
        disk.write_file(self.note, [checksummed_json(contents)])

    def _chunks(self, say: Say) -> Iterator[bytes]:
        rows = [row for _, row in self.rows]
        for row, said in zip(rows, say(rows), strict=True):
            assert said.shape == (len(self.kind.layers), len(row), self.kind.width)
            with np.errstate(over="ignore"):
                kept = np.ascontiguousarray(said, self.kind.dtype)
            if not np.isfinite(kept).all():
                raise BertsmithError(
                    f"a feature is too large for {self.kind.precision} or not finite: pass --precision float32, "
                    "or look at the model"
                )
            yield kept.tobytes()

    def places(self) -> Iterator[tuple[str, Place]]:
        begin = 0
        for key, row in self.rows:
            yield key, Place(self.path, begin, len(row))
            begin += self.kind.bytes_of(len(row))


class Features:
    """Features by row, read from the disk as they are wanted."""

    def __init__(self, kind: Kind, places: Mapping[str, Place]) -> None:
        self.kind, self.indices = kind, places

    def read(self, key: str, layers: range) -> Numbers:
        """Neighbouring layers of one row [layers, L, D]."""
        place = self.indices.get(key)
        if place is None:
            raise BertsmithError("a row that no features were kept of: its text, tokenizer or length is another")
        first = self.kind.layers.index(layers[0])
        assert self.kind.layers[first : first + len(layers)] == tuple(layers), "these layers were not kept"
        step = place.length * self.kind.width * self.kind.dtype.itemsize  # bytes of one layer
        with open(place.part, "rb", buffering=0) as file:
            file.seek(place.begin + first * step)
            data = file.read(len(layers) * step)
        if len(data) != len(layers) * step:
            raise DataError(f"{place.part} has become shorter: run the same command again to write it anew")
        found = np.frombuffer(data, self.kind.dtype).reshape(len(layers), place.length, self.kind.width)
        return found.astype(np.float32, copy=False)


def row_key(ids: NDArray[Any], segments: NDArray[Any]) -> str:
    """What a row is found by: a digest of all that an encoder sees of it."""
    data = ids.astype("<i4").tobytes() + segments.astype(np.uint8).tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def keep_features(
    folder: Path, rows: Sequence[Row], kind: Kind, say: Say, *, disk: Disk | None = None, quiet: bool = False
) -> Features:
    """The features of rows, in a folder of their own below `folder`; what lies there whole is not computed again."""
    disk = disk or Disk()
    distinct = {row_key(row.ids, row.segment_ids): row for row in rows}
    home = folder / _name(kind, distinct)
    disk.make_folder(home)
    parts = Part.planned(home, distinct, kind)
    done, total = 0, sum(part.size for part in parts)
    if not quiet:
        print(f"features of {len(distinct):,} rows take {total / 1e9:.2f} GB in {home}", file=sys.stderr)
    with disk.lock(home), Progress("features", total=total, quiet=quiet) as progress:
        for part in parts:
            done += part.size
            if part.is_whole():
                progress.resume_from(done)
                continue
            part.write(say, disk)
            progress.update(done)
    return Features(kind, dict(place for part in parts for place in part.places()))


def _name(kind: Kind, rows: Mapping[str, Row]) -> str:
    """Sixteen hexadecimal digits of the encoder, of what is kept, and of the rows."""
    found = hashlib.sha256(repr((FORMAT, PART_BYTES, asdict(kind))).encode())
    for key in sorted(rows):
        found.update(key.encode())
    return found.hexdigest()[:16]


def _measured(path: Path) -> dict[str, Any] | None:
    """Size and checksum of a file, None where it cannot be read."""
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as file:
            while data := file.read(PIECE):
                digest.update(data)
                size += len(data)
    except OSError:
        return None
    return {"bytes": size, "sha256": digest.hexdigest()}
