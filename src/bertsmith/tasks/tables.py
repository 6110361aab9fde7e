"""Files -> rows by column: CSV, TSV, JSON lines, a JSON list, Parquet; text files also as .gz. Knows no task.

Every row remembers where it came from, so that whoever finds fault with it can say `file:line`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertsmith.config import did_you_mean
from bertsmith.errors import DataError
from bertsmith.tokenizers.pretokenization import replace_surrogates

Ragged = Literal["refuse", "skip"]  # what to do with a row that has another number of cells than the header
LONGEST_CELL = 2**26  # characters; beyond it a quote was never closed, or the file is something else
FORMATS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".txt": "\t"}
JSON_LINES, JSON_ANY, PARQUET = (".jsonl", ".ndjson"), ".json", ".parquet"
_BOM, _UTF_16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Table:
    """The rows of one file. Cells of text formats are strings; JSON and Parquet have values of their own, or None."""

    name: str  # the path as it can be printed
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    lines: list[int]  # where each row begins: line of the file, or number of the row in Parquet, from 1
    skipped: int = 0  # rows that were left out as ragged

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, row: int) -> str:
        """`file:line` of a row, counted from 0."""
        return f"{self.name}:{self.lines[row]}"

    def has(self, column: str) -> bool:
        """Whether there is such a column."""
        return column in self.columns

    def place(self, column: str, *, setting: str = "") -> int:
        """Where a column stands. One that is missing or stands twice is an error that shows what is there."""
        if self.columns.count(column) == 1:
            return self.columns.index(column)
        advice = f"; name it with {setting}=COLUMN" if setting else ""
        if column in self.columns:
            raise DataError(f"{self.name}: two columns are called {column!r}: rename one{advice}")
        near = did_you_mean(column, self.columns)
        raise DataError(f"{self.name}: no column {column!r}, only {listed(self.columns)}{near}{advice}")

    def column(self, name: str, *, setting: str = "") -> list[Any]:
        """The cells of a column, from the first row to the last."""
        place = self.place(name, setting=setting)
        return [row[place] for row in self.rows]


def read_table(
    path: str | Path,
    *,
    header: bool = True,
    columns: Sequence[str] = (),
    quoted: bool | None = None,
    ragged: Ragged = "refuse",
) -> Table:
    """The table in a file; its extension says which format it has.

    `columns`: names for a file without a header line; with `header=False` alone they are column1, column2, ….
    `quoted`: whether quotes enclose cells; unless it is said, they do in .csv and are mere characters elsewhere.
    """
    path = Path(path)
    name = shown(path)
    kind = _kind(path)
    if kind == PARQUET:
        return _something(_parquet(path, name))
    text = _text(path, name)
    if kind in JSON_LINES or kind == JSON_ANY:
        is_list = kind == JSON_ANY and text.lstrip()[:1] == "["
        items = _json_list(text, name) if is_list else _json_lines(text, name)
        return _something(_objects(items, name, mend="\\ud" in text or "\\uD" in text))
    separator = FORMATS[kind]
    if kind == ".csv" and header and ";" in (first := text.partition("\n")[0]) and "," not in first:
        separator = ";"  # as spreadsheets write it where the comma is the decimal point
    if quoted if quoted is not None else kind == ".csv":
        cells = _quoted(text, separator, name)
    else:
        cells = _plain(text, separator)
    return _something(_table(cells, name, header=header and not columns, columns=columns, ragged=ragged))


def shown(path: str | os.PathLike[str]) -> str:
    """A path as it can be printed: names that are not UTF-8 exist."""
    return os.fsencode(path).decode("utf-8", "replace")


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message, cut short where there are too many."""
    return ", ".join(name[:40] or "''" for name in names[:most]) + (" …" if len(names) > most else "") or "nothing"


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    kind = path.with_suffix("").suffix.lower() if suffix == ".gz" else suffix
    known = (*FORMATS, *JSON_LINES, JSON_ANY, *((PARQUET,) if suffix != ".gz" else ()))
    if kind not in known:
        raise DataError(
            f"{shown(path)}: {suffix or 'a name without extension'} is no table that can be read: "
            f"it must end in {', '.join(known)}"
        )
    return kind


