"""Safetensors files: headers are checked before anything is allocated, tensors are read one by one.

The format: 8 bytes for the length of the header, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors
without gaps. `WeightFiles` joins the files that an index lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import DataError
from bertsmith.model_io.untrusted_files import Closing, UntrustedFile, exists, parse_object, read_json, shown

MAX_HEADER_BYTES = 16_000_000  # the format allows 100 MB, which is a million tensors; BERT large has 40 kB
MAX_TENSORS = 20_000
MAX_DIMENSIONS = 8
MAX_NAME_LENGTH = 512
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_FILES = 1000
METADATA = "__metadata__"
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
NAMES = {kind: name for name, kind in TYPES.items()}
WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
WIDTHS |= dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1)


@dataclass(frozen=True, slots=True)
class Entry:
    """Type, shape and byte range of one tensor."""

    kind: str  # in the header: F32, BF16, I64, ...
    shape: tuple[int, ...]
    begin: int  # in bytes from the start of the file
    end: int


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU: no copy."""
    flat: memoryview = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    return flat


def read_entries(file: UntrustedFile) -> dict[str, Entry]:
    """The entries of a header in file order, all checked against the size of the file."""
    header, begin = _header(file)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DataError(f"{file.path}: {METADATA} must map names to strings")
    if len(header) > MAX_TENSORS:
        raise DataError(f"{file.path} has {len(header):,} tensors: at most {MAX_TENSORS:,} are supported")
    entries = {name: _entry(file.path, name, claim, begin) for name, claim in header.items()}
    return _check_layout(file, entries, begin)


def _header(file: UntrustedFile) -> tuple[dict[str, Any], int]:
    """The header and the offset of its end."""
    if file.size < 8:
        raise DataError(f"{file.path} is truncated: {file.size} bytes are not a safetensors file")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise DataError(f"{file.path} is not a supported safetensors file: its header has {length:,} bytes")
    if length > file.size - 8:
        raise DataError(f"{file.path} is truncated: it has {file.size:,} bytes, and its header alone {length:,}")
    data = file.read(8, length)
    if data[:1] != b"{":
        raise DataError(f"{file.path} is not a safetensors file: its header does not start with a brace")
    return parse_object(data, file.path, what=": the header"), 8 + length


def _entry(path: Path, name: str, claim: Any, start: int) -> Entry:
    where = f"{path}: {shown(name)}"
    if len(name) > MAX_NAME_LENGTH:
        raise DataError(f"{where}: the name has {len(name):,} characters")
    if not isinstance(claim, dict) or set(claim) != {"dtype", "shape", "data_offsets"}:
        raise DataError(f"{where} must have dtype, shape and data_offsets, not {shown(claim)}")
    kind, shape, offsets = claim["dtype"], claim["shape"], claim["data_offsets"]
    if not isinstance(kind, str) or kind not in WIDTHS:
        raise DataError(f"{where} is of type {shown(kind)}, which safetensors does not have")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise DataError(f"{where} has the invalid shape {shown(shape)}")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise DataError(f"{where} has the invalid data_offsets {shown(offsets)}")
    begin, end = offsets
    if end - begin != math.prod(shape) * WIDTHS[kind]:
        raise DataError(f"{where} of shape {shown(shape)} and type {kind} does not match data_offsets {shown(offsets)}")
    return Entry(kind, tuple(shape), start + begin, start + end)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_layout(file: UntrustedFile, entries: dict[str, Entry], start: int) -> dict[str, Entry]:
    """The entries in file order; they must cover the file without gaps and overlaps."""
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    offset = start
    for name, entry in ordered.items():
        if entry.begin != offset:
            problem = "a gap before" if entry.begin > offset else "an overlap at"
            raise DataError(f"{file.path}: {problem} {shown(name)}: it starts at {entry.begin:,}, not at {offset:,}")
        offset = entry.end
    if offset != file.size:
        problem = "is truncated" if offset > file.size else "has bytes after its last tensor"
        raise DataError(f"{file.path} {problem}: {file.size:,} bytes instead of {offset:,}")
    return ordered


def file_chunks(tensors: Mapping[str, torch.Tensor]) -> Iterator[memoryview]:
    """The bytes of a safetensors file, tensors sorted by name: equal tensors give equal bytes."""
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to 8 bytes
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for name in sorted(tensors):
        if tensors[name].numel():
            yield as_bytes(tensors[name].detach().cpu().contiguous())


class WeightFiles(Closing):
    """Every tensor of a folder by name, over all its files: headers are checked, `fill` reads one tensor."""

    def __init__(self, folder: Path, names: list[str], *, index: dict[str, str] | None = None) -> None:
        self.files: dict[str, UntrustedFile] = {}
        self.entries: dict[str, Entry] = {}
        with ExitStack() as stack:
            for file_name in names:
                file = stack.enter_context(UntrustedFile(folder, file_name))
                for name, entry in read_entries(file).items():
                    if index is not None and index.get(name) != file_name:
                        raise DataError(f"{file.path} holds {shown(name)}, which {INDEX} does not list there")
                    if name in self.files:
                        other = self.files[name].path.name
                        raise DataError(f"{file.path} holds {shown(name)}, which is also in {other}")
                    self.files[name], self.entries[name] = file, entry
            for name, owner in (index or {}).items():
                if name not in self.files:
                    raise DataError(f"{folder / owner} lacks {shown(name)}, which {INDEX} lists there")
            self._open = stack.pop_all()

    @classmethod
    def of(cls, folder: Path) -> WeightFiles:
        """The weights of a model folder: model.safetensors, or the files of its index."""
        if exists(folder, WEIGHTS):
            return cls(folder, [WEIGHTS])
        index = _read_index(folder)
        return cls(folder, sorted(set(index.values())), index=index)

    def path(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self.files[name].path

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a tensor into one of the same shape and any floating-point type."""
        entry = self.entries[name]
        if entry.kind not in TYPES:
            known = ", ".join(TYPES)
            raise DataError(f"{self.path(name)}: {shown(name)} is of type {entry.kind}; supported types: {known}")
        kind = TYPES[entry.kind]
        direct = target.dtype == kind and target.is_contiguous() and target.device.type == "cpu"
        buffer = target if direct else torch.empty(entry.shape, dtype=kind)
        if buffer.numel():
            self.files[name].fill(as_bytes(buffer), entry.begin)
        if not direct:
            target.copy_(buffer)

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same bit for bit, compared piece by piece."""
        one, other = self.entries[first], self.entries[second]
        if (one.kind, one.shape) != (other.kind, other.shape):
            return False
        left = self.files[first].pieces(one.begin, one.end)
        right = self.files[second].pieces(other.begin, other.end)
        return all(first == second for first, second in zip(left, right, strict=True))

    def close(self) -> None:
        self._open.close()


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor -> file, from the index."""
    found = read_json(folder, INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(value, str) for value in found.values()):
        raise DataError(f"{folder / INDEX}: weight_map must map every tensor to a file")
    files = set(found.values())
    if len(files) > MAX_FILES:
        raise DataError(f"{folder / INDEX} lists {len(files):,} files: at most {MAX_FILES:,} are supported")
    wrong = sorted(name for name in files if not name.endswith(".safetensors"))
    if wrong:
        raise DataError(f"{folder / INDEX} lists {shown(wrong[0])}, which is not a safetensors file")
    return found
