"""Corpus formats: blocks of text, or rows of a table -> one `Piece` per document.

A document of more than `max_characters` becomes several pieces, so that memory is bounded however long a line or a
document is. Errors start with `{name}:{line}` or `{name}:{row}`.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bertsmith.config import did_you_mean
from bertsmith.data.sentences import split_long_text
from bertsmith.data.text_files import SURROGATE, printable
from bertsmith.errors import DataError

Piece = tuple[int, str, int, str]  # first line, text, number of the piece in its document, title

BLANK = re.compile(r"\n[^\S\n]*\n\s*")
LINE = re.compile(r"\n\s*")
NEVER = re.compile(r"\n(?!)")  # the file is one document
ARTICLE_END = re.compile(r"\n(?:</doc>\s+|(?=<doc id=))")
ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#\d{1,7});")
FIELD_OPTION = "another --field"  # what names the column or key of documents
LONGEST_RECORD = 2**26  # characters of a JSON line or a CSV field; longer ones are an error


def split_at(blocks: Iterable[str], separator: re.Pattern[str], max_characters: int) -> Iterator[Piece]:
    """Documents between separators; a separator must start with a newline."""
    rest, line, part = "", 1, 0
    for block in blocks:
        text, start = rest + block, 0
        for match in separator.finditer(text, max(rest.rfind("\n"), 0)):
            yield from cut(text[start : match.start()], line, part, max_characters)
            line += text.count("\n", start, match.end())
            start, part = match.end(), 0
        rest = text[start:]
        if len(rest) > max_characters:
            complete, kept = _complete_pieces(rest, max_characters)
            yield from _with_lines(rest, complete, line, part)
            line += rest.count("\n") - kept.count("\n")
            rest, part = kept, part + len(complete)
    yield from cut(rest, line, part, max_characters)


def cut(text: str, line: int, part: int, max_characters: int, title: str = "") -> list[Piece]:
    """The pieces of a document or of its end: usually one, none if there is only white space."""
    stripped = text.strip()
    if len(stripped) > max_characters:
        return list(_with_lines(text, split_long_text(text, max_characters), line, part, title))
    if not stripped:
        return []
    if text[0].isspace():
        line += text.count("\n", 0, text.index(stripped[0]))
    return [(line, stripped, part, title)]


def _with_lines(text: str, pieces: Iterable[tuple[int, str]], line: int, part: int, title: str = "") -> Iterator[Piece]:
    """(offset, piece) pairs of a text as pieces with their lines, numbered from `part`."""
    before = 0
    for number, (offset, piece) in enumerate(pieces, start=part):
        line += text.count("\n", before, offset)
        before = offset
        yield line, piece, number, title


def _complete_pieces(text: str, max_characters: int) -> tuple[list[tuple[int, str]], str]:
    """Of a document that continues: its complete pieces with their offsets, and the rest."""
    body = len(text.rstrip())
    pieces = list(split_long_text(text[:body], max_characters))
    if len(pieces) > 1:
        return pieces[:-1], text[pieces[-1][0] :]
    if len(text) <= 2 * max_characters:
        return [], text
    # of a long run of white space, only whether it contains a line end matters
    return pieces, "\n" if "\n" in text[body:] else " "


def articles(blocks: Iterable[str], max_characters: int, *, name: str) -> Iterator[Piece]:
    """WikiExtractor's `<doc id=… title="…">` blocks, with their titles; empty redirects are skipped."""
    title = ""
    for line, text, part, _ in split_at(chain(blocks, ["\n"]), ARTICLE_END, max_characters):
        if part == 0:
            head, _, text = text.partition("\n")
            if not (head.startswith("<doc id=") and head.endswith(">")):
                raise DataError(f'{name}:{line}: expected <doc id="…" title="…">, found {head[:40]!r}')
            title = head.partition(' title="')[2].rpartition('"')[0]
            line += 1
            if text == title:
                continue
            if text.startswith(title + "\n"):
                text, line = text[len(title) + 1 :], line + 1
            title = html.unescape(title)
        if "&" in text:
            text = ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
        yield from cut(text, line, part, max_characters, title)


def json_lines(blocks: Iterable[str], field: str, max_characters: int, *, name: str) -> Iterator[Piece]:
    """One JSON object per line; the document is its `field`."""
    for line, (text,) in json_fields(blocks, [field], name=name):
        if text is not None:
            yield from _in_row(text, line, max_characters)


def json_fields(
    blocks: Iterable[str], names: Sequence[str], *, name: str, option: str = FIELD_OPTION
) -> Iterator[tuple[int, list[str | None]]]:
    """The line of each JSON object, and its texts of these names; None for null. `option`: what names other keys."""
    for line, record, escaped in json_records(blocks, name=name):
        yield line, [_json_text(record, field, f"{name}:{line}", option, surrogates=escaped) for field in names]