def _text(path: Path, name: str) -> str:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except FileNotFoundError:
        there = os.listdir(path.parent) if path.parent.is_dir() else []
        raise DataError(f"{name} does not exist{did_you_mean(path.name, there)}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not gzip data that can be read ({error}): fetch it again") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None
    data = data.removeprefix(_BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        looks = "it looks like UTF-16: " if data.startswith(_UTF_16) else ""
        raise DataError(
            f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8: {looks}save the file as UTF-8"
        ) from None


def _something(table: Table) -> Table:
    if not table.rows:
        raise DataError(f"{table.name} has no rows: the file is empty{' but for its header' if table.columns else ''}")
    return table


# --- text with separators ------------------------------------------------------------------------------------------


def _plain(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Lines cut at every separator: a quote is a character, and no cell holds a line end."""
    text = text.replace("\r\n", "\n")
    lines = (text if "\n" in text else text.replace("\r", "\n")).split("\n")
    return ((number, line.split(separator)) for number, line in enumerate(lines, start=1) if line)


def _quoted(text: str, separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(LONGEST_CELL, csv.field_size_limit()))  # one for the process; 128 KiB at first
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{name}:{line}: not CSV: {error}; where quotes are mere characters, say quoted=false"
            ) from None
        if row:
            yield line, row


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
            whose = "the header has" if header else "there are to be"
            raise DataError(
                f"{name}:{line}: {len(row)} cells, but {whose} {len(names)} ({listed(names)}): "
                "mend the row, or say with quoted=true or quoted=false whether quotes enclose cells"
            )
    return Table(name, names, rows, lines, skipped)


# --- JSON and Parquet ----------------------------------------------------------------------------------------------


def _json_lines(text: str, name: str) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line and not line.isspace():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{name}:{number}: not JSON: {error.msg} at column {error.colno}") from None
            except (ValueError, RecursionError) as error:
                raise DataError(f"{name}:{number}: not JSON that can be read: {error}") from None


def _json_list(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """The items of one JSON list with the lines where they begin."""
    blank, decoder = re.compile(r"\s*"), json.JSONDecoder()

    def skip(place: int) -> int:
        found = blank.match(text, place)
        assert found
        return found.end()

    place, line, before = skip(skip(0) + 1), 1, 0
    while text[place : place + 1] != "]":
        line += text.count("\n", before, place)
        before = place
        try:
            item, place = decoder.raw_decode(text, place)
            place = skip(place)
            if text[place : place + 1] not in (",", "]"):
                raise json.JSONDecodeError("expecting ',' or ']'", text, place)
        except json.JSONDecodeError as error:
            raise DataError(f"{name}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: not JSON that can be read: {error}") from None
        yield line, item
        place = skip(place + 1) if text[place] == "," else place


def _objects(items: Iterator[tuple[int, Any]], name: str, *, mend: bool) -> Table:
    """One object for each row; the columns are all keys that occur, and a key that a row lacks is None there."""
    found: list[dict[str, Any]] = []
    lines: list[int] = []
    keys: dict[str, None] = {}
    for line, item in items:
        if not isinstance(item, dict):
            raise DataError(f"{name}:{line}: a JSON object is needed, found {type(item).__name__}")
        keys.update(dict.fromkeys(item))
        found.append(item)
        lines.append(line)
    rows = [tuple(_mended(item.get(key)) if mend else item.get(key) for key in keys) for item in found]
    return Table(name, tuple(keys), rows, lines)


def _mended(value: Any) -> Any:
    """A JSON value without lone surrogates, which `\\ud800` can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {key: _mended(item) for key, item in value.items()}
    return value


def _parquet(path: Path, name: str) -> Table:
    import pyarrow.parquet  # here, because it takes long to import

    if not path.exists():
        raise DataError(f"{name} does not exist")
    try:
        table = pyarrow.parquet.read_table(path)
        columns = [column.to_pylist() for column in table.columns]
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name} is not Parquet that can be read: {reason}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: a cell is not UTF-8 ({error.reason}): write the file again") from None
    rows = list(zip(*columns, strict=True))
    return Table(name, tuple(table.column_names), rows, list(range(1, len(rows) + 1)))
