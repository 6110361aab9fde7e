"""Tagged texts in tables: words and tags as lists, or a text and its entities by character.

Tags or entities of your own: column files, or tables with words and tags or with texts and entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.sequence_labelling import Entity, entities_to_tags
from bertsmith.tasks.conll import Columns, read_column_file
from bertsmith.tasks.dataset_files import (
    ONE_TEXT,
    ColumnHints,
    Layout,
    benchmark_files,
    choose_columns,
    is_missing,
    parse_text,
    row_ids,
)
from bertsmith.tasks.tables import JSON_ANY, JSON_LINES, PARQUET, Table, listed, read_table, shown
from bertsmith.tasks.tagged_text import Sentence, Spans, TaggingConfig, Unit, joined, split_text
from bertsmith.tasks.token_classification import TokenClassificationTask

ROLES = ("words", "tags", "text", "entities", "document")
WORDS: ColumnHints = (("words",), (("tokens",), ("words",), ("sentence",)))
TAGS: ColumnHints = (("tags",), (("tags",), ("ner_tags",), ("labels",), ("ner",)))
ENTITIES: ColumnHints = (("entities",), (("entities",), ("spans",), ("label",), ("labels",), ("ner",)))
KINDS = ("label", "kind", "type", "entity", "entity_group", "tag")


def read_rows(
    table: Table, given: Mapping[str, str], unit: Unit, *, tagged: bool
) -> tuple[list[Sentence], dict[str, str]]:
    """The rows of a table with their tags as they are, and which columns were taken."""
    given = {role: column for role, column in given.items() if column}
    lists = "words" in given or ("entities" not in given and _has_lists(table))
    spare = () if tagged else ("tags", "entities")
    guesses = [WORDS, TAGS] if lists else [ONE_TEXT, ENTITIES]
    chosen = choose_columns(table, given, guesses, spare=spare)
    make = _from_lists if lists else _from_text
    documents = table.column(chosen["document"]) if "document" in chosen else [None] * len(table)
    found = []
    for row, (own, document) in enumerate(zip(row_ids(table), documents, strict=True)):
        source = table.source(row)
        cells = {role: table.rows[row][table.place(column)] for role, column in chosen.items()}
        text, spans, gold = make(cells, chosen, source, unit)
        name = "" if is_missing(document) else str(document)
        found.append(Sentence(id=own, texts=(text,), gold=gold, source=source, spans=spans, document=name))
    return found, chosen


def _has_lists(table: Table) -> bool:
    likely = {names[0] for names in WORDS[1]}
    places = [place for place, name in enumerate(table.columns) if name.lower() in likely]
    return any(isinstance(table.rows[0][place], list) for place in places)


Made = tuple[str, Spans, tuple[str, ...] | None]


def _from_lists(cells: Mapping[str, Any], names: Mapping[str, str], source: str, unit: Unit) -> Made:
    words = _strings(cells["words"], names["words"], source, "a word")
    gold = None
    if "tags" in cells and cells["tags"] is not None:
        gold = tuple(_strings(cells["tags"], names["tags"], source, "a tag such as B-PER"))
        if len(gold) != len(words):
            raise DataError(f"{source}: {len(words)} words but {len(gold)} tags: each word needs one")
    if "text" not in cells:
        return *joined(words, " "), gold
    text, place, spans = parse_text(cells["text"], source, names["text"]), 0, []
    for number, word in enumerate(words):
        place = text.find(word, place)
        if place < 0:
            raise DataError(f"{source}: word {number + 1}, {word[:40]!r}, is not in the text behind the word before it")
        spans.append((place, place + len(word)))
        place += len(word)
    return text, tuple(spans), gold


def _strings(cell: Any, column: str, source: str, what: str) -> list[str]:
    if not isinstance(cell, list):
        raise DataError(f"{source}: {column!r} must be a list, found {type(cell).__name__}")
    for number, item in enumerate(cell):
        if not isinstance(item, str):
            raise DataError(f"{source}: item {number + 1} of {column!r} must be {what}, found {str(item)[:40]!r}")
    return cell


def _from_text(cells: Mapping[str, Any], names: Mapping[str, str], source: str, unit: Unit) -> Made:
    text = parse_text(cells["text"], source, names["text"])
    spans = split_text(text, unit)
    if "entities" not in cells or cells["entities"] is None:
        return text, spans, None
    if not isinstance(cells["entities"], list):
        raise DataError(f"{source}: {names['entities']!r} must be a list of entities")
    found = [_entity(item, number, text, spans, source, unit) for number, item in enumerate(cells["entities"])]
    found.sort(key=lambda entity: entity.start)
    for first, second in pairwise(found):
        if second.start < first.end:
            places = [
                f"{entity.type} {text[spans[entity.start][0] : spans[entity.end - 1][1]]!r}"
                for entity in (first, second)
            ]
            raise DataError(f"{source}: the entities {' and '.join(places)} overlap: each word can be of one only")
    return text, spans, tuple(entities_to_tags(found, words=len(spans), scheme="IOB2"))


def _entity(item: Any, number: int, text: str, spans: Spans, source: str, unit: Unit) -> Entity:
    """An entity by word; {"start": 0, "end": 5, "label": "PER"} and [0, 5, "PER"] say the same."""
    start, end, kind, written = _parts(item)
    who = f"{source}: entity {number + 1}"
    if not all(isinstance(place, int) and not isinstance(place, bool) for place in (start, end)) or not kind:
        expected = '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
        raise DataError(f"{who} is {str(item)[:80]}: expected {expected}")
    if not 0 <= start < end <= len(text):
        raise DataError(f"{who} goes from character {start} to {end}, but the text has {len(text)}")
    if written is not None and written != text[start:end]:
        raise DataError(f"{who} is {written[:40]!r}, but characters {start} to {end} are {text[start:end][:40]!r}")
    inside = text[start:end]
    begin, stop = start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip())
    touched = [place for place, (a, b) in enumerate(spans) if a < stop and b > begin]
    if not touched:
        raise DataError(f"{who} is white space only")
    first, last = spans[touched[0]], spans[touched[-1]]
    if (first[0], last[1]) != (begin, stop):
        raise DataError(
            f"{who}, {inside[:40]!r}, begins or ends within {text[first[0] : last[1]][:40]!r}: "
            f"say unit={_finer(text, begin, stop)}"
        )
    return Entity(str(kind), touched[0], touched[-1] + 1)


def _parts(item: Any) -> tuple[Any, Any, Any, str | None]:
    if isinstance(item, dict):
        kind = next((item[key] for key in KINDS if item.get(key)), None)
        written = item.get("text")
        return item.get("start"), item.get("end"), kind, written if isinstance(written, str) else None
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 3:
        return item[0], item[1], item[2], None
    return None, None, None, None


def _finer(text: str, begin: int, end: int) -> Unit:
    parts = split_text(text, "part")
    return "part" if begin in {a for a, _ in parts} and end in {b for _, b in parts} else "character"


def told(chosen: Mapping[str, str]) -> str:
    """Which columns were taken, for people."""
    return listed([f"{role} = {column}" for role, column in chosen.items()])


TABLES = (*JSON_LINES, JSON_ANY, PARQUET)
ENDINGS = (".conll", ".bio", ".iob", ".txt", ".tsv", *TABLES)
LAYOUT: Layout = {
    split: [(name + ending,) for name in names for ending in ENDINGS]
    for split, names in {
        "train": ["train"],
        "dev": ["dev", "valid", "validation", "val"],
        "test": ["test"],
    }.items()
}


@dataclass(frozen=True, kw_only=True)
class Config(TaggingConfig):
    """Settings for files of your own; a column that is not named is guessed."""

    words: str = ""  # the column of the words: a name, or in column files a number; the first one there
    tags: str = ""  # the column of the tags: a name, or in column files a number; the last one there
    text: str = ""  # tables: the column of the text; beside words, the text in which they stand
    entities: str = ""  # tables: the column of the entities, by character
    document: str = ""  # tables: the column that says which document a row is of
    comment: str = ""  # column files: what a line begins with that is neither word nor end of sentence
    unit: Unit = "word"  # what gets a tag where a file gives texts and no words, and when a model is used

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> TokenClassificationTask:
        """The task; without the labels of a trained model the types are those of train."""
        found: dict[str, str] = {}

        def load(path: Path, split: str) -> list[Sentence]:
            if path.suffix.lower() not in TABLES:
                columns = Columns(self._number("words", path) - 1, self._number("tags", path) - 1, self.comment)
                return read_column_file(path, columns, tagged=split != "test")
            given = {role: getattr(self, role) for role in ROLES}
            sentences, chosen = read_rows(read_table(path), given, self.unit, tagged=split != "test")
            found[f"{split}: columns"] = told(chosen)
            return sentences

        expected = "train.conll, dev.conll, test.conll (or .bio, .iob, .txt, .tsv, .jsonl, .parquet)"
        return TokenClassificationTask(
            "tagging",
            files=benchmark_files("tagging", files, LAYOUT, expected=expected),
            load=load,
            config=self,
            labels=labels,
            unit=self.unit,
            found=found,
        )

    def _number(self, role: str, path: Path) -> int:
        """The number of a column in a column file, counted from 1; 0 is the last."""
        given = getattr(self, role) or {"words": "1", "tags": "0"}[role]
        if not given.isdecimal() or (given == "0" and getattr(self, role)):
            raise ConfigError(
                f"{role}={given}: the columns of {shown(path)} have numbers, counted from 1, and no names"
            )
        return int(given)
