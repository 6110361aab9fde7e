"""Column files: a word to a line, its tag in a column, an empty line between sentences (CoNLL, WNUT, KLUE-NER).

Named entities in column files of known sets: CoNLL-2003, WNUT-17, KLUE-NER."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks.dataset_files import Layout, benchmark_files
from bertsmith.tasks.tables import shown
from bertsmith.tasks.tagged_text import Given, Sentence, TaggingConfig, Unit, joined, labels_of_types
from bertsmith.tasks.text_tasks import benchmark_labels
from bertsmith.tasks.token_classification import TokenClassificationTask
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


def read_column_file(path: Path, columns: Columns, *, tagged: bool = True) -> list[Sentence]:
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


WORDS = Columns()


@dataclass(frozen=True)
class Member:
    """One set: its files, its types of entities, and what its words are."""

    layout: Layout
    inside: tuple[str, ...]  # folders in which its files may lie
    kinds: tuple[str, ...]
    columns: Columns = WORDS
    unit: Unit = "word"
    strict: bool = False


MEMBERS = {
    "conll2003": Member(
        {
            "train": [("eng.train",), ("train.txt",)],
            "dev": [("eng.testa",), ("valid.txt",), ("dev.txt",)],
            "test": [("eng.testb",), ("test.txt",)],
        },
        ("conll2003", "conll-2003", "eng"),
        ("LOC", "MISC", "ORG", "PER"),
    ),
    "wnut17": Member(
        {
            "train": [("wnut17train.conll",)],
            "dev": [("emerging.dev.conll",)],
            "test": [("emerging.test.annotated",), ("emerging.test",)],
        },
        ("wnut17", "emerging_entities_17"),
        ("corporation", "creative-work", "group", "location", "person", "product"),
    ),
    "klue-ner": Member(
        {split: [(f"klue-ner-v1.1_{split}.tsv",)] for split in ("train", "dev", "test")},
        ("klue-ner-v1.1", "klue_benchmark/klue-ner-v1.1", "klue/klue_benchmark/klue-ner-v1.1"),
        ("DT", "LC", "OG", "PS", "QT", "TI"),
        Columns(comment="##", between=""),
        unit="character",
        strict=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config(TaggingConfig):
    """Settings of the known sets."""

    name: str  # conll2003, wnut17 or klue-ner
    scheme: Given = "lenient"  # how the files spell entities; two tags of CoNLL-2003 break the rules of IOB1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name.lower() not in MEMBERS:
            near = did_you_mean(self.name.lower(), MEMBERS)
            raise ConfigError(
                f"{self.name!r} is no set of conll: {', '.join(MEMBERS)}{near}; for files of your own take tagging"
            )

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> TokenClassificationTask:
        """The task; a trained model's labels decide the order of the classes, not which there are."""
        name = self.name.lower()
        member, title = MEMBERS[name], f"conll/{name}"

        def load(path: Path, split: str) -> list[Sentence]:
            return read_column_file(path, member.columns, tagged=split != "test")

        return TokenClassificationTask(
            title,
            files=benchmark_files(title, files, member.layout, inside=member.inside),
            load=load,
            config=self,
            labels=benchmark_labels(title, labels_of_types(member.kinds), labels),
            unit=member.unit,
            strict=member.strict,
        )
