"""Table files: CSV, TSV, JSON lines, a JSON list, Parquet; text formats also as .gz. Each row keeps its `file:line`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from bertsmith.config import did_you_mean
from bertsmith.data.text_files import missing_path_error, printable
from bertsmith.errors import ConfigError, DataError, DataWarning
from bertsmith.tokenizers.pretokenization import replace_surrogates

Ragged = Literal["error", "skip"]  # for a row whose number of cells differs from the header
HeaderTest = Callable[[list[list[str]]], bool]  # from the first rows of a file: whether the first one is a header
SAMPLE = 1000  # rows for a `HeaderTest`
MAX_CELL = 2**26  # characters; a longer cell means an unclosed quote or another format
FORMATS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t"}
JSON_LINES, JSON_ANY, PARQUET = (".jsonl", ".ndjson"), ".json", ".parquet"
MAX_NAME, MAX_NAME_WORDS, SENTENCE_ENDS = 40, 5, (".", "!", "?", "。", "…")  # of the name of a column
_BOM, _UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Table:
    """The rows of one file. Cells of text formats are strings; those of JSON and Parquet have their own types."""

    name: str  # printable path
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    lines: list[int]  # first line of each row, or its number in Parquet, from 1
    skipped: int = 0  # ragged rows that were skipped

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, row: int) -> str:
        """`file:line` of the row with this index."""
        return f"{self.name}:{self.lines[row]}"

    def has(self, column: str) -> bool:
        """Whether the table has a column."""
        return column in self.columns

    def column_index(self, column: str, *, setting: str = "") -> int:
        """The index of a column; a DataError that lists the columns if it is missing or not unique."""
        if self.columns.count(column) == 1:
            return self.columns.index(column)
        advice = f"set task.{setting}=COLUMN" if setting else ""
        if column in self.columns:
            advice = f", or {advice}" if advice else ""
            raise DataError(f"{self.name}: two columns are called {column!r}: rename one{advice}")
        near = did_you_mean(column, self.columns, f"task.{setting}=" if setting else "")
        if re.fullmatch(r"column\d+", column) and self.columns[0] != "column1":
            near, advice = "", "set task.header=false if line 1 is not a header"
        near = near or (f"; {advice}" if advice else "")
        raise DataError(f"{self.name}: no column {column!r} among {join_names(self.columns)}{near}")

    def column(self, name: str, *, setting: str = "") -> list[Any]:
        """The cells of a column."""
        index = self.column_index(name, setting=setting)
        return [row[index] for row in self.rows]


def read_table(
    path: str | Path,
    *,
    header: bool | HeaderTest = True,
    columns: Sequence[str] = (),
    quoted: bool | None = None,
    ragged: Ragged = "error",
    encoding: str = "",
) -> Table:
    """The table of a file; its extension names the format.

    `columns`: names for a file without a header; without a header and `columns` they are column1, column2, ….
    `quoted`: whether quotes enclose cells; by default only in .csv. `encoding`: of the text formats; empty: UTF-8.
    """
    path = Path(path)
    name = printable(path)
    kind = table_format(path)
    if kind == PARQUET:
        return _nonempty(_parquet(path, name))
    text = _text(path, name, encoding)
    if kind in JSON_LINES or kind == JSON_ANY:
        is_list = kind == JSON_ANY and text.lstrip()[:1] == "["
        items = _json_list(text, name) if is_list else _json_lines(text, name)
        return _nonempty(_objects(items, name, repair="\\ud" in text or "\\uD" in text))
    separator = FORMATS[kind]
    if kind == ".csv" and header and ";" in (first := text.partition("\n")[0]) and "," not in first:
        separator = ";"  # written by spreadsheets in locales with a decimal comma
    if quoted if quoted is not None else kind == ".csv":
        cells = _quoted(text, separator, name)
    else:
        cells = _plain(text, separator)
    sample = list(islice(cells, SAMPLE))
    named = header([row for _, row in sample]) if callable(header) and sample else bool(header)
    cells = chain(sample, cells)
    return _nonempty(_table(cells, name, header=named and not columns, columns=columns, ragged=ragged))


def has_header(
    path: Path, rows: list[list[str]], *, known: Set[str], text_columns: Set[int] = frozenset(), role: str = "text"
) -> bool:
    """Whether the first row of a csv, tsv or txt file names columns; an error where it may be either.

    A header has a known name and no cell that looks like data. `text_columns`: the numbers of columns that a file of
    texts and nothing else can have; a txt file with one column is then one text per line. `role`: for the advice.
    """
    first = [cell.strip() for cell in rows[0]]
    named = any(cell in known or cell.lower() in known for cell in first if cell)
    data = next((cell for column, cell in enumerate(first) if _is_data(cell, column, rows[1:])), None)
    where, shown = f"{printable(path)}:1", (data or first[0])[:40]
    if len(first) in text_columns:
        lines = len(first) == 1 and table_format(path) == ".txt"
        if lines or (data is not None and not named):
            if named or not lines:
                _note(f"{where}: {shown!r} is read as a text: set task.header=true if line 1 is a header")
            return False
        if not named:
            raise DataError(
                f"{where}: {shown!r} is a text or the name of a column: set task.header=false or task.header=true"
            )
    if named and rows[0] in rows[1:]:
        raise DataError(f"{printable(path)}: the header ({join_names(first)}) is repeated in a later line: remove it")
    if data is not None:
        longest = max(range(len(first)), key=lambda column: len(first[column])) + 1
        raise DataError(
            f"{where}: {shown!r} looks like data, not like the name of a column: set task.header=true if line 1 is a "
            "header, or task.header=false and the columns, which are then column1, column2, …, such as "
            f"task.{role}=column{longest}"
        )
    return True


def _is_data(cell: str, column: int, others: Sequence[Sequence[str]]) -> bool:
    """Whether a cell of the first row looks like data: a number, a sentence, or a value of other rows."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        sentence = len(cell) > MAX_NAME or len(cell.split()) > MAX_NAME_WORDS or cell.endswith(SENTENCE_ENDS)
        return sentence or (bool(cell) and any(cell == row[column].strip() for row in others if column < len(row)))


