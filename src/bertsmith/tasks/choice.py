"""A question and its choices, from your own files; the right one is told by number, by letter or by its text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import (
    ColumnHints,
    Files,
    TableConfig,
    choose_columns,
    is_missing,
    parse_label,
    parse_text,
    row_ids,
    text_column,
    user_files,
)
from bertsmith.tasks.tables import Table, listed
from bertsmith.tasks.task import Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

QUESTION: ColumnHints = (
    ("question",),
    tuple((name,) for name in ("question", "context", "prompt", "stem", "startphrase", "sentence", "premise", "text")),
)
RIGHT: ColumnHints = (
    ("label",),
    tuple((name,) for name in ("label", "answer", "answerkey", "answer_key", "gold", "correct", "right", "target")),
)
LISTS = ("choices", "options", "endings", "answers", "candidates")
NUMBERED = re.compile(
    r"(?:choice|option|ending|answer|candidate|hypothesis)[ _-]?(?:[0-9]+|[a-z])|[a-z]", re.IGNORECASE
)
LETTER = re.compile("[A-Za-z]")
Told = Literal["number", "letter", "text"]


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of a choice; columns that are not named are guessed."""

    question: str = ""  # the column of the question
    choices: tuple[str, ...] = ()  # the columns of the choices, or the one column that holds a list of them
    label: str = ""  # the column that says which choice is right
    told: Literal["auto", "number", "letter", "text"] = "auto"  # how it says so
    counted_from: Literal["auto", 0, 1] = "auto"  # the number of the first choice

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """The task; choices have no labels."""
        places = user_files("choice", files)
        read = ChoiceColumns(self, files=places)
        return MultipleChoiceTask("choice", files=places, read=read, found=read.found)


class ChoiceColumns:
    """Reads files one after another: what was seen in one file, in train where there is one, holds for the others."""

    def __init__(self, settings: Config, *, files: Files) -> None:
        self.settings = settings
        self._files = files
        self.found: dict[str, str] = {}
        self._choices: tuple[str, ...] = settings.choices

    def __call__(self, path: Path, split: str) -> list[Example]:
        if split != "train" and not self.found and "train" in self._files:
            self(self._files["train"][0], "train")
        settings = self.settings
        table = settings.table(path)
        self._choices = self._choices or _choice_columns(table, {settings.question, settings.label})
        spare = ("label",) if split == "test" else ()
        given = {"question": settings.question, "label": settings.label}
        given |= {role: name for role, name in self.found.items() if role in given}
        given = {role: name for role, name in given.items() if name and (role not in spare or table.has(name))}
        for column in self._choices:
            table.place(column, setting="choices")
        taken = {f"choice {number}": name for number, name in enumerate(self._choices)}
        chosen = choose_columns(table, given | taken, [QUESTION, RIGHT], spare=spare)
        self.found |= {role: chosen[role] for role in ("question", "label") if role in chosen}
        self.found["choices"] = ", ".join(self._choices)
        questions, choices = text_column(table, chosen["question"]), self._all_choices(table)
        rights: list[int | None] = [None] * len(table)
        if name := chosen.get("label"):
            rights = self._rights(table, name, choices)
        return [
            Example(id=own, texts=(question, *texts), gold=right, source=table.source(row))
            for row, (own, question, texts, right) in enumerate(
                zip(row_ids(table), questions, choices, rights, strict=True)
            )
        ]

    def _all_choices(self, table: Table) -> list[list[str]]:
        """The choices of every row; cells at the end that are empty mean that this question has fewer."""
        names = self._choices
        if len(names) == 1:
            return [
                _listed_choices(cell, table.source(row), names[0]) for row, cell in enumerate(table.column(names[0]))
            ]
        found = []
        for row, cells in enumerate(zip(*(table.column(name) for name in names), strict=True)):
            there = [number for number, cell in enumerate(cells) if not is_missing(cell)]
            where = table.source(row)
            if there != list(range(len(there))):
                gap = next(number for number in range(len(names)) if number not in there)
                raise DataError(f"{where}: {names[gap]!r} is empty, but a later choice is not")
            found.append([parse_text(cells[number], where, names[number]) for number in there])
        return found

    def _rights(self, table: Table, name: str, choices: list[list[str]]) -> list[int | None]:
        said = [parse_label(cell, table.source(row), name) for row, cell in enumerate(table.column(name))]
        known = [(told, texts) for told, texts in zip(said, choices, strict=True) if told is not None]
        if not known:
            return [None] * len(said)
        if "told" not in self.found:
            told = self.settings.told
            self.found["told"] = told if told != "auto" else _how_told(known)
        if self.found["told"] == "number" and "counted_from" not in self.found:
            first = self.settings.counted_from
            self.found["counted_from"] = str(
                _first(known, f"{table.name}: column {name!r}") if first == "auto" else first
            )
        return [
            None if right is None else self._number(right, texts, table.source(row))
            for row, (right, texts) in enumerate(zip(said, choices, strict=True))
        ]

    def _number(self, right: str, texts: Sequence[str], where: str) -> int:
        told = self.found["told"]
        if told == "text":
            stripped = [text.strip() for text in texts]
            if stripped.count(right) != 1:
                how = "is none of the choices" if right not in stripped else "stands twice among the choices"
                raise DataError(f"{where}: the right answer {right[:40]!r} {how} ({listed(stripped)})")
            return stripped.index(right)
        if told == "letter":
            number = ord(right.upper()) - ord("A") if LETTER.fullmatch(right) else -1
        else:
            number = int(right) - int(self.found["counted_from"]) if re.fullmatch(r"-?\d+", right) else -1
        if not 0 <= number < len(texts):
            what = "letter" if told == "letter" else f"number, counted from {self.found['counted_from']}"
            raise DataError(f"{where}: {right[:40]!r} is no {what} of one of the {len(texts)} choices")
        return number


