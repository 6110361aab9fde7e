"""Where the files of a task lie: given one by one, or under the names that a folder has for them. Knows no task.

Which column holds what, named or guessed, and what its cells say: texts, labels, numbers. Knows tables, no task.

Examples of one or two texts from somebody's own table, whose columns are named or guessed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks.tables import FORMATS, JSON_ANY, JSON_LINES, PARQUET, Table, listed, read_table, shown
from bertsmith.tasks.task import SPLITS, Example

Files = dict[str, list[Path]]  # by split
Layout = Mapping[
    str, Sequence[tuple[str, ...]]
]  # by split: sets of file names, of which the first that is there counts

_ENDINGS = [*FORMATS, *JSON_LINES, JSON_ANY, PARQUET, *(f"{ending}.gz" for ending in (".csv", ".tsv", ".jsonl"))]
OWN: Layout = {
    split: [(name + ending,) for name in names for ending in _ENDINGS]
    for split, names in {
        "train": ["train"],
        "dev": ["dev", "valid", "validation", "val"],
        "test": ["test"],
    }.items()
}


def user_files(name: str, files: Mapping[str, Path]) -> Files:
    """The files of somebody's own data: by split, or `train`, `dev` (also `valid`, `validation`, `val`), `test`."""
    return benchmark_files(name, files, OWN, expected="train.csv, dev.csv, test.csv (or .tsv, .jsonl, .parquet)")


def benchmark_files(
    name: str, files: Mapping[str, Path], layout: Layout, *, inside: Sequence[str] = (), expected: str = ""
) -> Files:
    """The files of a benchmark: by split, or from its folder, which may be `files["data"]` or lie `inside` it."""
    found = {split: [Path(path)] for split, path in files.items() if split != "data"}
    for split in found:
        if split not in SPLITS:
            raise DataError(f"{name} has no split {split!r}: its files are {', '.join(SPLITS)}, or data=FOLDER")
    if "data" not in files:
        return found
    folder = Path(files["data"])
    if not folder.is_dir():
        raise DataError(f"{shown(folder)} is no folder: {name} needs one, or its files by name")
    for place in (folder, *(find_subfolder(folder, path) for path in inside)):
        there = _in(place, layout)
        if there:
            return {**there, **found}
    if found:
        return found
    wanted = expected or ", ".join(" and ".join(sets[0]) for sets in layout.values())
    where = f" (or in {', '.join(inside)} there)" if inside else ""
    raise DataError(f"{shown(folder)} has no file of {name}: expected {wanted}{where}")


def _in(folder: Path, layout: Layout) -> Files:
    found: Files = {}
    for split, sets in layout.items():
        for names in sets:
            paths = [folder / name for name in names]
            if all(path.is_file() for path in paths):
                found[split] = paths
                break
    return found


def find_subfolder(folder: Path, path: str) -> Path:
    """A folder below another; upper and lower case and hyphens do not matter."""
    here = folder
    for part in path.split("/"):
        there = sorted(item for item in here.iterdir() if _plain(item.name) == _plain(part)) if here.is_dir() else []
        here = there[0] if there else here / part
    return here


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


ColumnHints = tuple[
    tuple[str, ...], tuple[tuple[str, ...], ...]
]  # roles, and the names that they have together, likely first

