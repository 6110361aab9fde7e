"""Column files: a word to a line, its tag in a column, an empty line between sentences (CoNLL, WNUT, KLUE-NER)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bertsmith.errors import DataError
from bertsmith.tasks.tables import shown
from bertsmith.tasks.tagged.sentences import Sentence, joined
from bertsmith.tokenizers.pretokenization import replace_surrogates

DOCUMENT = "-DOCSTART-"  # the word that opens a document
_BLANKS = re.compile("[ \t]+")


@dataclass(frozen=True)
class Columns:
    """Where words and tags stand, counted from 0 or, below it, from the end."""

    word: int = 0
    tag: int = -1
    comment: str = ""  # what a line that is none begins with; the last one before a sentence gives its id
    between: str = " "  # what stands between words in the text


@dataclass
class _Block:
    """The lines of one sentence."""

    document: str = ""
    opening: str = ""
    id: str = ""
    numbers: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def read(path: Path, columns: Columns, *, tagged: bool = True) -> list[Sentence]:
    """The sentences of a file with their tags as they are; without `tagged` there may be none."""
    name = shown(path)
    blocks = list(_blocks(_lines(path, name), columns))
    if not blocks:
        raise DataError(f"{name} has no sentences: the file is empty")
    first, where = blocks[0].lines[0], f"{name}:{blocks[0].numbers[0]}"
    separator = "\t" if "\t" in first else None
    width = len(_cells(first, separator))
    word = _place(columns.word, width, where, "words")
    tag = None
    if tagged or width > max(1, columns.tag):
        if width == 1:
            raise DataError(f"{where}: one column only: a word and its tag are needed, with a tab or spaces between")
        tag = _place(columns.tag, width, where, "tags")
    own = [block.id for block in blocks]
    ids = own if all(own) and len(set(own)) == len(own) else [str(number) for number in range(len(blocks))]
    found = []
    for block, number in zip(blocks, ids, strict=True):
        rows = [_cells(line, separator) for line in block.lines]
        for line, row in zip(block.numbers, rows, strict=True):
            if len(row) != width:
                raise DataError(f"{name}:{line}: {len(row)} columns, but the first line has {width}: mend the line")
        text, spans = joined([row[word] for row in rows], columns.between)
        found.append(
            Sentence(
                id=number,
                texts=(text,),
                gold=None if tag is None else tuple(row[tag] for row in rows),
                source=f"{name}:{block.numbers[0]}",
                spans=spans,
                document=block.document,
                lines=tuple(block.numbers),
                cells=tuple(block.lines),
                opening=block.opening,
            )
        )
    return found


def _blocks(lines: list[str], columns: Columns) -> Iterator[_Block]:
    block, documents = _Block(), 0
    for number, line in enumerate(lines, start=1):
        opens = line.startswith(DOCUMENT)
        comment = bool(columns.comment) and line.startswith(columns.comment)
        if not line.strip() or opens or comment:
            if block.lines:
                yield block
                block = _Block(block.document)
            if opens:
                documents += 1
                block = _Block(str(documents), line)
            if comment:
                block.id = line.removeprefix(columns.comment).partition("\t")[0].strip()
        else:
            block.numbers.append(number)
            block.lines.append(line)
    if block.lines:
        yield block


def _cells(line: str, separator: str | None) -> list[str]:
    return line.split(separator) if separator else _BLANKS.split(line.strip(" \t"))


def _place(column: int, width: int, where: str, what: str) -> int:
    if not -width <= column < width:
        raise DataError(f"{where}: no column {column + 1}, only {width}: name that of the {what} with {what}=NUMBER")
    return column % width


def _lines(path: Path, name: str) -> list[str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8: save the file as UTF-8") from None
    return replace_surrogates(text).replace("\r\n", "\n").split("\n")
