"""Files -> documents, one after another with bounded memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from bertsmith.config import did_you_mean
from bertsmith.data import formats
from bertsmith.data.text_files import SUFFIXES, OpenFile, missing_path_error, printable, read_error, text_blocks
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
SEPARATORS = {"blank": formats.BLANK, "line": formats.LINE, "file": formats.NEVER}


@dataclass(frozen=True)
class ReadOptions:
    """How files are read. `auto` decides by the extension, and by the first line for WikiExtractor."""

    format: CorpusFormat = "auto"
    field: str = "text"  # column or key of the document in jsonl, csv, tsv and parquet
    encoding: str = "utf-8"
    errors: Errors = "strict"  # for bytes that are invalid in the encoding
    max_characters: int = 8 * 2**20  # of a document; a longer one is split into several

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
            raise ConfigError(f"encoding={self.encoding} is not an encoding of Python") from None
        except UnicodeError:
            pass  # a known encoding in which these bytes are invalid


class Corpus:
    """The documents of files and folders. It can be iterated repeatedly; the counts are those of the last iteration."""

    pairs: Any = None  # options of parallel text, whose documents have two lines: see `parallel.PairOptions`

    def __init__(self, paths: Sequence[str | os.PathLike[str]], options: ReadOptions | None = None) -> None:
        self.options = options or ReadOptions()
        self.files = find_files(paths)
        self.split_documents = 0  # documents of more than `max_characters`
        self._sizes = [_size(path) for path in self.files]
        self.bytes_total = sum(self._sizes)  # on disk, compressed where the files are
        self._finished = 0
        self._open: OpenFile | formats.ParquetColumn | None = None

    @property
    def bytes_read(self) -> int:
        """Bytes of `bytes_total` read so far."""
        return self._finished + (self._open.position if self._open else 0)

    def __iter__(self) -> Iterator[Document]:
        self.split_documents = self._finished = 0
        for path, size in zip(self.files, self._sizes, strict=True):
            name = printable(path)
            for line, text, part, title in self._read(path, name):
                self.split_documents += part == 1
                yield Document(text, f"{name}:{line}", title)
            self._open = None
            self._finished += size

    def _read(self, path: Path, name: str) -> Iterator[formats.Piece]:
        options = self.options
        format = options.format if options.format != "auto" else format_by_extension(path)
        if format == "parquet":
            with closing(formats.ParquetColumn(path, options.field, errors=options.errors)) as column:
                self._open = column
                yield from column.rows(options.max_characters)
            return
        with closing(OpenFile(path)) as file:
            self._open = file
            blocks = text_blocks(file, encoding=options.encoding, errors=options.errors)
            if format == "auto":
                first = next(blocks, "")
                format = "wiki" if first.lstrip().startswith("<doc id=") else "blank"
                blocks = chain([first], blocks)
            yield from self._pieces(blocks, format, name)

    def _pieces(self, blocks: Iterable[str], format: CorpusFormat, name: str) -> Iterator[formats.Piece]:
        field, max_characters = self.options.field, self.options.max_characters
        if format == "wiki":
            return formats.articles(blocks, max_characters, name=name)
        if format == "jsonl":
            return formats.json_lines(blocks, field, max_characters, name=name)
        if format in ("csv", "tsv"):
            return formats.table(blocks, field, max_characters, name=name, tabs=format == "tsv")
        return formats.split_at(blocks, SEPARATORS[format], max_characters)


def empty_corpus_error(corpus: Corpus) -> DataError:
    """The error of a caller that received no document: a corpus is known to be empty only after reading it."""
    if not corpus.files:
        return DataError("no text in the data: every document is empty")
    names = ", ".join(map(printable, corpus.files[:3])) + (" …" if len(corpus.files) > 3 else "")
    return DataError(f"no text in {names} ({len(corpus.files)} files, {corpus.bytes_total:,} bytes)")


def find_files(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files of paths, folders (recursively, without hidden ones) and glob patterns, each once, in order."""
    files: dict[str, Path] = {}
    for given in paths:
        for path in _files_of(Path(given)):
            files.setdefault(os.path.realpath(path), path)
    if not files:
        raise DataError(f"no files in {', '.join(map(printable, paths)) or 'an empty list of paths'}")
    return list(files.values())


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if path.is_dir():
        if any(path.glob("train-*.shard")):
            raise DataError(
                f"{printable(path)} is a shard set, not text: it can be used as it is, or pass its text files"
            )
        return _files_below(path)
    if path.exists():
        raise DataError(f"{printable(path)} is neither a file nor a folder")
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise DataError(f"no file matches {printable(path)}")
        return [file for match in matches for file in _files_of(Path(match))]
    raise missing_path_error(path)


def _files_below(folder: Path) -> list[Path]:
    """Follows links to folders, but enters no folder twice, because links can form a cycle."""
    files: list[Path] = []
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=_raise):
        entered.add(os.path.realpath(parent))
        visible = [name for name in folders if not name.startswith(".")]
        folders[:] = [name for name in visible if os.path.realpath(os.path.join(parent, name)) not in entered]
        files += [Path(parent, name) for name in names if not name.startswith(".")]
    return sorted(files)


def _raise(error: OSError) -> None:
    raise read_error(error.filename, error)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise read_error(path, error) from None


def format_by_extension(path: Path) -> CorpusFormat:
    """The format of the file's name; auto for plain text."""
    plain = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path
    return BY_EXTENSION.get(plain.suffix.lower(), "auto")
