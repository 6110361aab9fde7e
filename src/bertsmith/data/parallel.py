"""Parallel text: pairs of a source and a target text, from two line-aligned files, a table or memory.

A pair is a document of two lines, the source and the target, so that the rest of `prepare` treats it as any document.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.data import formats
from bertsmith.data.corpus import Corpus, ReadOptions, format_by_extension
from bertsmith.data.in_memory import Texts, is_missing, is_table, rows_of
from bertsmith.data.shards.format import EncodedDocuments
from bertsmith.data.text_files import OpenFile, looks_like_path, one_line, printable, text_blocks
from bertsmith.errors import ConfigError, DataError, DataWarning, SkippedWarning
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Document

SOURCE, TARGET = "source", "target"  # columns or keys by default
FIELDS_OPTION = "--fields SOURCE,TARGET"
TABLES = ("tsv", "csv", "jsonl")
LONGEST = 65_535  # tokens of a sentence in a shard
CHECKED = 500  # target texts of a sample
CHANGED_LIMIT = 0.05  # largest share of them that a tokenizer may change without a warning


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """The columns of a table with pairs, and which pairs are left out."""

    # of source and target, by name, or by number from 1 without a header; None: "source" and "target", or the only two
    fields: tuple[str, str] | None = None
    max_tokens: int = 250  # of the longer text of a pair
    max_ratio: float = 9.0  # tokens of the longer text for each token of the shorter; 0: any

    def __post_init__(self) -> None:
        if not 1 <= self.max_tokens <= LONGEST:
            raise ConfigError(f"max_tokens={self.max_tokens} must be from 1 to {LONGEST:,}")
        if self.max_ratio != 0 and self.max_ratio < 1:
            raise ConfigError(f"max_ratio={self.max_ratio:g} must be at least 1, or 0 for any")
        if self.fields is not None and (len(self.fields) != 2 or self.fields[0] == self.fields[1]):
            raise ConfigError(f"fields={','.join(self.fields)} must name two columns, source and target")

    def left_out(self, lengths_N2: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
        """By reason, which pairs with these numbers of tokens are left out [N]; a pair has one reason at most."""
        shorter, longer = lengths_N2.min(1), lengths_N2.max(1)
        empty = shorter == 0
        long = ~empty & (longer > self.max_tokens)
        uneven = ~empty & ~long & (longer > self.max_ratio * shorter) if self.max_ratio else np.zeros_like(empty)
        return {"empty_pairs": empty, "long_pairs": long, "uneven_pairs": uneven}


class ParallelCorpus(Corpus):
    """The pairs of files: two line-aligned text files, or tables (tsv, csv, jsonl) with two columns."""

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]],
        options: ReadOptions | None = None,
        pairs: PairOptions | None = None,
    ) -> None:
        super().__init__(paths, options)
        self.pairs = pairs or PairOptions()
        self._files_open: list[OpenFile] = []
        kinds = {self._format(path) for path in self.files}
        self._tables = kinds <= {*TABLES}
        if not self._tables and (kinds & {*TABLES, "parquet"} or len(self.files) != 2):
            names = ", ".join(map(printable, self.files[:4]))
            raise DataError(
                f"parallel text needs two line-aligned text files, or tables with two columns (tsv, csv or jsonl); "
                f"found {len(self.files)} {'file' if len(self.files) == 1 else 'files'}: {names}"
            )

    def _format(self, path: Path) -> str:
        return self.options.format if self.options.format != "auto" else format_by_extension(path)

    @property
    def bytes_read(self) -> int:
        return self._finished + sum(file.position for file in self._files_open)

    def __iter__(self) -> Iterator[Document]:
        self.split_documents = self._finished = 0
        groups = [[path] for path in self.files] if self._tables else [self.files]
        for group in groups:
            with ExitStack() as stack:
                files = [stack.enter_context(closing(OpenFile(path))) for path in group]
                self._files_open = files
                blocks = [
                    text_blocks(file, encoding=self.options.encoding, errors=self.options.errors) for file in files
                ]
                found = self._table_pairs(blocks[0], group[0]) if self._tables else self._aligned(blocks)
                for line, source, target in found:
                    yield Document(pair_text(source, target), f"{printable(group[0])}:{line}")
            self._files_open = []
            self._finished += sum(path.stat().st_size for path in group)

    def _aligned(self, blocks: Sequence[Iterable[str]]) -> Iterator[tuple[int, str, str]]:
        """Line n of both files; all lines are counted first, so that nothing of unequal files is used."""
        counts = [self._count_lines(path) for path in self.files]
        if counts[0] != counts[1]:
            found = " and ".join(f"{printable(path)} {count:,}" for path, count in zip(self.files, counts, strict=True))
            raise DataError(
                f"the files do not have the same number of lines ({found}): line n of one must be the translation of "
                "line n of the other"
            )
        lines = (formats.lines_of(one, printable(path)) for one, path in zip(blocks, self.files, strict=True))
        for (line, source), (_, target) in zip_longest(*lines, fillvalue=(0, "")):
            yield line, source, target

    def _count_lines(self, path: Path) -> int:
        with closing(OpenFile(path)) as file:
            blocks = text_blocks(file, encoding=self.options.encoding, errors=self.options.errors)
            count, last = 0, "\n"
            for block in blocks:
                count, last = count + block.count("\n"), block[-1]
            return count + (last != "\n")

    def _table_pairs(self, blocks: Iterable[str], path: Path) -> Iterator[tuple[int, str, str]]:
        name, kind = printable(path), self._format(path)
        if kind == "jsonl":
            keys = self.pairs.fields or (SOURCE, TARGET)
            for line, (source, target) in formats.json_fields(blocks, keys, name=name, option=FIELDS_OPTION):
                yield line, source or "", target or ""
            return
        columns: tuple[int, int] | None = None
        for line, row in formats.table_rows(blocks, name=name, tabs=kind == "tsv"):
            if columns is None:
                columns, is_header = self._columns(row, name)
                if is_header:
                    continue
            yield line, row[columns[0]], row[columns[1]]

    def _columns(self, first: Sequence[str], name: str) -> tuple[tuple[int, int], bool]:
        """The indices of source and target, and whether the first row is a header."""
        header, fields = [column.strip() for column in first], self.pairs.fields or (SOURCE, TARGET)
        if all(field in header for field in fields):
            return (header.index(fields[0]), header.index(fields[1])), True
        if self.pairs.fields is None and len(header) == 2:
            warnings.warn(
                f"{name} has no columns {SOURCE} and {TARGET}: its two columns are read as source and target, from the "
                "first line on; --fields A,B names columns of a header",
                DataWarning,
                stacklevel=2,
            )
            return (0, 1), False
        if all(field.isascii() and field.isdecimal() for field in fields):
            return self._numbered(header, fields, name), False
        missing = next(field for field in fields if field not in header)
        raise formats.missing_field_error(
            name, missing, header, option=f"{FIELDS_OPTION}, or --fields 1,2 for columns of a file without a header"
        )

    def _numbered(self, first: Sequence[str], fields: tuple[str, str], name: str) -> tuple[int, int]:
        """The indices of columns given by their numbers, from 1."""
        source, target = map(int, fields)
        if not (1 <= source <= len(first) and 1 <= target <= len(first)):
            raise DataError(
                f"{name} has {len(first)} columns: --fields {source},{target} must be from 1 to {len(first)}"
            )
        return source - 1, target - 1


class ParallelTexts(Texts):
    """The pairs of an iterable of (source, target) or of rows with these columns, or of a table."""

    def __init__(self, data: Any, options: ReadOptions | None = None, pairs: PairOptions | None = None) -> None:
        super().__init__(data, options)
        self.pairs = pairs or PairOptions()

    def __iter__(self) -> Iterator[Document]:
        self.split_documents = self._read_so_far = 0
        for index, row in enumerate(rows_of(self._data)):
            text = pair_text(*self._sides(row, f"pair {index + 1}"))
            yield Document(text, f"pair {index + 1}")
            self._read_so_far += len(text)

    def _sides(self, row: Any, where: str) -> tuple[str, str]:
        fields = self.pairs.fields or (SOURCE, TARGET)
        if isinstance(row, Mapping):
            if missing := [field for field in fields if field not in row]:
                names = ", ".join(map(str, row))
                raise DataError(f"{where} has no {missing[0]!r} (its columns: {names}): set fields=(SOURCE, TARGET)")
            row = [row[field] for field in fields]
        if isinstance(row, str) or not isinstance(row, Sequence) or len(row) != 2:
            raise DataError(f"{where} must be (source, target), found {type(row).__name__}: {str(row)[:40]}")
        source, target = ("" if is_missing(side) else side for side in row)
        for side in (source, target):
            if not isinstance(side, str):
                raise DataError(f"{where} must have two texts, found {type(side).__name__}: {str(side)[:40]}")
        return source, target


def open_parallel(source: Any, options: ReadOptions | None = None, pairs: PairOptions | None = None) -> Corpus:
    """The pairs of files, or of data in memory."""
    if isinstance(source, str | os.PathLike):
        return ParallelCorpus([source], options, pairs)
    is_list = isinstance(source, Sequence) and not is_table(source)
    if is_list and all(
        isinstance(one, os.PathLike) or (isinstance(one, str) and looks_like_path(one)) for one in source
    ):
        return ParallelCorpus(source, options, pairs)
    return ParallelTexts(source, options, pairs)


def pair_text(source: str, target: str) -> str:
    """A pair as two lines."""
    return f"{one_line(source)}\n{one_line(target)}"


def warn_of_left_out(counts: Mapping[str, int], options: PairOptions) -> None:
    """One line about the pairs that are not in the shards, where there are any."""
    if text := left_out_text(counts, options):
        warnings.warn(text, SkippedWarning, stacklevel=2)


def left_out_text(counts: Mapping[str, int], options: PairOptions) -> str:
    """How many pairs were left out, by reason; empty where none was."""
    reasons = {
        "empty_pairs": "with an empty text",
        "long_pairs": f"with a text of more than max_tokens={options.max_tokens}",
        "uneven_pairs": f"with lengths that differ by more than max_ratio={options.max_ratio:g}",
    }
    found = {reason: counts[name] for name, reason in reasons.items() if counts.get(name)}
    if not found:
        return ""
    total = f"{sum(found.values()):,} of {counts['documents_read']:,} pairs were left out"
    return f"{total}: {', '.join(f'{count:,} {reason}' for reason, count in found.items())}"


def check_targets(tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """The share of target texts that are different once they are encoded and decoded; a warning if it exceeds 5 %.

    A model cannot generate capital letters or accents that its tokenizer removes. White space does not count, and
    neither do texts with unknown words, which `prepare` reports.
    """
    tokenizer = tokenizer.target or tokenizer
    compared, changed = 0, list[tuple[str, str]]()
    for text in (pair.split("\n")[1] for pair in texts[:CHECKED]):
        ids = tokenizer.encode(text).ids
        if tokenizer.is_unknown(ids).any():
            continue
        compared += 1
        decoded = tokenizer.decode(ids)
        if "".join(decoded.split()) != "".join(text.split()):
            changed.append((text, decoded.strip()))
    share = len(changed) / compared if compared else 0.0
    if share > CHANGED_LIMIT:
        before, after = (f"{one[:40]}…" if len(one) > 40 else one for one in changed[0])
        warnings.warn(
            f"the tokenizer changes {100 * share:.0f} % of the target texts, such as {before!r} to {after!r}, and "
            "translations will have the same changes: train a tokenizer with --cased, or of --kind byte_bpe",
            DataWarning,
            stacklevel=2,
        )
    return share


def encode_pairs(
    texts: Sequence[str], tokenizer: Tokenizer, options: PairOptions
) -> tuple[EncodedDocuments, dict[str, int]]:
    """The two sentences of each pair, none of a pair that is left out; and how many are left out, by reason."""
    tokens, sides = _side_tokens(texts, tokenizer)
    left_out = options.left_out(sides)
    keep = ~np.logical_or.reduce(list(left_out.values()))
    documents = EncodedDocuments(
        tokens[np.repeat(keep, sides.sum(1))], sides[keep].ravel().astype(np.uint16), keep.astype(np.uint32) * 2
    )
    return documents, {reason: int(which.sum()) for reason, which in left_out.items()}


def _side_tokens(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """The tokens of the sides of all pairs, source, target, source, …, and their numbers [N, 2]."""
    if tokenizer.target is None:
        tokens, lengths = tokenizer.encode_ids([side for text in texts for side in text.split("\n")])
        return tokens, lengths.astype(np.int64).reshape(-1, 2)
    encoded = [
        one.encode_ids([text.split("\n")[side] for text in texts])
        for side, one in enumerate((tokenizer, tokenizer.target))
    ]
    lengths_N2 = np.stack([lengths for _, lengths in encoded], 1).astype(np.int64)
    starts_N2 = (np.cumsum(lengths_N2) - lengths_N2.ravel()).reshape(-1, 2)
    joined = np.empty(int(lengths_N2.sum()), np.result_type(*(tokens for tokens, _ in encoded)))
    for side, (tokens, lengths) in enumerate(encoded):
        within = np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        joined[np.repeat(starts_N2[:, side], lengths) + within] = tokens
    return joined, lengths_N2