def note_blank_lines(table: Table) -> None:
    """Notes the blank lines of a file with one text per line, which have no row."""
    if blank := table.lines[-1] - len(table) - (table.columns[0] != "column1"):
        _note(f"{table.name}: {blank} blank line{'s are' if blank > 1 else ' is'} skipped")


def _note(text: str) -> None:
    warnings.warn(DataWarning(text), stacklevel=2)


def join_names(names: Sequence[str], most: int = 20) -> str:
    """Names for a message; only the first ones if there are many."""
    return ", ".join(name[:40] or "''" for name in names[:most]) + (" …" if len(names) > most else "") or "none"


def table_format(path: Path) -> str:
    """The extension that names the format, without .gz."""
    suffix = path.suffix.lower()
    kind = path.with_suffix("").suffix.lower() if suffix == ".gz" else suffix
    known = (*FORMATS, *JSON_LINES, JSON_ANY, *((PARQUET,) if suffix != ".gz" else ()))
    if kind not in known:
        what = suffix or "a file without extension"
        raise DataError(f"{printable(path)}: {what} is not a supported table format: use {', '.join(known)}")
    return kind


def _text(path: Path, name: str, encoding: str) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise missing_path_error(path) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not valid gzip data ({error}): download it again") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None
    return _decoded(data, name, encoding)


def read_whole(path: Path, name: str, encoding: str = "") -> str:
    """The text of a file that is not a table; `encoding` as for `read_table`."""
    try:
        return _decoded(path.read_bytes(), name, encoding)
    except FileNotFoundError:
        raise missing_path_error(path) from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None


def _decoded(data: bytes, name: str, encoding: str) -> str:
    """`encoding`: that of the task's settings; empty where the task has no such setting."""
    known = encoding or "utf-8"
    data = data.removeprefix(_BOM)
    try:
        return data.decode(known)
    except LookupError:
        raise ConfigError(f"task.encoding={encoding} is not an encoding of Python, such as cp949") from None
    except UnicodeDecodeError as error:
        newline = "\n".encode("utf-16-le") if known.lower().startswith("utf-16") else b"\n"
        line, byte = data[: error.start].count(newline) + 1, data[error.start]
        advice = (
            "set task.encoding=cp949, task.encoding=latin-1 or what it is" if encoding else "save the file as UTF-8"
        )
        if data.startswith(_UTF_16):
            advice = "set task.encoding=utf-16" if encoding else "it may be UTF-16: save the file as UTF-8"
        raise DataError(f"{name}:{line}: byte 0x{byte:02x} is not {known.upper()}: {advice}") from None
    except UnicodeError as error:  # of codecs such as idna, which name no byte
        raise DataError(f"{name} is not {known.upper()}: {error}") from None