def _choice_columns(table: Table, taken: set[str]) -> tuple[str, ...]:
    free = [name for name in table.columns if name and name not in taken]
    for name in LISTS:
        found = [column for column in free if column.lower() == name]
        if found:
            return (found[0],)
    numbered = tuple(name for name in free if NUMBERED.fullmatch(name))
    if len(numbered) < 2:
        raise DataError(
            f"{table.name}: no columns look like choices among {listed(table.columns)}: expected choices, or ending0, "
            'ending1, …, or A, B, …; name them with choices=["COLUMN", …]'
        )
    return numbered


def _listed_choices(cell: Any, where: str, name: str) -> list[str]:
    """A list of texts, of tables with a `text`, or a table with a list of texts, as benchmarks have them."""
    if isinstance(cell, dict) and isinstance(cell.get("text"), list):
        cell = cell["text"]
    if not isinstance(cell, list):
        raise DataError(f"{where}: {name!r} must be a list of choices, found {type(cell).__name__}")
    return [parse_text(item.get("text") if isinstance(item, dict) else item, where, name) for item in cell]


def _how_told(known: Sequence[tuple[str, list[str]]]) -> Told:
    """By number, letter or text, as all rows agree; a number or letter that is also the text of a choice is a text."""
    if all(right in [text.strip() for text in texts] for right, texts in known):
        return "text"
    if all(re.fullmatch(r"-?\d+", right) for right, _ in known):
        return "number"
    return "letter" if all(LETTER.fullmatch(right) for right, _ in known) else "text"


def _first(known: Sequence[tuple[str, list[str]]], where: str) -> int:
    """0 or 1: what the first choice is counted as, seen from the numbers that occur."""
    zero = any(int(right) == 0 for right, _ in known)
    beyond = any(int(right) == len(texts) for right, texts in known)
    if zero and beyond:
        raise DataError(
            f"{where} counts choices both from 0 and up to their number: say counted_from=0 or counted_from=1"
        )
    return int(beyond)
