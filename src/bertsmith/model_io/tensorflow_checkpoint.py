"""Google's checkpoints (bert: bert_model.ckpt.index and .data-…) without TensorFlow, under transformers' names.

The index is LevelDB's sorted table (tensorflow: core/lib/io/table_format.txt): blocks of prefix-compressed keys, each
followed by one byte (0: not compressed) and a masked CRC-32C; a block that lists the blocks; a footer of 48 bytes. It
maps "" -> BundleHeaderProto and variable -> BundleEntryProto (tensorflow: tensor_bundle.proto). A dense kernel is
stored [in, out] and is transposed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.errors import DataError
from bertsmith.model_io.safetensors_files import MAX_DIMENSIONS, TYPES, WIDTHS, Entry, as_bytes
from bertsmith.model_io.untrusted_files import MEBIBYTE, Closing, UntrustedFile, shown

MAX_INDEX_BYTES = 16 * MEBIBYTE
MAX_SHARDS = 1000
KINDS = {1: "F32", 2: "F64", 3: "I32", 9: "I64", 14: "BF16", 19: "F16"}  # tensorflow: types.proto
# Variables of the optimizer and its schedule
TRAINING = re.compile(
    r"(global_step|beta[12]_power|loss_scale|(good|bad)_steps)$|.*/(adam_[mv]|Adam(_1)?|lamb_[mv]|LAMB(_1)?)$"
)
OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # in checkpoints of TensorFlow 2
FOOTER = 48
MAGIC = bytes.fromhex("57fb808b247547db")
MAX_KEYS = 20_000
MAX_KEY_BYTES = 512
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # the wire types of protocol buffers
POLYNOMIAL = 0x82F63B78  # bits reversed
LANES = 1 << 14
MASK_DELTA = 0xA282EAD8
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Variable:
    """One entry of the index: data file, offset and size of a variable."""

    kind: str
    shape: tuple[int, ...]
    shard: int
    begin: int
    size: int
    checksum: int  # masked CRC-32C of its bytes


class TensorFlowCheckpoint(Closing):
    """The variables of a checkpoint under transformers' names; read and checked one by one."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.index = folder / f"{prefix}.index"
        with UntrustedFile(folder, self.index.name, max_bytes=MAX_INDEX_BYTES) as file:
            shards, variables = _read_index(file)
        with ExitStack() as stack:
            names = [f"{prefix}.data-{shard:05d}-of-{shards:05d}" for shard in range(shards)]
            self.files = [stack.enter_context(UntrustedFile(folder, name)) for name in names]
            _check_offsets(self.index, self.files, variables)
            self._open = stack.pop_all()
        self.variables = {transformers_name(name): (name, variable) for name, variable in variables.items()}
        if len(self.variables) < len(variables):
            raise DataError(f"{self.index}: two variables have the same weight name")
        self.entries = {
            theirs: Entry(variable.kind, variable.shape[::-1] if _is_kernel(name) else variable.shape, 0, variable.size)
            for theirs, (name, variable) in self.variables.items()
        }

    def path(self, name: str) -> Path:
        """The file that holds a weight."""
        return self.files[self.variables[name][1].shard].path

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a weight into a tensor of its shape."""
        google, variable = self.variables[name]
        file = self.files[variable.shard]
        if variable.kind not in TYPES:
            raise DataError(f"{file.path}: {shown(google)} is of type {variable.kind}, which is not a weight")
        found = torch.empty(variable.shape, dtype=TYPES[variable.kind])
        memory = as_bytes(found)
        if found.numel():
            file.fill(memory, variable.begin)
        pieces = (memory[offset : offset + 8 * MEBIBYTE] for offset in range(0, len(memory), 8 * MEBIBYTE))
        if mask_crc(crc32c(pieces)) != variable.checksum:
            raise DataError(f"{file.path} is damaged: {shown(google)} does not match its checksum")
        target.copy_(found.T if _is_kernel(google) else found)

    def equal(self, first: str, second: str) -> bool:
        """Whether two weights are equal, by their checksums."""
        one, other = self.variables[first][1], self.variables[second][1]
        return (one.shape, one.kind, one.checksum) == (other.shape, other.kind, other.checksum)

    def close(self) -> None:
        self._open.close()


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
    header = dict(proto_fields(table.pop(b"", b""), file.path))
    shards = header.get(1, 0)
    if not isinstance(shards, int) or not 0 < shards <= MAX_SHARDS or header.get(2, 0) != 0:
        raise DataError(f"{file.path}: {shown(shards)} data files, or not little-endian: not a supported checkpoint")
    if OBJECTS in table:
        raise DataError(f"{file.path} is a TensorFlow 2 checkpoint; bertsmith imports those of TensorFlow 1")
    named = {key.decode("utf-8", "backslashreplace"): value for key, value in table.items()}
    return shards, {
        name: _variable(value, name, file.path) for name, value in named.items() if not TRAINING.match(name)
    }


def _variable(message: bytes, name: str, path: Path) -> Variable:
    """A BundleEntryProto: 1 type, 2 shape, 3 data file, 4 offset, 5 size, 6 checksum, 7 slices."""
    found: dict[int, int | bytes] = dict(proto_fields(message, path))
    if 7 in found:
        raise DataError(f"{path}: {shown(name)} is stored in slices, which is not supported")
    kind = KINDS.get(_number(found, 1))
    shape = tuple(_sizes(found.get(2, b""), path))
    if kind is None or len(shape) > MAX_DIMENSIONS:
        raise DataError(f"{path}: {shown(name)} has type {_number(found, 1)} and {len(shape)} dimensions: not a weight")
    variable = Variable(kind, shape, *(_number(found, field) for field in (3, 4, 5, 6)))
    if math.prod(shape) * WIDTHS[kind] != variable.size:
        raise DataError(f"{path}: {shown(name)} of shape {shown(shape)} and type {kind} has {variable.size:,} bytes")
    return variable


def _number(found: dict[int, int | bytes], field: int) -> int:
    value = found.get(field, 0)
    return value if isinstance(value, int) else -1


def _sizes(message: int | bytes, path: Path) -> Iterator[int]:
    """A TensorShapeProto: field 2, repeated, holds a message whose field 1 is a size."""
    for field, value in proto_fields(message if isinstance(message, bytes) else b"", path):
        if field == 2 and isinstance(value, bytes):
            yield _number(dict(proto_fields(value, path)), 1)


def _check_offsets(index: Path, files: list[UntrustedFile], variables: dict[str, Variable]) -> None:
    """Every variable is inside its data file, and none overlaps another."""
    ends = dict.fromkeys(range(len(files)), 0)
    for name, variable in sorted(variables.items(), key=lambda item: (item[1].shard, item[1].begin)):
        if variable.shard not in ends:
            raise DataError(f"{index}: {shown(name)} is in data file {variable.shard} of {len(files)}")
        if variable.begin < ends[variable.shard]:
            raise DataError(f"{index}: {shown(name)} overlaps the variable before it")
        ends[variable.shard] = variable.begin + variable.size
    for shard, end in ends.items():
        if end > files[shard].size:
            raise DataError(f"{files[shard].path} is truncated: {files[shard].size:,} bytes instead of {end:,}")


def read_table(file: UntrustedFile) -> dict[bytes, bytes]:
    """Every key and value, in order; every block checked."""
    if file.size < FOOTER:
        raise DataError(f"{file.path} is truncated: {file.size} bytes are not the index of a TensorFlow checkpoint")
    footer = file.read(file.size - FOOTER, FOOTER)
    if footer[-len(MAGIC) :] != MAGIC:
        raise DataError(
            f"{file.path} is not the index of a TensorFlow checkpoint, or is truncated: its last bytes differ"
        )
    handle = Cursor(footer, file.path)
    meta, blocks = (_block(file, handle.varint(), handle.varint()) for _ in range(2))
    if any(_pairs(meta, file.path)) or any(footer[handle.offset : -len(MAGIC)]):
        raise DataError(f"{file.path} is damaged: it has unexpected bytes")
    found: dict[bytes, bytes] = {}
    for _, handle_bytes in _pairs(blocks, file.path):
        inner = Cursor(handle_bytes, file.path)
        for key, value in _pairs(_block(file, inner.varint(), inner.varint()), file.path):
            if found and key <= next(reversed(found)):
                raise DataError(f"{file.path}: the key {shown(key)} is out of order")
            found[key] = value
            if len(found) > MAX_KEYS:
                raise DataError(f"{file.path} has more than {MAX_KEYS:,} keys")
    return found


def proto_fields(message: bytes, path: Path) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: number and value."""
    cursor = Cursor(message, path)
    while cursor.offset < len(message):
        tag = cursor.varint()
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            yield number, cursor.varint()
        elif wire == BYTES:
            yield number, cursor.take(cursor.varint())
        elif wire in (FIXED32, FIXED64):
            yield number, int.from_bytes(cursor.take(4 if wire == FIXED32 else 8), "little")
        else:
            raise DataError(f"{path} is damaged: a field of wire type {wire}")