def _nonempty(table: Table) -> Table:
    if not table.rows:
        raise DataError(f"{table.name} has no rows{' below its header' if table.columns else ': the file is empty'}")
    return table


def _plain(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Lines split at each separator; quotes are ordinary characters."""
    text = text.replace("\r\n", "\n")
    lines = (text if "\n" in text else text.replace("\r", "\n")).split("\n")
    return ((number, line.split(separator)) for number, line in enumerate(lines, start=1) if line)


def _quoted(text: str, separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(MAX_CELL, csv.field_size_limit()))  # a process-wide limit; 128 KiB by default
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        where = f"{name}:{line}"
        raise DataError(
            f"{where}: not CSV: {error}; if quotes are ordinary characters, set task.quoted=false"
        ) from None


def _table(
    cells: Iterator[tuple[int, list[str]]], name: str, *, header: bool, columns: Sequence[str], ragged: Ragged
) -> Table:
    names = tuple(columns)
    if header:
        _, first = next(cells, (0, []))
        names = tuple(cell.strip() for cell in first)
    rows, lines, skipped = [], [], 0
    for line, row in cells:
        names = names or tuple(f"column{number}" for number in range(1, len(row) + 1))
        if len(row) == len(names):
            rows.append(tuple(row))
            lines.append(line)
        elif ragged == "skip":
            skipped += 1
        else:
            expected = "the header has" if header else "expected"
            raise DataError(
                f"{name}:{line}: {len(row)} cells, but {expected} {len(names)} ({join_names(names)}): "
                "correct the row, or set task.quoted=true or task.quoted=false"
            )
    return Table(name, names, rows, lines, skipped)


def _json_lines(text: str, name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line and not line.isspace():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{name}:{number}: not JSON: {error.msg} at column {error.colno}") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}:{number}: invalid JSON: {error}") from None


def _json_list(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """The items of one JSON list with the line of each."""
    blank, decoder = re.compile(r"\s*"), json.JSONDecoder()

    def skip(position: int) -> int:
        blanks = blank.match(text, position)
        assert blanks
        return blanks.end()

    position, line, before = skip(skip(0) + 1), 1, 0
    while text[position : position + 1] != "]":
        line += text.count("\n", before, position)
        before = position
        try:
            item, position = decoder.raw_decode(text, position)
            position = skip(position)
            if text[position : position + 1] not in (",", "]"):
                raise json.JSONDecodeError("expecting ',' or ']'", text, position)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: invalid JSON: {error}") from None
        yield line, item
        position = skip(position + 1) if text[position] == "," else position


def _objects(items: Iterator[tuple[int, Any]], name: str, *, repair: bool) -> Table:
    """One object per row; the columns are all keys, and a missing key is None."""
    objects: list[dict[str, Any]] = []
    lines: list[int] = []
    keys: dict[str, None] = {}
    for line, item in items:
        if not isinstance(item, dict):
            raise DataError(f"{name}:{line}: expected a JSON object, found {type(item).__name__}")
        keys.update(dict.fromkeys(item))
        objects.append(item)
        lines.append(line)
    rows = [tuple(_without_surrogates(item.get(key)) if repair else item.get(key) for key in keys) for item in objects]
    return Table(name, tuple(keys), rows, lines)


def _without_surrogates(value: Any) -> Any:
    """A JSON value without lone surrogates, which `\\ud800` can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_surrogates(item) for key, item in value.items()}
    return value


def _parquet(path: Path, name: str) -> Table:
    import pyarrow.parquet  # slow to import

    if not path.exists():
        raise missing_path_error(path)
    try:
        table = pyarrow.parquet.read_table(path)
        columns = [column.to_pylist() for column in table.columns]
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name} is not a valid Parquet file: {reason}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: a cell is not UTF-8 ({error.reason}): correct the file") from None
    rows = list(zip(*columns, strict=True))
    return Table(name, tuple(table.column_names), rows, list(range(1, len(rows) + 1)))
