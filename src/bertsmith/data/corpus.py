"""Files -> documents, one after another with bounded memory: the front door of every corpus."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from bertsmith.config import did_you_mean
from bertsmith.data import formats
from bertsmith.data.text_files import SUFFIXES, OpenFile, shown, text_blocks, unreadable
from bertsmith.errors import ConfigError, DataError
from bertsmith.types import Document

CorpusFormat = Literal["auto", "blank", "line", "file", "wiki", "jsonl", "csv", "tsv", "parquet"]
Errors = Literal["strict", "replace", "ignore"]

BY_EXTENSION: dict[str, CorpusFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
SEPARATORS = {"blank": formats.BLANK, "line": formats.LINE, "file": formats.WHOLE}


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. `auto` goes by the extension, and by the first line for WikiExtractor's layout."""

    format: CorpusFormat = "auto"
    field: str = "text"  # column or key that holds the document, in jsonl, csv, tsv and parquet
    encoding: str = "utf-8"
    errors: Errors = "strict"  # what to do with bytes that are not of the encoding
    max_characters: int = 8 * 2**20  # characters; a longer document goes on as further documents

    def __post_init__(self) -> None:
        for name, kinds in (("format", CorpusFormat), ("errors", Errors)):
            value, known = getattr(self, name), get_args(kinds)
            if value not in known:
                raise ConfigError(f"{name}={value} must be one of {', '.join(known)}{did_you_mean(value, known)}")
        if self.max_characters < 1:
            raise ConfigError(f"max_characters={self.max_characters} must be at least 1 character")
        try:
            b"text".decode(self.encoding)
        except LookupError:
            raise ConfigError(f"encoding={self.encoding} is not an encoding that Python knows") from None
        except UnicodeError:
            pass  # known, and these four bytes are not of it


class Corpus:
    """The documents of some files and folders. Iterate it as often as needed; the counts are those of the last time."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], reading: ReadOptions | None = None) -> None:
        self.options = reading or ReadOptions()
        self.files = find_files(paths)
        self.split_documents = 0  # documents that were longer than `reading.max_characters`
        self._sizes = [_size(path) for path in self.files]
        self._finished = 0
        self._open: OpenFile | formats.ParquetColumn | None = None

    @property
    def bytes_total(self) -> int:
        """Bytes on disk, compressed where the files are."""
        return sum(self._sizes)

    @property
    def bytes_read(self) -> int:
        """How many of `bytes_total` are behind us."""
        return self._finished + (self._open.position if self._open else 0)

    def __iter__(self) -> Iterator[Document]:
        self.split_documents = self._finished = 0
        for path, size in zip(self.files, self._sizes, strict=True):
            name = shown(path)
            for line, text, part, title in self._read(path, name):
                self.split_documents += part == 1
                yield Document(text, f"{name}:{line}", title)
            self._open = None
            self._finished += size

    def _read(self, path: Path, name: str) -> Iterator[formats.Piece]:
        reading = self.options
        layout = reading.format if reading.format != "auto" else _by_extension(path)
        if layout == "parquet":
            with closing(formats.ParquetColumn(path, reading.field, errors=reading.errors)) as column:
                self._open = column
                yield from column.rows(reading.max_characters)
            return
        with closing(OpenFile(path)) as file:
            self._open = file
            blocks = text_blocks(file, encoding=reading.encoding, errors=reading.errors)
            if layout == "auto":
                first = next(blocks, "")
                layout = "wiki" if first.lstrip().startswith("<doc id=") else "blank"
                blocks = chain([first], blocks)
            yield from self._pieces(blocks, layout, name)

    def _pieces(self, blocks: Iterable[str], layout: CorpusFormat, name: str) -> Iterator[formats.Piece]:
        field, longest = self.options.field, self.options.max_characters
        if layout == "wiki":
            return formats.articles(blocks, longest, name=name)
        if layout == "jsonl":
            return formats.json_lines(blocks, field, longest, name=name)
        if layout in ("csv", "tsv"):
            return formats.table(blocks, field, longest, name=name, tabs=layout == "tsv")
        return formats.separated(blocks, SEPARATORS[layout], longest)


def empty_corpus_error(corpus: Corpus) -> DataError:
    """The error for a consumer that got nothing: an empty corpus is known only when it has been read."""
    names = ", ".join(map(shown, corpus.files[:3])) + (" …" if len(corpus.files) > 3 else "")
    return DataError(f"no text in {names} ({len(corpus.files)} files, {corpus.bytes_total:,} bytes)")


def find_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files that paths, folders (all below, but nothing hidden) and glob patterns name, each once, in order."""
    found: dict[str, Path] = {}
    for given in paths:
        for path in _files_of(Path(given)):
            found.setdefault(os.path.realpath(path), path)
    if not found:
        raise DataError(f"no files in {', '.join(map(shown, paths)) or 'an empty list of paths'}")
    return list(found.values())


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        return _files_below(path)
    if path.exists():
        raise DataError(f"{shown(path)} is neither a file nor a folder")
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise DataError(f"no file matches {shown(path)}")
        return [file for match in matches for file in _files_of(Path(match))]
    parent = path.parent
    if not parent.is_dir():
        raise DataError(f"{shown(path)} does not exist: there is no folder {shown(parent)}")
    near = did_you_mean(path.name, os.listdir(parent), "" if parent == Path() else f"{shown(parent)}/")
    raise DataError(f"{shown(path)} does not exist{near}")


def _files_below(folder: Path) -> list[Path]:
    """Links to folders are followed, but into no folder twice: links can lead round in a circle."""
    files: list[Path] = []
    entered: set[str] = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_refused):
        entered.add(os.path.realpath(place))
        unhidden = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in unhidden if os.path.realpath(os.path.join(place, name)) not in entered]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _refused(error: OSError) -> None:
    raise unreadable(error.filename, error)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from None


def _by_extension(path: Path) -> CorpusFormat:
    plain = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path
    return BY_EXTENSION.get(plain.suffix.lower(), "auto")
