"""Google's checkpoints (bert: bert_model.ckpt.index and .data-…) without TensorFlow, under transformers' names.

The index is a sorted table: "" -> BundleHeaderProto, variable -> BundleEntryProto (tensorflow: tensor_bundle.proto).
A dense kernel is stored [in, out] and is turned here, so that what comes out is what transformers would have stored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from bertsmith.errors import DataError
from bertsmith.model_io.crc32c import crc32c, masked
from bertsmith.model_io.safetensors_files import MOST_DIMENSIONS, WIDTHS, Entry, as_bytes
from bertsmith.model_io.sorted_table import fields, read_table
from bertsmith.model_io.untrusted_files import MEBIBYTE, UntrustedFile, shown

MOST_INDEX_BYTES = 16 * MEBIBYTE
MOST_SHARDS = 1000
KINDS = {1: "F32", 2: "F64", 3: "I32", 9: "I64", 14: "BF16", 19: "F16"}  # tensorflow: types.proto
TYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
# What an optimiser and its schedule leave in a checkpoint: no weights of the model.
TRAINING = re.compile(
    r"(global_step|beta[12]_power|loss_scale|(good|bad)_steps)$|.*/(adam_[mv]|Adam(_1)?|lamb_[mv]|LAMB(_1)?)$"
)
OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # the mark of TensorFlow 2's own kind of checkpoint


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of the index: where a variable lies in which data file."""

    kind: str
    shape: tuple[int, ...]
    shard: int
    begin: int
    size: int
    checksum: int  # masked CRC-32C of its bytes


class TensorFlowCheckpoint:
    """The variables of a checkpoint as weights under transformers' names; read one by one, checked as they are read."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.index = folder / f"{prefix}.index"
        with UntrustedFile(folder, self.index.name, most=MOST_INDEX_BYTES) as file:
            shards, variables = _read_index(file)
        with ExitStack() as stack:
            names = [f"{prefix}.data-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
            self.files = [stack.enter_context(UntrustedFile(folder, name)) for name in names]
            _check_places(self.index, self.files, variables)
            self._open = stack.pop_all()
        self.variables = {transformers_name(name): (name, variable) for name, variable in variables.items()}
        if len(self.variables) < len(variables):
            raise DataError(f"{self.index}: two of its variables are one weight")
        self.entries = {
            theirs: Entry(variable.kind, variable.shape[::-1] if _is_kernel(name) else variable.shape, 0, variable.size)
            for theirs, (name, variable) in self.variables.items()
        }

    def path(self, name: str) -> Path:
        """The file in which a weight lies."""
        return self.files[self.variables[name][1].shard].path

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a weight into a tensor of its shape."""
        google, variable = self.variables[name]
        file = self.files[variable.shard]
        if variable.kind not in TYPES:
            raise DataError(f"{file.path}: {shown(google)} is of type {variable.kind}, which is no weight")
        found = torch.empty(variable.shape, dtype=TYPES[variable.kind])
        memory = as_bytes(found)
        if found.numel():
            file.fill(memory, variable.begin)
        pieces = (memory[place : place + 8 * MEBIBYTE] for place in range(0, len(memory), 8 * MEBIBYTE))
        if masked(crc32c(pieces)) != variable.checksum:
            raise DataError(f"{file.path} is damaged: {shown(google)} does not match its checksum")
        target.copy_(found.T if _is_kernel(google) else found)

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are the same bytes, as their checksums have it."""
        one, other = self.variables[first][1], self.variables[second][1]
        return (one.shape, one.kind, one.checksum) == (other.shape, other.kind, other.checksum)

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def transformers_name(variable: str) -> str:
    """bert/encoder/layer_0/output/dense/kernel -> bert.encoder.layer.0.output.dense.weight."""
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", variable).replace("/", ".")
    name = re.sub(r"\.(kernel|gamma|output_weights)$", ".weight", name)
    name = re.sub(r"\.(beta|output_bias)$", ".bias", name)
    return f"{name}.weight" if name.endswith("_embeddings") else name


def _is_kernel(variable: str) -> bool:
    return variable.endswith("/kernel")


def _read_index(file: UntrustedFile) -> tuple[int, dict[str, Variable]]:
    """The number of data files, and every variable that is a weight."""
    table = read_table(file)
    header = dict(fields(table.pop(b"", b""), file.path))
    shards = header.get(1, 0)
    if not isinstance(shards, int) or not 0 < shards <= MOST_SHARDS or header.get(2, 0) != 0:
        raise DataError(
            f"{file.path}: {shown(shards)} data files, or not in little-endian order: no checkpoint of ours"
        )
    if OBJECTS in table:
        raise DataError(f"{file.path} is a checkpoint of TensorFlow 2's objects; bertsmith imports Google's first kind")
    found = {}
    for key, value in table.items():
        name = key.decode("utf-8", "backslashreplace")
        if not TRAINING.match(name):
            found[name] = _variable(value, name, file.path)
    return shards, found


def _variable(message: bytes, name: str, path: Path) -> Variable:
    """A BundleEntryProto: 1 type, 2 shape, 3 data file, 4 place, 5 size, 6 checksum, 7 slices."""
    found: dict[int, int | bytes] = dict(fields(message, path))
    if 7 in found:
        raise DataError(f"{path}: {shown(name)} is stored in slices, which Google's BERT never was")
    kind = KINDS.get(_number(found, 1))
    shape = tuple(_sizes(found.get(2, b""), path))
    if kind is None or len(shape) > MOST_DIMENSIONS:
        raise DataError(f"{path}: {shown(name)} has type {_number(found, 1)} and {len(shape)} dimensions: no weight")
    variable = Variable(kind, shape, *(_number(found, field) for field in (3, 4, 5, 6)))
    if math.prod(shape) * WIDTHS[kind] != variable.size:
        raise DataError(f"{path}: {shown(name)} of shape {shown(shape)} and type {kind} has {variable.size:,} bytes")
    return variable


def _number(found: dict[int, int | bytes], field: int) -> int:
    value = found.get(field, 0)
    return value if isinstance(value, int) else -1


def _sizes(message: int | bytes, path: Path) -> Iterator[int]:
    """A TensorShapeProto: field 2, repeated, holds a message whose field 1 is a size."""
    for field, value in fields(message if isinstance(message, bytes) else b"", path):
        if field == 2 and isinstance(value, bytes):
            yield _number(dict(fields(value, path)), 1)


def _check_places(index: Path, files: list[UntrustedFile], variables: dict[str, Variable]) -> None:
    """Every variable within its data file, none over another."""
    ends = dict.fromkeys(range(len(files)), 0)
    for name, variable in sorted(variables.items(), key=lambda item: (item[1].shard, item[1].begin)):
        if variable.shard not in ends:
            raise DataError(f"{index}: {shown(name)} lies in data file {variable.shard} of {len(files)}")
        if variable.begin < ends[variable.shard]:
            raise DataError(f"{index}: {shown(name)} overlaps the variable before it")
        ends[variable.shard] = variable.begin + variable.size
    for shard, end in ends.items():
        if end > files[shard].size:
            raise DataError(f"{files[shard].path} is cut short: {files[shard].size:,} bytes instead of {end:,}")
