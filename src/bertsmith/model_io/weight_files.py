"""The weights of a folder, in one safetensors file or in several that an index lists, as one table of entries."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from bertsmith.errors import DataError
from bertsmith.model_io.foreign_files import exists, read_json, shown
from bertsmith.model_io.safetensors_file import Entry, SafetensorsFile

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_FILES = 1000


class WeightFiles:
    """Every tensor of a folder by name, whichever file holds it."""

    def __init__(self, folder: Path, names: list[str], *, index: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.owners: dict[str, SafetensorsFile] = {}
        with ExitStack() as stack:
            for name in names:
                file = SafetensorsFile(folder, name)
                stack.callback(file.close)
                self._add(file, index)
            for name, owner in (index or {}).items():
                if name not in self.owners:
                    raise DataError(f"{folder / owner} lacks {shown(name)}, which {INDEX} promises there")
            self._open = stack.pop_all()
        self.entries: dict[str, Entry] = {name: file.entries[name] for name, file in self.owners.items()}

    def _add(self, file: SafetensorsFile, index: dict[str, str] | None) -> None:
        for name in file.entries:
            if index is not None and index.get(name) != file.path.name:
                raise DataError(f"{file.path} holds {shown(name)}, which {INDEX} does not say")
            if name in self.owners:
                raise DataError(
                    f"{file.path} holds {shown(name)} once more: it is also in {self.owners[name].path.name}"
                )
            self.owners[name] = file

    @classmethod
    def of(cls, folder: Path) -> WeightFiles:
        """The weights of a model folder: model.safetensors, or else what its index lists."""
        if exists(folder, WEIGHTS):
            return cls(folder, [WEIGHTS])
        index = _read_index(folder)
        return cls(folder, sorted(set(index.values())), index=index)

    def path(self, name: str) -> Path:
        """The file in which a tensor lies."""
        return self.owners[name].path

    def fill(self, name: str, target: torch.Tensor) -> None:
        """Reads a tensor into one of its shape."""
        self.owners[name].fill(name, target)

    def equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same bit for bit, compared piece by piece."""
        one, other = self.entries[first], self.entries[second]
        if (one.kind, one.shape) != (other.kind, other.shape):
            return False
        left = self.owners[first].file.pieces(one.begin, one.end)
        right = self.owners[second].file.pieces(other.begin, other.end)
        return all(here == there for here, there in zip(left, right, strict=True))

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor -> file, as an index says it."""
    found = read_json(folder, INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(value, str) for value in found.values()):
        raise DataError(f"{folder / INDEX}: weight_map must say for every tensor in which file it is")
    files = set(found.values())
    if len(files) > MOST_FILES:
        raise DataError(f"{folder / INDEX} lists {len(files):,} files: more than {MOST_FILES:,} is no model of ours")
    wrong = sorted(name for name in files if not name.endswith(".safetensors"))
    if wrong:
        raise DataError(f"{folder / INDEX} lists {shown(wrong[0])}, which is no safetensors file")
    return found