ONE_TEXT: ColumnHints = (
    ("text",),
    tuple(
        (name,)
        for name in (
            *("text", "sentence", "review", "document", "content", "comment", "message", "body", "utterance", "tweet"),
            *("question", "query", "title", "headline", "abstract", "description", "sms", "input"),
        )
    ),
)
TWO_TEXTS: ColumnHints = (
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
LABEL: ColumnHints = (
    ("label",),
    tuple(
        (name,)
        for name in (
            *("label", "gold_label", "class", "target", "category", "sentiment", "intent", "topic", "emotion"),
            *("is_duplicate", "stars", "rating", "score", "quality", "y", "labels"),
        )
    ),
)
NUMBER: ColumnHints = (
    ("label",),
    tuple(
        (name,)
        for name in ("score", "label", "similarity", "rating", "stars", "target", "value", "gold", "number", "y")
    ),
)
IDS = ("id", "guid", "idx", "index", "uid")


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """How files of your own are read."""

    header: bool = (
        True  # whether the first line of a csv or tsv names the columns; otherwise they are column1, column2, …
    )
    quoted: bool | None = None  # whether quotes enclose cells; unless said: in csv they do, in tsv they do not

    def table(self, path: Path) -> Table:
        """The table in a file."""
        return read_table(path, header=self.header, quoted=self.quoted)


def choose_columns(
    table: Table, given: Mapping[str, str], guesses: Sequence[ColumnHints], *, spare: Iterable[str] = ()
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


def has_columns(table: Table, given: Mapping[str, str], guess: ColumnHints) -> bool:
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


def row_ids(table: Table) -> list[str]:
    """The ids of the rows: the file's own where it has a column for them and they differ, or else 0, 1, 2, …."""
    for name in table.columns:
        if name.lower() in IDS and table.columns.count(name) == 1:
            found = [str(cell) for cell in table.column(name)]
            if len(set(found)) == len(found):
                return found
    return [str(row) for row in range(len(table))]


def text_column(table: Table, column: str) -> list[str]:
    """The texts of a column; an empty one is a text, a missing one is an error."""
    cells = table.column(column)
    return [
        cell if isinstance(cell, str) else parse_text(cell, table.source(row), column) for row, cell in enumerate(cells)
    ]


def parse_text(cell: Any, where: str, column: str) -> str:
    """What a cell says as text."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell):
        return str(cell)
    found = "nothing" if is_missing(cell) else type(cell).__name__
    raise DataError(f"{where}: {column!r} must be a text, found {found}")


def parse_label(cell: Any, where: str, column: str) -> str | None:
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


def parse_number(cell: Any, where: str, column: str) -> float | None:
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


TEXTS = ("text", "first", "second")  # roles that hold texts, in the order in which they are asked


class TextReader:
    """Reads files one after another: what was guessed of one file, of train where there is one, holds for the others.

    `texts`: what the texts may be called; of several such guesses the first counts for which there are columns.
    """

    def __init__(
        self,
        settings: TableConfig,
        *,
        files: Files,
        given: Mapping[str, str],
        texts: Sequence[ColumnHints],
        label: ColumnHints,
        answer: Callable[[Any, str, str], Any],
    ) -> None:
        self.settings = settings
        self.found: dict[str, str] = {}  # role -> column
        self._files = files
        self._given = given
        self._texts = texts
        self._label = label
        self._answer = answer

    def __call__(self, path: Path, split: str) -> list[Example]:
        if split != "train" and not self.found and "train" in self._files:
            self(self._files["train"][0], "train")
        table = self.settings.table(path)
        given = {role: name for role, name in (dict(self._given) | self.found).items() if name}
        spare = ("label",) if split == "test" else ()  # nobody may know the answers yet
        given = {role: name for role, name in given.items() if role not in spare or table.has(name)}
        guess = next((guess for guess in self._texts if has_columns(table, given, guess)), self._texts[-1])
        chosen = choose_columns(table, given, [guess, self._label], spare=spare)
        self.found |= chosen
        asked = zip(*(text_column(table, chosen[role]) for role in TEXTS if role in chosen), strict=True)
        answers: list[Any] = [None] * len(table)
        if name := chosen.get("label"):
            answers = [self._answer(cell, table.source(row), name) for row, cell in enumerate(table.column(name))]
        return [
            Example(id=own, texts=texts, gold=gold, source=table.source(row))
            for row, (own, texts, gold) in enumerate(zip(row_ids(table), asked, answers, strict=True))
        ]
