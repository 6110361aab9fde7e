"""Tags in column files (one word per line, blank lines between sentences): CoNLL-2000 and -2003, WNUT-17, KLUE-NER."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from bertsmith.data.text_files import printable
from bertsmith.errors import DataError
from bertsmith.metrics.sequence_labelling import Scheme
from bertsmith.tasks.dataset_files import Layout, benchmark_files, find_member
from bertsmith.tasks.tables import read_whole
from bertsmith.tasks.tagged_text import (
    FileScheme,
    Sentence,
    TaggingConfig,
    Unit,
    join_words,
    labels_of_types,
    scheme_of_labels,
)
from bertsmith.tasks.task import Dataset
from bertsmith.tasks.text_tasks import benchmark_labels
from bertsmith.tasks.token_classification import TokenClassificationTask
from bertsmith.tokenizers.pretokenization import replace_surrogates

DOCUMENT = "-DOCSTART-"  # the word that starts a document
_BLANKS = re.compile("[ \t]+")


@dataclass(frozen=True)
class Columns:
    """Columns of words and tags, from 0; negative ones count from the end."""

    word: int = 0
    tag: int = -1
    comment: str = ""  # prefix of comment lines; the last one before a sentence gives its id
    separator: str = " "  # between words in the text


WORDS = Columns()


@dataclass(frozen=True)
class Member:
    """One dataset: its files, entity types and units."""

    layout: Layout
    subfolders: tuple[str, ...]
    types: tuple[str, ...]  # of entities; empty: the labels are those of train
    columns: Columns = WORDS
    unit: Unit = "word"
    strict: bool = False
    plain: bool = False  # a label for each word, and no entities


CONLL2003: Layout = {
    "train": [("eng.train",), ("train.txt",)],
    "dev": [("eng.testa",), ("valid.txt",), ("dev.txt",)],
    "test": [("eng.testb",), ("test.txt",)],
}
CONLL2003_FOLDERS = ("conll2003", "conll-2003", "eng")

MEMBERS = {
    "conll2003": Member(CONLL2003, CONLL2003_FOLDERS, ("LOC", "MISC", "ORG", "PER")),
    "conll2003-pos": Member(CONLL2003, CONLL2003_FOLDERS, (), Columns(tag=1), plain=True),
    "conll2003-chunks": Member(CONLL2003, CONLL2003_FOLDERS, (), Columns(tag=2)),
    "conll2000": Member(
        {"train": [("train.txt",)], "dev": [("dev.txt",), ("valid.txt",)], "test": [("test.txt",)]},
        ("conll2000", "conll-2000"),
        (),
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
        Columns(comment="##", separator=""),
        unit="character",
        strict=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Config(TaggingConfig):
    """Settings of the known datasets."""

    name: str  # conll2003, conll2003-pos, conll2003-chunks, conll2000, wnut17 or klue-ner
    scheme: FileScheme = "lenient"  # tagging scheme of the files; two tags of CoNLL-2003 violate IOB1

    def __post_init__(self) -> None:
        super().__post_init__()
        find_member("conll", self.name, MEMBERS, advice="; for other files use tagging")

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> TokenClassificationTask:
        """See `TaskConfig.build`; a trained model's labels only set the order of the classes."""
        name, member = find_member("conll", self.name, MEMBERS)
        title = f"conll/{name}"
        paths = benchmark_files(title, files, member.layout, subfolders=member.subfolders)
        dataset = Dataset(paths, lambda path, split: read_column_file(path, member.columns, tagged=split != "test"))
        config = replace(self, scheme="plain") if member.plain else self
        options: dict[str, Any] = {"config": config, "unit": member.unit, "strict": member.strict}
        if not member.types or (not labels and self.label_scheme == "file"):
            return TokenClassificationTask(title, dataset, labels=labels, **options)
        scheme = scheme_of_labels(labels) if labels else cast(Scheme, self.label_scheme)
        ordered = benchmark_labels(title, labels_of_types(member.types, scheme), labels)
        return TokenClassificationTask(title, dataset, labels=ordered, **options)


@dataclass
class _Block:
    """The lines of one sentence."""

    document: str = ""
    opening: str = ""
    id: str = ""
    numbers: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def read_column_file(path: Path, columns: Columns, *, tagged: bool = True, encoding: str = "") -> list[Sentence]:
    """The sentences of a file with tags in its scheme; without `tagged` the tag column is optional."""
    name = printable(path)
    lines = replace_surrogates(read_whole(path, name, encoding)).replace("\r\n", "\n").split("\n")
    blocks = list(_blocks(lines, columns))
    if not blocks:
        raise DataError(f"{name} has no sentences: the file is empty")
    first, where = blocks[0].lines[0], f"{name}:{blocks[0].numbers[0]}"
    separator = "\t" if "\t" in first else None
    width = len(_cells(first, separator))
    word = _column(columns.word, width, where, "words")
    tag = None
    if tagged or width > max(1, columns.tag):
        if width == 1:
            raise DataError(f"{where}: only one column: expected a word and its tag, separated by a tab or spaces")
        tag = _column(columns.tag, width, where, "tags")
    given = [block.id for block in blocks]
    ids = given if all(given) and len(set(given)) == len(given) else [str(index) for index in range(len(blocks))]
    sentences = []
    for block, id in zip(blocks, ids, strict=True):
        rows = [_cells(line, separator) for line in block.lines]
        for line, row in zip(block.numbers, rows, strict=True):
            if len(row) != width:
                raise DataError(f"{name}:{line}: {len(row)} columns, but the first line has {width}: correct the line")
        text, spans = join_words([row[word] for row in rows], columns.separator)
        sentences.append(
            Sentence(
                id=id,
                texts=(text,),
                gold=None if tag is None else tuple(row[tag] for row in rows),
                source=f"{name}:{block.numbers[0]}",
                spans=spans,
                words_given=True,
                document=block.document,
                lines=tuple(block.numbers),
                cells=tuple(block.lines),
                opening=block.opening,
            )
        )
    return sentences


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


def _column(column: int, width: int, where: str, role: str) -> int:
    if not -width <= column < width:
        raise DataError(f"{where}: no column {column + 1} among {width}: set task.{role}=NUMBER")
    return column % width