class Cursor:
    """Reads bytes in order, with bounds checks."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.offset = data, path, 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > len(self.data) - self.offset:
            raise DataError(f"{self.path} is damaged: {count:,} bytes expected, {len(self.data)} present")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def varint(self) -> int:
        """An integer of seven bits per byte."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte == 0 and shift:
                break  # not the shortest encoding
            if byte < 0x80:
                return value
        raise DataError(f"{self.path} is damaged: an unterminated integer")


def _block(file: UntrustedFile, begin: int, size: int) -> bytes:
    if begin + size + 5 > file.size:
        raise DataError(f"{file.path} is damaged: a block at {begin:,} of {size:,} bytes is outside the file")
    data = file.read(begin, size + 5)
    if mask_crc(crc32c([data[:-4]])) != int.from_bytes(data[-4:], "little"):
        raise DataError(f"{file.path} is damaged: the block at byte {begin:,} does not match its checksum")
    if data[size]:
        raise DataError(f"{file.path}: compressed blocks are not supported")
    return data[:size]


def _pairs(block: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a block; restart points for binary search follow and are ignored."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise DataError(f"{path} is damaged: a block of {len(block)} bytes with {restarts:,} restarts")
    cursor, key = Cursor(block[:end], path), b""
    while cursor.offset < end:
        shared, own, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + own > MAX_KEY_BYTES:
            raise DataError(f"{path} is damaged: a key of {shared:,} + {own:,} bytes after one of {len(key):,}")
        key = key[:shared] + cursor.take(own)
        yield key, cursor.take(size)


def _byte_table() -> Words:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


TABLE = _byte_table()
PLAIN_TABLE = TABLE.tolist()


def crc32c(pieces: Iterable[bytes | memoryview]) -> int:
    """CRC-32C (Castagnoli) of the concatenated pieces: numpy over many lanes, about 0.2 GB/s on one core."""
    state = 0xFFFFFFFF
    for piece in pieces:
        words = np.frombuffer(piece, "<u4", len(piece) // (4 * LANES) * LANES)
        if len(words):
            shifted = _apply(_zero_bytes(words.nbytes), np.array([state], np.uint32))
            state = int(shifted[0]) ^ _many_lanes(words.reshape(LANES, -1))
        for byte in piece[words.nbytes :]:
            state = PLAIN_TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def mask_crc(checksum: int) -> int:
    """The checksum as LevelDB and TensorFlow store it."""
    return (((checksum >> 15) | (checksum << 17)) + MASK_DELTA) & 0xFFFFFFFF


def _many_lanes(words: Words) -> int:
    """The register after all rows [lanes, length] from 0: each row separately, then rows joined in pairs."""
    states = np.zeros(LANES, np.uint32)
    for column in np.ascontiguousarray(words.T):
        states ^= column
        states = LOW_HALF.take(states & np.uint32(0xFFFF)) ^ HIGH_HALF.take(states >> np.uint32(16))
    length = 4 * words.shape[1]
    while len(states) > 1:
        states = _apply(_zero_bytes(length), states[0::2]) ^ states[1::2]
        length *= 2
    return int(states[0])


@lru_cache(maxsize=256)
def _zero_bytes(count: int) -> Words:
    """The linear map of `count` zero bytes, as the images of the 32 bits, by repeated squaring."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    power = TABLE[bits & np.uint32(0xFF)] ^ (bits >> np.uint32(8))
    result = bits
    while count:
        if count & 1:
            result = _apply(power, result)
        power = _apply(power, power)
        count >>= 1
    return result


def _apply(images: Words, states: Words) -> Words:
    """A linear map, given by the images of the 32 bits, on each state."""
    result = np.zeros_like(states)
    for bit in range(32):
        result ^= np.where(states >> np.uint32(bit) & np.uint32(1), images[bit], np.uint32(0))
    return result


# The map of four zero bytes for each half of a register: a word is xored in and both halves are looked up.
LOW_HALF = _apply(_zero_bytes(4), np.arange(1 << 16, dtype=np.uint32))
HIGH_HALF = _apply(_zero_bytes(4), np.arange(1 << 16, dtype=np.uint32) << np.uint32(16))
