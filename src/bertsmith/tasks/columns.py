"""Which column holds what, named or guessed, and what its cells say: texts, labels, numbers. Knows tables, no task."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks import tables
from bertsmith.tasks.tables import Table, listed

Guess = tuple[
    tuple[str, ...], tuple[tuple[str, ...], ...]
]  # roles, and the names that they have together, likely first

ONE_TEXT: Guess = (
    ("text",),
    tuple(
        (name,)
        for name in (
            *("text", "sentence", "review", "document", "content", "comment", "message", "body", "utterance", "tweet"),
            *("question", "query", "title", "headline", "abstract", "description", "sms", "input"),
        )
    ),
)
TWO_TEXTS: Guess = (
    ("first", "second"),
    (
        ("sentence1", "sentence2"),
        ("premise", "hypothesis"),
        ("question1", "question2"),
        ("question", "sentence"),
        ("text_a", "text_b"),
        ("text1", "text2"),
        ("sentence_a", "sentence_b"),
        ("sentence_1", "sentence_2"),
        ("text_1", "text_2"),
        ("first", "second"),
        ("query", "document"),
        ("query", "passage"),
        ("question", "passage"),
        ("question", "answer"),
        ("claim", "evidence"),
        ("#1 string", "#2 string"),
    ),
)
LABEL: Guess = (
    ("label",),
    tuple(
        (name,)
        for name in (
            *("label", "gold_label", "class", "target", "category", "sentiment", "intent", "topic", "emotion"),
            *("is_duplicate", "stars", "rating", "score", "quality", "y", "labels"),
        )
    ),
)
NUMBER: Guess = (
    ("label",),
    tuple(
        (name,)
        for name in ("score", "label", "similarity", "rating", "stars", "target", "value", "gold", "number", "y")
    ),
)
IDS = ("id", "guid", "idx", "index", "uid")


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """How files of your own are read."""

    header: bool = (
        True  # whether the first line of a csv or tsv names the columns; otherwise they are column1, column2, …
    )
    quoted: bool | None = None  # whether quotes enclose cells; unless said: in csv they do, in tsv they do not

    def table(self, path: Path) -> Table:
        """The table in a file."""
        return tables.read(path, header=self.header, quoted=self.quoted)


def choose(
    table: Table, given: Mapping[str, str], guesses: Sequence[Guess], *, spare: Iterable[str] = ()
) -> dict[str, str]:
    """The column of every role: the one that was given, or else the first likely name that the table has.

    Where one role has no column and one column no role, they belong together. Names are guessed whatever their case.
    A role in `spare` may stay without a column.
    """
    found = {role: column for role, column in given.items() if column}
    for role, column in found.items():
        table.place(column, setting=role)
    for roles, likely in guesses:
        if not any(role in found for role in roles):
            found |= _guessed(table, roles, likely, set(found.values()))
    wanted = [role for roles, _ in guesses for role in roles if role not in spare]
    missing = [role for role in wanted if role not in found]
    left = [name for name in table.columns if name not in found.values() and name.lower() not in IDS]
    if len(missing) == len(left) == 1:
        found[missing.pop()] = left[0]
    for role in missing:
        raise DataError(
            f"{table.name}: no column looks like the {role} among {listed(table.columns)}: name it with "
            f"{role}=COLUMN, or say header=false where the first line is no header (then: column1, column2, …)"
        )
    return found


def fits(table: Table, given: Mapping[str, str], guess: Guess) -> bool:
    """Whether there are columns for all roles of a guess, given or under a likely name."""
    roles, likely = guess
    return all(given.get(role) for role in roles) or bool(_guessed(table, roles, likely, set(given.values())))


def _guessed(
    table: Table, roles: tuple[str, ...], likely: tuple[tuple[str, ...], ...], taken: set[str]
) -> dict[str, str]:
    free = {name.lower(): name for name in reversed(table.columns) if name not in taken}
    for names in likely:
        if all(name in free for name in names):
            chosen = {role: free[name] for role, name in zip(roles, names, strict=True)}
            for role, column in chosen.items():
                table.place(column, setting=role)
            return chosen
    return {}


def ids(table: Table) -> list[str]:
    """The ids of the rows: the file's own where it has a column for them and they differ, or else 0, 1, 2, …."""
    for name in table.columns:
        if name.lower() in IDS and table.columns.count(name) == 1:
            found = [str(cell) for cell in table.column(name)]
            if len(set(found)) == len(found):
                return found
    return [str(row) for row in range(len(table))]


def texts(table: Table, column: str) -> list[str]:
    """The texts of a column; an empty one is a text, a missing one is an error."""
    cells = table.column(column)
    return [
        cell if isinstance(cell, str) else text_of(cell, table.source(row), column) for row, cell in enumerate(cells)
    ]


def text_of(cell: Any, where: str, column: str) -> str:
    """What a cell says as text."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell):
        return str(cell)
    found = "nothing" if is_missing(cell) else type(cell).__name__
    raise DataError(f"{where}: {column!r} must be a text, found {found}")


def label_of(cell: Any, where: str, column: str) -> str | None:
    """What a cell says as the name of a label; None where it is empty. 1, 1.0 and " 1 " are all "1"."""
    if is_missing(cell):
        return None
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, list | dict):
        raise DataError(f"{where}: {column!r} must be one label, found {type(cell).__name__}")
    return str(cell).strip()


def number_of(cell: Any, where: str, column: str) -> float | None:
    """What a cell says as a number; None where it is empty."""
    if is_missing(cell):
        return None
    try:
        number = float(cell)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {column!r} must be a number, found {str(cell)[:40]!r}")
    return number


def is_missing(cell: Any) -> bool:
    """Whether a cell says nothing: no value, white space only, or the nan of a data frame."""
    return cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and cell != cell)
