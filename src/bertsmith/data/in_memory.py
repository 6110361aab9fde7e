"""Data in memory as rows: lists, generators, dicts of columns, data frames, Arrow tables, Hugging Face datasets.

The libraries are recognized by the methods of their objects; none of them is imported.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from itertools import chain
from typing import Any

from bertsmith.data.corpus import Corpus, ReadOptions
from bertsmith.data.formats import cut
from bertsmith.data.text_files import looks_like_path
from bertsmith.errors import DataError
from bertsmith.types import Document


class Texts(Corpus):
    """The documents of an iterable. Lists and tables can be iterated repeatedly, generators only once."""

    def __init__(self, data: Any, options: ReadOptions | None = None) -> None:
        self.options = options or ReadOptions()
        self.files = []
        self.split_documents = 0
        self._data = data
        sized = isinstance(data, list | tuple) and all(isinstance(text, str) for text in data)
        self.bytes_total = sum(map(len, data)) if sized else 0  # characters, for progress; 0: unknown
        self._read_so_far = 0

    @property
    def single_pass(self) -> bool:
        """Whether a second iteration finds nothing: generators, and columns that are generators."""
        columns = list(self._data.values()) if isinstance(self._data, Mapping) else []
        return any(isinstance(one, Iterator) for one in [self._data, *columns])

    @property
    def bytes_read(self) -> int:
        return self._read_so_far

    def __iter__(self) -> Iterator[Document]:
        self.split_documents = self._read_so_far = 0
        for index, row in enumerate(rows_of(self._data)):
            text = self._text(row, index)
            for _, piece, part, _ in cut(text, 1, 0, self.options.max_characters):
                self.split_documents += part == 1
                yield Document(piece, f"document {index + 1}")
            self._read_so_far += len(text)

    def _text(self, row: Any, index: int) -> str:
        field = self.options.field
        if isinstance(row, Mapping):
            if field not in row:
                names = ", ".join(map(str, row))
                raise DataError(f"document {index + 1} has no {field!r} (its columns: {names}): set field=COLUMN")
            row = row[field]
        if is_missing(row):
            return ""
        if not isinstance(row, str):
            raise DataError(f"document {index + 1} must be a text, found {type(row).__name__}: {str(row)[:40]}")
        return row


def open_corpus(source: Any, options: ReadOptions | None = None) -> Corpus:
    """The documents of files and folders, or of data in memory."""
    if isinstance(source, Corpus):
        return source
    if isinstance(source, str) and not looks_like_path(source):
        raise DataError(f"{source[:40]!r} is not a file or folder: pass texts as a list, [text]")
    if isinstance(source, str | os.PathLike):
        return Corpus([source], options)
    if isinstance(source, Iterable) and not is_table(source):
        items = iter(source)
        first = next(items, None)
        if isinstance(first, os.PathLike) or (isinstance(first, str) and looks_like_path(first)):
            return Corpus([first, *items], options)
        if items is source:  # a generator, whose first item has been read
            source = chain([] if first is None else [first], items)
    return Texts(source, options)


def is_table(data: Any) -> bool:
    """Whether the data has columns: a data frame, an Arrow table, a dataset or a dict of columns."""
    return isinstance(data, Mapping) or hasattr(data, "columns") or hasattr(data, "column_names")


def rows_of(data: Any) -> Iterator[Any]:
    """The rows as dicts, strings or tuples."""
    if isinstance(data, str | bytes | os.PathLike):
        raise DataError(f"expected rows, found the single value {str(data)[:60]!r}: put it into a list")
    if isinstance(data, Mapping):
        return _rows_of_columns(data)
    if hasattr(data, "iter_rows"):  # polars
        return iter(data.iter_rows(named=True))
    if hasattr(data, "columns") and hasattr(data, "itertuples"):  # pandas
        names = list(data.columns)
        return (dict(zip(names, row, strict=True)) for row in data.itertuples(index=False, name=None))
    if hasattr(data, "to_batches") and hasattr(data, "column_names"):  # pyarrow
        return chain.from_iterable(batch.to_pylist() for batch in data.to_batches())
    if hasattr(data, "features") and hasattr(data, "column_names"):  # Hugging Face datasets
        return _rows_of_dataset(data)
    if hasattr(data, "to_pylist"):  # an Arrow array
        return iter(data.to_pylist())
    if not isinstance(data, Iterable):
        raise DataError(f"expected rows, such as a list, a data frame or an Arrow table, found {type(data).__name__}")
    return iter(data)


def _rows_of_columns(columns: Mapping[Any, Any]) -> Iterator[dict[str, Any]]:
    cells = {str(name): values for name, values in columns.items()}
    for name, values in cells.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise DataError(f"a dict of columns needs a list for each column, but {name!r} is {str(values)[:40]!r}")
    lists = {name: list(values) for name, values in cells.items()}
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"columns differ in length: {', '.join(f'{name} {n}' for name, n in lengths.items())}")
    return (dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True))


def _rows_of_dataset(data: Any) -> Iterator[dict[str, Any]]:
    """The rows of a dataset, with the names of its classes instead of their numbers."""
    features = data.features or {}
    names = {column: feature.names for column, feature in features.items() if getattr(feature, "names", None)}
    for row in data:
        classes = {name: known[row[name]] for name, known in names.items() if isinstance(row[name], int)}
        yield {**row, **classes}


def json_rows(data: Any, columns: Mapping[int, Sequence[str]], name: str) -> Iterator[bytes]:
    """The rows as JSON lines. `columns`: for rows that are tuples, the column names by their number."""
    empty = True
    for number, row in enumerate(rows_of(data), start=1):
        empty = False
        yield json.dumps(_named(row, columns, f"row {number} of {name}"), ensure_ascii=False).encode() + b"\n"
    if empty:
        raise DataError(f"{name} has no rows")


def _named(row: Any, columns: Mapping[int, Sequence[str]], where: str) -> dict[str, Any]:
    if hasattr(row, "_asdict"):  # a named tuple
        row = row._asdict()
    if not isinstance(row, Mapping):
        cells = row if isinstance(row, tuple | list) else (row,)
        if len(cells) not in columns:
            expected = " or ".join(f"({', '.join(names)})" for names in columns.values() if len(names) > 1)
            raise DataError(f"{where} has {len(cells)} values: expected {expected or 'a dict'}, or a dict of columns")
        row = dict(zip(columns[len(cells)], cells, strict=True))
    return {str(key): plain_value(value, f"{where}: {key!r}") for key, value in row.items()}


def plain_value(value: Any, where: str) -> Any:
    """A cell as a JSON value: numbers of numpy become numbers, and missing values None."""
    if isinstance(value, Mapping):
        return {str(key): plain_value(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item, where) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
        if isinstance(value, list):
            return plain_value(value, where)
    if is_missing(value):
        return None
    if isinstance(value, date | time):
        return value.isoformat()
    if not isinstance(value, str | bool | int | float):
        raise DataError(f"{where} is a {type(value).__name__}: expected a text, a number, a list or a dict")
    return value


def is_missing(value: Any) -> bool:
    """None, nan, and the missing values of pandas."""
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(value, float) and math.isnan(value))
