"""On-disk cache of the layers of a frozen encoder: files of rows, each with a checksummed index.

The key of a row is a digest of its tokens, since a frozen encoder computes the same features for it in any batch.
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
from bertsmith.tokenizers.spelling import PADDING
from bertsmith.types import Row

FORMAT = 1
FILE_BYTES = 1 << 28  # of one file: the work that is lost on interruption
Precision = Literal["float32", "float16"]
Numbers = NDArray[np.float32]
Extract = Callable[[Sequence[Row]], Iterator[Numbers]]  # for each row in order: [layers, L, D]


@dataclass(frozen=True)
class FeatureSpec:
    """What is stored of each row."""

    encoder: str  # digest of settings and weights
    layers: tuple[int, ...]  # ascending; 0 is the embeddings
    width: int
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "float16"):
            raise ConfigError(f"precision={self.precision} must be float32 or float16")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers on disk: little-endian on every machine."""
        return np.dtype(self.precision).newbyteorder("<")

    def bytes_of(self, length: int) -> int:
        """The size of a row with this number of tokens."""
        return len(self.layers) * length * self.width * self.dtype.itemsize


@dataclass(frozen=True)
class RowLocation:
    """Where a row is stored."""

    file: Path
    begin: int  # byte
    length: int  # tokens


@dataclass(frozen=True)
class FeatureFile:
    """The rows of one file."""

    path: Path
    rows: tuple[tuple[str, Row], ...]  # key and row
    spec: FeatureSpec

    @classmethod
    def planned(cls, folder: Path, rows: Mapping[str, Row], spec: FeatureSpec) -> list[Self]:
        """The rows by length, split into files, independent of their given order."""
        files: list[list[tuple[str, Row]]] = []
        filled = FILE_BYTES
        for key, row in sorted(rows.items(), key=lambda item: (len(item[1]), item[0])):
            if filled >= FILE_BYTES:
                files.append([])
                filled = 0
            files[-1].append((key, row))
            filled += spec.bytes_of(len(row))
        return [cls(folder / f"part-{number:05}.bin", tuple(some), spec) for number, some in enumerate(files)]

    @property
    def index(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(self.spec.bytes_of(len(row)) for _, row in self.rows)

    def contents(self) -> dict[str, Any]:
        """The index without size and checksum, as JSON values."""
        spec = asdict(self.spec) | {"layers": list(self.spec.layers)}
        return {"format": FORMAT, "spec": spec, "rows": [[key, len(row)] for key, row in self.rows]}

    def is_complete(self) -> bool:
        """Whether the file matches its index and checksum."""
        try:
            index = read_checksummed_json(self.index)
        except DataError:
            return False
        expected = {"bytes": index.pop("bytes", None), "sha256": index.pop("sha256", None)}
        index.pop("seal", None)
        return index == self.contents() and expected == _checksum(self.path)

    def write(self, extract: Extract, disk: Disk) -> None:
        """Writes the rows, then the index."""
        written = disk.write_file(self.path, self._chunks(extract))
        contents = self.contents() | {"bytes": written.bytes, "sha256": written.sha256}
        disk.write_file(self.index, [checksummed_json(contents)])

    def _chunks(self, extract: Extract) -> Iterator[bytes]:
        rows = [row for _, row in self.rows]
        for row, values in zip(rows, extract(rows), strict=True):
            assert values.shape == (len(self.spec.layers), len(row), self.spec.width)
            with np.errstate(over="ignore"):
                stored = np.ascontiguousarray(values, self.spec.dtype)
            if not np.isfinite(stored).all():
                raise BertsmithError(
                    f"a feature overflows {self.spec.precision} or is not finite: pass --precision float32, "
                    "or check the model"
                )
            yield stored.tobytes()

    def locations(self) -> Iterator[tuple[str, RowLocation]]:
        begin = 0
        for key, row in self.rows:
            yield key, RowLocation(self.path, begin, len(row))
            begin += self.spec.bytes_of(len(row))


class FeatureCache:
    """Features by row, read from disk on demand."""

    def __init__(self, spec: FeatureSpec, locations: Mapping[str, RowLocation]) -> None:
        self.spec, self.locations = spec, locations

    def read(self, key: str, layers: range) -> Numbers:
        """Contiguous layers of one row [layers, L, D]."""
        location = self.locations.get(key)
        if location is None:
            raise BertsmithError("a row is not in the feature cache: its text, tokenizer or max_length differs")
        first = self.spec.layers.index(layers[0])
        assert self.spec.layers[first : first + len(layers)] == tuple(layers), "these layers are not cached"
        step = location.length * self.spec.width * self.spec.dtype.itemsize  # bytes of one layer
        with open(location.file, "rb", buffering=0) as file:
            file.seek(location.begin + first * step)
            data = file.read(len(layers) * step)
        if len(data) != len(layers) * step:
            raise DataError(f"{location.file} is truncated: run the same command again to rewrite it")
        values = np.frombuffer(data, self.spec.dtype).reshape(len(layers), location.length, self.spec.width)
        return values.astype(np.float32, copy=False)


def row_key(ids: NDArray[Any], segments: NDArray[Any], characters: NDArray[Any] | None = None) -> str:
    """The key of a row: a digest of its token and segment ids, and of the `characters` [L, C] that an encoder reads.

    Unknown words have the same id. Marks separate words, so that padding does not count.
    """
    data = ids.astype("<i4").tobytes() + segments.astype(np.uint8).tobytes()
    if characters is not None:
        data += characters[characters != PADDING].astype("<i2").tobytes()
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def cache_features(
    folder: Path,
    rows: Sequence[Row],
    spec: FeatureSpec,
    extract: Extract,
    *,
    disk: Disk | None = None,
    quiet: bool = False,
) -> FeatureCache:
    """The features of rows, in a subfolder named after encoder, spec and rows; complete files are reused."""
    disk = disk or Disk()
    distinct = {row_key(row.ids, row.segment_ids, row.characters): row for row in rows}
    home = folder / _digest(spec, distinct)
    disk.make_folder(home)
    files = FeatureFile.planned(home, distinct, spec)
    done, total = 0, sum(file.size for file in files)
    if not quiet:
        print(f"features of {len(distinct):,} rows take {total / 1e9:.2f} GB in {home}", file=sys.stderr)
    with disk.lock(home), Progress("features", total=total, quiet=quiet) as progress:
        for file in files:
            done += file.size
            if file.is_complete():
                progress.resume_from(done)
                continue
            file.write(extract, disk)
            progress.update(done)
    return FeatureCache(spec, dict(location for file in files for location in file.locations()))


def _digest(spec: FeatureSpec, rows: Mapping[str, Row]) -> str:
    """Sixteen hexadecimal digits of encoder, spec and rows."""
    digest = hashlib.sha256(repr((FORMAT, FILE_BYTES, asdict(spec))).encode())
    for key in sorted(rows):
        digest.update(key.encode())
    return digest.hexdigest()[:16]


def _checksum(path: Path) -> dict[str, Any] | None:
    """Size and checksum of a file; None if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            digest, size = hashlib.file_digest(file, "sha256"), file.tell()
    except OSError:
        return None
    return {"bytes": size, "sha256": digest.hexdigest()}
