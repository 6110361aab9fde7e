"""Token classification from user files: column files, or tables with words and tags or with texts and entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from bertsmith.data.text_files import printable
from bertsmith.errors import ConfigError, DataError
from bertsmith.metrics.sequence_labelling import Entity, entities_to_tags
from bertsmith.tasks import dataset_files
from bertsmith.tasks.conll import DOCUMENT, Columns, read_column_file
from bertsmith.tasks.dataset_files import ONE_TEXT, column_hints, is_missing, parse_text
from bertsmith.tasks.tables import JSON_ANY, JSON_LINES, PARQUET, Table, join_names, read_table, read_whole
from bertsmith.tasks.tagged_text import Sentence, Spans, TaggingConfig, Unit, join_words, split_text
from bertsmith.tasks.task import Dataset
from bertsmith.tasks.token_classification import TokenClassificationTask

TABLES = (*JSON_LINES, JSON_ANY, PARQUET)
LAYOUT = dataset_files.split_layout((".conll", ".bio", ".iob", ".txt", ".tsv", *TABLES))
EXPECTED = "train.conll, dev.conll, test.conll (or .bio, .iob, .txt, .tsv, .jsonl, .parquet)"
ROLES = ("words", "tags", "text", "entities", "document")
WORDS = column_hints("words", "tokens", "words", "sentence")
TAGS = column_hints("tags", "tags", "ner_tags", "labels", "ner")
ENTITIES = column_hints("entities", "entities", "spans", "label", "labels", "ner")
TYPE_KEYS = ("label", "kind", "type", "entity", "entity_group", "tag")


@dataclass(frozen=True, kw_only=True)
class Config(TaggingConfig):
    """Settings of token classification over user files; empty columns are detected."""

    tuple_columns: ClassVar[tuple[tuple[str, ...], ...]] = (("tokens", "tags"), ("tokens",))

    words: str = ""  # column of the words: a name, or a number in column files, where the default is the first
    tags: str = ""  # column of the tags: a name, or a number in column files, where the default is the last
    text: str = ""  # tables: column of the text; with words, the text that contains them
    entities: str = ""  # tables: column of the entities with character offsets
    document: str = ""  # tables: column of the document id
    encoding: str = "utf-8"  # character encoding of text formats, e.g. cp949
    comment: str = ""  # column files: prefix of comment lines
    unit: Unit = "word"  # what gets a tag if a file has texts without words, and at inference

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> TokenClassificationTask:
        """See `TaskConfig.build`; without the labels of a trained model the types are those of train."""
        detected: dict[str, str] = {}

        def load(path: Path, split: str) -> list[Sentence]:
            if split == "test" and (sentences := _read_lines(path, self.encoding, self.unit)):
                return sentences
            if path.suffix.lower() not in TABLES:
                columns = Columns(self._number("words", path) - 1, self._number("tags", path) - 1, self.comment)
                return read_column_file(path, columns, tagged=split != "test", encoding=self.encoding)
            given = {role: getattr(self, role) for role in ROLES}
            sentences, chosen = read_rows(
                read_table(path, encoding=self.encoding), given, self.unit, tagged=split != "test"
            )
            detected[f"{split}: columns"] = join_names([f"{role} = {column}" for role, column in chosen.items()])
            return sentences

        dataset = Dataset(dataset_files.benchmark_files("tagging", files, LAYOUT, expected=EXPECTED), load, detected)
        return TokenClassificationTask("tagging", dataset, config=self, labels=labels, unit=self.unit)

    def _number(self, role: str, path: Path) -> int:
        """The number of a column in a column file, from 1; 0 is the last."""
        given = getattr(self, role) or {"words": "1", "tags": "0"}[role]
        if not given.isdecimal() or (given == "0" and getattr(self, role)):
            raise ConfigError(
                f"task.{role}={given}: columns of {printable(path)} are numbers, counted from 1, not names"
            )
        return int(given)


def _read_lines(path: Path, encoding: str, unit: Unit) -> list[Sentence]:
    """The sentences of a txt file with one text per line, or none if it is a column file.

    A column file has tabs, or the same number of words in each line.
    """
    if path.suffix.lower() != ".txt":
        return []
    text = read_whole(path, printable(path), encoding).replace("\r\n", "\n")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    sizes = {len(line.split()) for _, line in lines if not line.startswith(DOCUMENT)}
    if "\t" in text or sizes == {1} or (len(sizes) == 1 and len(lines) > 1):
        return []
    return [
        Sentence(id=str(row), texts=(line,), source=f"{printable(path)}:{number}", spans=split_text(line, unit))
        for row, (number, line) in enumerate(lines)
    ]


def read_rows(
    table: Table, given: Mapping[str, str], unit: Unit, *, tagged: bool
) -> tuple[list[Sentence], dict[str, str]]:
    """The rows of a table with tags in its scheme, and the chosen columns."""
    given = {role: column for role, column in given.items() if column}
    lists = "words" in given or ("entities" not in given and _has_word_lists(table))
    optional = () if tagged else ("tags", "entities")
    chosen = dataset_files.choose_columns(
        table, given, [WORDS, TAGS] if lists else [ONE_TEXT, ENTITIES], optional=optional
    )
    parse = _parse_lists if lists else _parse_text
    sentences = []
    for row, id in enumerate(dataset_files.row_ids(table)):
        source = table.source(row)
        cells = {role: table.rows[row][table.column_index(column)] for role, column in chosen.items()}
        text, spans, gold = parse(cells, chosen, source, unit)
        document = "" if is_missing(cells.get("document")) else str(cells["document"])
        options: dict[str, Any] = {"spans": spans, "words_given": lists, "document": document}
        sentences.append(Sentence(id=id, texts=(text,), gold=gold, source=source, **options))
    return sentences, chosen


def _has_word_lists(table: Table) -> bool:
    names = {names[0] for names in WORDS[1]}
    columns = [index for index, name in enumerate(table.columns) if name.lower() in names]
    return any(isinstance(table.rows[0][index], list) for index in columns)


Parsed = tuple[str, Spans, tuple[str, ...] | None]  # text, words, tags


def _parse_lists(cells: Mapping[str, Any], columns: Mapping[str, str], source: str, unit: Unit) -> Parsed:
    words = _strings(cells["words"], columns["words"], source, "a word")
    gold = None
    if cells.get("tags") is not None:
        gold = tuple(_strings(cells["tags"], columns["tags"], source, "a tag such as B-PER"))
        if len(gold) != len(words):
            raise DataError(f"{source}: {len(words)} words but {len(gold)} tags: each word needs one")
    if "text" not in cells:
        return *join_words(words, " "), gold
    text, position, spans = parse_text(cells["text"], source, columns["text"]), 0, []
    for index, word in enumerate(words):
        position = text.find(word, position)
        if position < 0:
            raise DataError(f"{source}: word {index + 1}, {word[:40]!r}, is not in the text after the word before it")
        spans.append((position, position + len(word)))
        position += len(word)
    return text, tuple(spans), gold


def _strings(cell: Any, column: str, source: str, what: str) -> list[str]:
    if not isinstance(cell, list):
        raise DataError(f"{source}: {column!r} must be a list, found {type(cell).__name__}")
    for index, item in enumerate(cell):
        if not isinstance(item, str):
            raise DataError(f"{source}: item {index + 1} of {column!r} must be {what}, found {str(item)[:40]!r}")
    return cell


def _parse_text(cells: Mapping[str, Any], columns: Mapping[str, str], source: str, unit: Unit) -> Parsed:
    text = parse_text(cells["text"], source, columns["text"])
    spans = split_text(text, unit)
    if cells.get("entities") is None:
        return text, spans, None
    if not isinstance(cells["entities"], list):
        raise DataError(f"{source}: {columns['entities']!r} must be a list of entities")
    items = enumerate(cells["entities"], start=1)
    entities = [_entity(item, f"{source}: entity {number}", text, spans) for number, item in items]
    entities.sort(key=lambda entity: entity.start)
    for first, second in pairwise(entities):
        if second.start < first.end:
            both = " and ".join(
                f"{kind} {text[spans[begin][0] : spans[end - 1][1]]!r}" for kind, begin, end in (first, second)
            )
            raise DataError(f"{source}: the entities {both} overlap: each word can have only one")
    return text, spans, tuple(entities_to_tags(entities, words=len(spans), scheme="IOB2"))


def _entity(item: Any, name: str, text: str, spans: Spans) -> Entity:
    """An entity by words; {"start": 0, "end": 5, "label": "PER"} and [0, 5, "PER"] are the same."""
    start, end, kind, written = _fields(item)
    if not all(isinstance(offset, int) and not isinstance(offset, bool) for offset in (start, end)) or not kind:
        expected = '{"start": 0, "end": 5, "label": "PER"} or [0, 5, "PER"]'
        raise DataError(f"{name} is {str(item)[:80]}: expected {expected}")
    if not 0 <= start < end <= len(text):
        raise DataError(f"{name} spans characters {start} to {end}, but the text has {len(text)}")
    inside = text[start:end]
    if written is not None and written != inside:
        raise DataError(f"{name} is {written[:40]!r}, but characters {start} to {end} are {inside[:40]!r}")
    begin, stop = start + len(inside) - len(inside.lstrip()), end - len(inside) + len(inside.rstrip())
    words = [word for word, (a, b) in enumerate(spans) if a < stop and b > begin]
    if not words:
        raise DataError(f"{name} is only white space")
    first, last = spans[words[0]], spans[words[-1]]
    if (first[0], last[1]) != (begin, stop):
        parts = split_text(text, "part")
        finer = begin in {a for a, _ in parts} and stop in {b for _, b in parts}
        raise DataError(
            f"{name}, {inside[:40]!r}, begins or ends inside {text[first[0] : last[1]][:40]!r}: "
            f"set task.unit={'part' if finer else 'character'}"
        )
    return Entity(str(kind), words[0], words[-1] + 1)


def _fields(item: Any) -> tuple[Any, Any, Any, str | None]:
    """Start, end, type and text of an entity."""
    if isinstance(item, dict):
        kind = next((item[key] for key in TYPE_KEYS if item.get(key)), None)
        written = item.get("text")
        return item.get("start"), item.get("end"), kind, written if isinstance(written, str) else None
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 3:
        return item[0], item[1], item[2], None
    return None, None, None, None
