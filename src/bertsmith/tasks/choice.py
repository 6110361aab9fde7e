"""Multiple choice from user files; the label is an index, a letter or the text of a choice."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertsmith.errors import DataError
from bertsmith.tasks import dataset_files
from bertsmith.tasks.dataset_files import (
    ColumnHints,
    TableConfig,
    TableReader,
    column_hints,
    is_missing,
    parse_label,
    parse_text,
)
from bertsmith.tasks.tables import Table, join_names
from bertsmith.tasks.task import Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

QUESTION = column_hints(
    "question", "question", "context", "prompt", "stem", "startphrase", "sentence", "premise", "text"
)
LABEL = column_hints("label", "label", "answer", "answerkey", "answer_key", "gold", "correct", "right", "target")
LISTS = ("choices", "options", "endings", "answers", "candidates")
NUMBERED = re.compile(
    r"(?:choice|option|ending|answer|candidate|hypothesis)[ _-]?(?:[0-9]+|[a-z])|[a-z]", re.IGNORECASE
)
LETTER = re.compile("[A-Za-z]")
LabelFormat = Literal["number", "letter", "text"]
Labelled = Sequence[tuple[str, list[str]]]  # label and choices of each labelled row


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of multiple choice; empty columns are detected."""

    tuple_columns = (("question", "choices", "label"), ("question", "choices"))

    question: str = ""  # column of the question
    choices: tuple[str, ...] = ()  # columns of the choices, or the one column with a list of them
    label: str = ""  # column of the label
    label_format: Literal["auto", "number", "letter", "text"] = "auto"  # how the label names a choice
    first_index: Literal["auto", 0, 1] = "auto"  # the number of the first choice

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """See `TaskConfig.build`; multiple choice has no labels."""
        return MultipleChoiceTask("choice", ChoiceReader(self, dataset_files.user_files("choice", files)).dataset())


@dataclass
class ChoiceReader(TableReader):
    """Reads files with questions and choices."""

    config: Config

    def __post_init__(self) -> None:
        self._choices = self.config.choices

    def hints(self) -> Sequence[ColumnHints]:
        return QUESTION, LABEL

    def examples(self, table: Table, optional: tuple[str, ...]) -> list[Example]:
        self._choices = self._choices or _choice_columns(table, {self.config.question, self.config.label})
        given = self.given(table, ("question", "label"), optional)
        for column in self._choices:
            table.column_index(column)
        taken = {f"choice {index}": name for index, name in enumerate(self._choices)}
        chosen = dataset_files.choose_columns(table, given | taken, [QUESTION, LABEL], optional=optional)
        self.detected |= {role: chosen[role] for role in ("question", "label") if role in chosen}
        self.detected["choices"] = ", ".join(self._choices)
        questions, choices = dataset_files.text_column(table, chosen["question"]), self._all_choices(table)
        golds = self._golds(table, chosen["label"], choices) if "label" in chosen else [None] * len(table)
        rows = zip(dataset_files.row_ids(table), questions, choices, golds, strict=True)
        return [
            Example(id=own, texts=(question, *texts), gold=gold, source=table.source(row))
            for row, (own, question, texts, gold) in enumerate(rows)
        ]

    def _all_choices(self, table: Table) -> list[list[str]]:
        """The choices of each row; trailing empty cells mean that a question has fewer."""
        names = self._choices
        if len(names) == 1:
            return [_list_cell(cell, table.source(row), names[0]) for row, cell in enumerate(table.column(names[0]))]
        choices = []
        for row, cells in enumerate(zip(*(table.column(name) for name in names), strict=True)):
            present = [index for index, cell in enumerate(cells) if not is_missing(cell)]
            where = table.source(row)
            if present != list(range(len(present))):
                gap = next(index for index in range(len(names)) if index not in present)
                raise DataError(f"{where}: {names[gap]!r} is empty, but a later choice is not")
            choices.append([parse_text(cells[index], where, names[index]) for index in present])
        return choices

    def _golds(self, table: Table, name: str, choices: list[list[str]]) -> list[int | None]:
        labels = [parse_label(cell, table.source(row), name) for row, cell in enumerate(table.column(name))]
        labelled = [(label, texts) for label, texts in zip(labels, choices, strict=True) if label is not None]
        if not labelled:
            return [None] * len(labels)
        if "label_format" not in self.detected:
            given = self.config.label_format
            self.detected["label_format"] = given if given != "auto" else _label_format(labelled)
        if self.detected["label_format"] == "number" and "first_index" not in self.detected:
            first = self.config.first_index
            where = f"{table.name}: column {name!r}"
            self.detected["first_index"] = str(_first_index(labelled, where) if first == "auto" else first)
        return [
            None if label is None else self._index(label, texts, table.source(row))
            for row, (label, texts) in enumerate(zip(labels, choices, strict=True))
        ]

    def _index(self, label: str, texts: Sequence[str], where: str) -> int:
        form = self.detected["label_format"]
        if form == "text":
            stripped = [text.strip() for text in texts]
            if stripped.count(label) != 1:
                why = "is not one of the choices" if label not in stripped else "occurs twice among the choices"
                raise DataError(f"{where}: the label {label[:40]!r} {why} ({join_names(stripped)})")
            return stripped.index(label)
        if form == "letter":
            index = ord(label.upper()) - ord("A") if LETTER.fullmatch(label) else -1
        else:
            index = int(label) - int(self.detected["first_index"]) if re.fullmatch(r"-?\d+", label) else -1
        if not 0 <= index < len(texts):
            what = "letter" if form == "letter" else f"number, counted from {self.detected['first_index']},"
            raise DataError(f"{where}: {label[:40]!r} is not a {what} of one of the {len(texts)} choices")
        return index


def _choice_columns(table: Table, taken: set[str]) -> tuple[str, ...]:
    free = [name for name in table.columns if name and name not in taken]
    for name in LISTS:
        for column in free:
            if column.lower() == name:
                return (column,)
    numbered = tuple(name for name in free if NUMBERED.fullmatch(name))
    if len(numbered) < 2:
        raise DataError(
            f"{table.name}: no columns for the choices among {join_names(table.columns)}: expected choices, or "
            "ending0, ending1, …, or A, B, …; set 'task.choices=[\"COLUMN\", …]'"
        )
    return numbered


def _list_cell(cell: Any, where: str, name: str) -> list[str]:
    """A list of texts, of objects with a `text`, or an object with a list of texts."""
    if isinstance(cell, dict) and isinstance(cell.get("text"), list):
        cell = cell["text"]
    if not isinstance(cell, list):
        raise DataError(f"{where}: {name!r} must be a list of choices, found {type(cell).__name__}")
    return [parse_text(item.get("text") if isinstance(item, dict) else item, where, name) for item in cell]


def _label_format(labelled: Labelled) -> LabelFormat:
    """The format that fits all rows; a number or letter that is also the text of a choice is a text."""
    if all(label in [text.strip() for text in texts] for label, texts in labelled):
        return "text"
    if all(re.fullmatch(r"-?\d+", label) for label, _ in labelled):
        return "number"
    return "letter" if all(LETTER.fullmatch(label) for label, _ in labelled) else "text"


def _first_index(labelled: Labelled, where: str) -> int:
    """0 or 1: the number of the first choice, from the numbers that occur."""
    zero = any(int(label) == 0 for label, _ in labelled)
    beyond = any(int(label) == len(texts) for label, texts in labelled)
    if zero and beyond:
        raise DataError(
            f"{where} has both 0 and the number of choices: set task.first_index=0 or task.first_index=1 to see the "
            "wrong row"
        )
    return int(beyond)