def json_records(blocks: Iterable[str], *, name: str) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """The line of each JSON object, the object, and whether it has characters as numbers."""
    for line, row in lines_of(blocks, name):
        if not row or row.isspace():
            continue
        where = f"{name}:{line}"
        try:
            record = json.loads(row)
        except json.JSONDecodeError as error:
            raise DataError(f"{where}: not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: invalid JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected a JSON object, found {type(record).__name__}")
        yield line, record, "\\u" in row


def _json_text(record: dict[str, Any], field: str, where: str, option: str, *, surrogates: bool) -> str | None:
    if field not in record:
        raise missing_field_error(where, field, record, option)
    text = record[field]
    if text is None:
        return None
    if not isinstance(text, str):
        raise DataError(f"{where}: {field!r} must be a string, found {type(text).__name__}")
    if surrogates:
        text = SURROGATE.sub("\ufffd", text)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def table(blocks: Iterable[str], field: str, max_characters: int, *, name: str, tabs: bool) -> Iterator[Piece]:
    """CSV with a header, or TSV (`tabs`), which has no quoting and no line ends in fields."""
    header: list[str] = []
    for line, row in table_rows(blocks, name=name, tabs=tabs):
        if not header:
            header = [column.strip() for column in row]
            if field not in header:
                raise missing_field_error(name, field, header)
        else:
            yield from _in_row(row[header.index(field)], line, max_characters)


def table_rows(blocks: Iterable[str], *, name: str, tabs: bool) -> Iterator[tuple[int, list[str]]]:
    """The first line and the fields of each row; all have as many as the first."""
    csv.field_size_limit(max(LONGEST_RECORD, csv.field_size_limit()))  # global; 128 KiB by default
    lines = (f"{line}\n" for _, line in lines_of(blocks, name))
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(lines, strict=True)
    columns, line = -1, 1
    try:
        for row in reader:
            if columns < 0:
                columns = len(row)
                yield line, row
            elif row:
                if len(row) != columns:
                    raise DataError(f"{name}:{line}: {len(row)} fields, but the header has {columns}")
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{name}:{line}: not {'TSV' if tabs else 'CSV'}: {error}") from None


def _in_row(text: str, row: int, max_characters: int) -> list[Piece]:
    return [(row, piece, part, "") for _, piece, part, _ in cut(text, row, 0, max_characters)]


class ParquetColumn:
    """One text column of a Parquet file. `position` estimates the bytes read from the rows read."""

    def __init__(self, path: Path, field: str, *, errors: str = "strict") -> None:
        import pyarrow.parquet  # slow to import

        self.name, self.field, self.errors = printable(path), field, errors
        self.position = 0
        try:
            self._size = path.stat().st_size
            self._file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.name} is not a readable Parquet file: {_first_line(error)}") from None
        schema = self._file.schema_arrow
        if field not in schema.names:
            raise missing_field_error(self.name, field, schema.names)
        kind = schema.field(field).type
        if str(getattr(kind, "value_type", kind)) not in ("string", "large_string", "string_view"):
            raise DataError(f"{self.name}: {field!r} must be a column of strings, found {kind}")

    def close(self) -> None:
        self._file.close()

    def rows(self, max_characters: int) -> Iterator[Piece]:
        """Documents, with the row (from 1) in place of the line; nulls are skipped."""
        import pyarrow

        row, rows = 0, max(self._file.metadata.num_rows, 1)
        batches = self._file.iter_batches(batch_size=64, columns=[self.field], use_threads=False)
        try:
            for value in chain.from_iterable(
                batch.column(0).cast(pyarrow.large_binary()).to_pylist() for batch in batches
            ):
                row += 1
                self.position = self._size * row // rows
                yield from _in_row((value or b"").decode("utf-8", self.errors), row, max_characters)
        except UnicodeDecodeError as error:
            where = f"{self.name}:{row}: byte {error.start:,} of {self.field!r}"
            raise DataError(f"{where} is not UTF-8: pass --errors replace") from None
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{self.name}: damaged after row {row:,}: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]


def missing_field_error(where: str, field: str, known: Iterable[str], option: str = FIELD_OPTION) -> DataError:
    """The error that lists the existing fields."""
    names = list(known)
    listed = ", ".join(names[:20]) + (" …" if len(names) > 20 else "") or "none"
    near = did_you_mean(field, names)
    return DataError(f"{where}: no field {field!r} (fields: {listed}): pass {option}{near}")


def lines_of(blocks: Iterable[str], name: str) -> Iterator[tuple[int, str]]:
    """The lines with their numbers, empty ones included."""
    rest, number = "", 1
    for block in blocks:
        *lines, rest = (rest + block).split("\n")
        for line in lines:
            yield number, line
            number += 1
        if len(rest) > LONGEST_RECORD:
            raise DataError(f"{name}:{number}: the line is longer than {LONGEST_RECORD:,} characters")
    if rest:
        yield number, rest
