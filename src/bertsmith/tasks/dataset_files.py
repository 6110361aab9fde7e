"""Files of a dataset: where they are, which column has which role, and how cells become texts, labels and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bertsmith.config import did_you_mean
from bertsmith.data.text_files import printable
from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks.tables import (
    FORMATS,
    JSON_ANY,
    JSON_LINES,
    PARQUET,
    Table,
    has_header,
    join_names,
    note_blank_lines,
    read_table,
    table_format,
)
from bertsmith.tasks.task import SPLITS, Dataset, Example, Files

Layout = Mapping[str, Sequence[tuple[str, ...]]]  # by split: alternative sets of file names; the first complete one
ColumnHints = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]  # roles, and likely names for all of them, best first
T = TypeVar("T")

_ENDINGS = [*FORMATS, *JSON_LINES, JSON_ANY, PARQUET, *(f"{ending}.gz" for ending in (".csv", ".tsv", ".jsonl"))]
SPLIT_NAMES = {"train": ["train"], "dev": ["dev", "valid", "validation", "val"], "test": ["test"]}


def split_layout(endings: Iterable[str]) -> Layout:
    """`train`, `dev` (also `valid`, `validation`, `val`) and `test` with any of these endings."""
    known = list(endings)
    return {split: [(name + ending,) for name in names for ending in known] for split, names in SPLIT_NAMES.items()}


USER_LAYOUT = split_layout(_ENDINGS)


def user_files(name: str, files: Mapping[str, Path]) -> Files:
    """User files: by split, or those called train, dev and test in a folder."""
    expected = "train.csv, dev.csv, test.csv (or .tsv, .jsonl, .parquet)"
    return benchmark_files(name, files, USER_LAYOUT, expected=expected)


def benchmark_files(
    name: str, files: Mapping[str, Path], layout: Layout, *, subfolders: Sequence[str] = (), expected: str = ""
) -> Files:
    """The files of a benchmark: by split, or from the folder `files["data"]` or one of its `subfolders`."""
    given = {split: [Path(path)] for split, path in files.items() if split != "data"}
    for split in given:
        if split not in SPLITS:
            raise DataError(f"{name} has no split {split!r}: pass files for {', '.join(SPLITS)}, or data=FOLDER")
    if "data" not in files:
        return given
    folder = Path(files["data"])
    if not folder.is_dir():
        raise DataError(f"{printable(folder)} is not a folder: {name} needs one, or its files by split")
    for candidate in (folder, *(find_subfolder(folder, path) for path in subfolders)):
        present = _present(candidate, layout)
        if present:
            return {**present, **given}
    if given:
        return given
    wanted = expected or ", ".join(" and ".join(names[0]) for names in layout.values())
    where = f" (or in its subfolder {', '.join(subfolders)})" if subfolders else ""
    raise DataError(f"{printable(folder)} has no file of {name}: expected {wanted}{where}")


def _present(folder: Path, layout: Layout) -> Files:
    """The first complete alternative of each split that has one."""
    present: Files = {}
    for split, alternatives in layout.items():
        found = ([folder / name for name in names] for names in alternatives)
        present[split] = next((paths for paths in found if all(path.is_file() for path in paths)), [])
    return {split: paths for split, paths in present.items() if paths}


def find_subfolder(folder: Path, path: str) -> Path:
    """A folder below another one; case, hyphens and underscores are ignored."""
    for part in path.split("/"):
        items = sorted(folder.iterdir()) if folder.is_dir() else []
        folder = next((item for item in items if plain_name(item.name) == plain_name(part)), folder / part)
    return folder


def plain_name(name: str) -> str:
    """A name in lower case without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


def find_member(family: str, name: str, members: Mapping[str, T], *, advice: str = "") -> tuple[str, T]:
    """The member of a benchmark family with its official name."""
    for known, member in members.items():
        if plain_name(known) == plain_name(name):
            return known, member
    near = did_you_mean(name.lower(), members)
    raise ConfigError(f"{name!r} is not a task of {family}: {', '.join(members)}{near}{advice}")


def column_hints(role: str, *names: str) -> ColumnHints:
    """Likely names of the column of one role, best first."""
    return (role,), tuple((name,) for name in names)


ONE_TEXT = column_hints(
    "text",
    *("text", "sentence", "review", "document", "content", "comment", "message", "body", "utterance", "tweet"),
    *("question", "query", "title", "headline", "abstract", "description", "sms", "input"),
)
TWO_TEXTS: ColumnHints = (
    ("first", "second"),
    (
        *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence")),
        *(("text_a", "text_b"), ("text1", "text2"), ("sentence_a", "sentence_b"), ("sentence_1", "sentence_2")),
        *(("text_1", "text_2"), ("first", "second"), ("query", "document"), ("query", "passage")),
        *(("question", "passage"), ("question", "answer"), ("claim", "evidence"), ("#1 string", "#2 string")),
    ),
)
LABEL = column_hints(
    "label",
    *("label", "gold_label", "class", "target", "category", "sentiment", "intent", "topic", "emotion"),
    *("is_duplicate", "stars", "rating", "score", "quality", "y", "labels"),
)
NUMBER = column_hints(
    "label", "score", "label", "similarity", "rating", "stars", "target", "value", "gold", "number", "y"
)
IDS = ("id", "guid", "idx", "index", "uid")
TEXT_ROLES = ("text", "first", "second")  # in the order of `Example.texts`


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """How user files are read."""

    tuple_columns: ClassVar[tuple[tuple[str, ...], ...]] = ()  # columns of rows in memory that are tuples, by length

    # whether line 1 of csv, tsv and txt has the column names; without it they are column1, …; absent: detected
    header: bool | None = None
    quoted: bool | None = None  # whether quotes enclose cells; by default in csv but not in tsv
    encoding: str = "utf-8"  # character encoding of text formats, e.g. cp949

    def read(
        self, path: Path, hints: Sequence[ColumnHints], given: Mapping[str, str], texts: Sequence[ColumnHints] = ()
    ) -> Table:
        """The table of a file. `hints` are those of all roles, `given` the columns of roles that are known.

        `texts`: the alternative text columns of a file that may have nothing else. Such a file without a header has
        them in this order.
        """
        known = {name for _, likely in hints for names in likely for name in names} | {*IDS, *given.values()}
        sizes = {len(roles) for roles, _ in texts}
        test = partial(has_header, path, known=known, text_columns=sizes, role=hints[0][0][0])
        header = test if self.header is None else self.header
        table = read_table(path, header=header, quoted=self.quoted, encoding=self.encoding)
        if texts and len(table.columns) == 1 and table_format(path) == ".txt":
            note_blank_lines(table)
        for roles, _ in texts:
            columns = tuple(given.get(role) or role for role in roles)
            if table.columns[0] == "column1" and len(columns) == len(table.columns) and {*columns} != {*table.columns}:
                return replace(table, columns=columns)
        return table


def choose_columns(
    table: Table, given: Mapping[str, str], hints: Sequence[ColumnHints], *, optional: Iterable[str] = ()
) -> dict[str, str]:
    """The column of each role: the given one, or the first likely name in the table, in any case.

    If exactly one role and one column are left, they match. A role in `optional` may have no column.
    """
    chosen = {role: column for role, column in given.items() if column}
    for role, column in chosen.items():
        table.column_index(column, setting=role)
    for roles, names in hints:
        if not any(role in chosen for role in roles):
            chosen |= _detected(table, roles, names, set(chosen.values()))
    needed = [role for roles, _ in hints for role in roles if role not in optional]
    missing = [role for role in needed if role not in chosen]
    left = [name for name in table.columns if name not in chosen.values() and name.lower() not in IDS]
    if len(missing) == len(left) == 1:
        chosen[missing.pop()] = left[0]
    for role in missing:
        raise _missing_column(table, role, needed)
    return chosen


def _missing_column(table: Table, role: str, needed: Sequence[str]) -> DataError:
    columns = table.columns
    if len(columns) < len(needed):
        found = f"{table.name} has {'only one column' if len(columns) == 1 else f'{len(columns)} columns'}"
        roles = f"{', '.join(needed[:-1])} and {needed[-1]}"
        return DataError(f"{found} ({join_names(columns)}), but {roles} are needed: add them, or choose another file")
    found = f"{table.name}: no column for the {role} among {join_names(columns)}"
    if columns[0] == "column1":
        return DataError(
            f"{found} (the first row is {join_names(list(map(str, table.rows[0])))}): set task.{role}=COLUMN"
        )
    return DataError(
        f"{found}: set task.{role}=COLUMN, or task.header=false if line 1 is not a header (columns are then column1, "
        "column2, …)"
    )


def has_columns(table: Table, given: Mapping[str, str], hints: ColumnHints) -> bool:
    """Whether each role has a column, given or detected."""
    roles, names = hints
    return all(given.get(role) for role in roles) or bool(_detected(table, roles, names, set(given.values())))


def _detected(
    table: Table, roles: tuple[str, ...], likely: tuple[tuple[str, ...], ...], taken: set[str]
) -> dict[str, str]:
    free = {name.lower(): name for name in reversed(table.columns) if name not in taken}
    for names in likely:
        if all(name in free for name in names):
            chosen = {role: free[name] for role, name in zip(roles, names, strict=True)}
            for role, column in chosen.items():
                table.column_index(column, setting=role)
            return chosen
    return {}


@dataclass
class TableReader:
    """Reads user files with tables; what is detected in train applies to the other files."""

    config: TableConfig
    files: Files
    detected: dict[str, str] = field(default_factory=dict, init=False)  # role -> column

    def __call__(self, path: Path, split: str) -> list[Example]:
        if split != "train" and not self.detected and "train" in self.files:
            self(self.files["train"][0], "train")
        optional = ("label",) if split == "test" else ()
        hints = self.hints()
        roles = [role for some, _ in hints for role in some]
        given = {role: self.detected.get(role) or getattr(self.config, role) for role in roles}
        texts = [one for one in hints if set(one[0]) <= {*TEXT_ROLES}] if optional else ()
        return self.examples(self.config.read(path, hints, given, texts), optional)

    def hints(self) -> Sequence[ColumnHints]:
        """The hints of all roles."""
        raise NotImplementedError

    def examples(self, table: Table, optional: tuple[str, ...]) -> list[Example]:
        """One example per row; the roles in `optional` may have no column."""
        raise NotImplementedError

    def given(self, table: Table, roles: Iterable[str], optional: tuple[str, ...]) -> dict[str, str]:
        """The columns of roles that are set or were detected before."""
        given = {role: self.detected.get(role) or getattr(self.config, role) for role in roles}
        return {role: name for role, name in given.items() if name and (role not in optional or table.has(name))}

    def dataset(self) -> Dataset:
        """The dataset that it reads."""
        return Dataset(self.files, self, self.detected)


@dataclass
class TextReader(TableReader):
    """Reads files with one or two texts and a label."""

    texts: Sequence[ColumnHints]  # for the text columns; the first hints that match the table are used
    label: ColumnHints
    parse: Callable[[Any, str, str], Any]

    def hints(self) -> Sequence[ColumnHints]:
        return (*self.texts, self.label)

    def examples(self, table: Table, optional: tuple[str, ...]) -> list[Example]:
        given = self.given(table, [role for roles, _ in (*self.texts, self.label) for role in roles], optional)
        hints = next((hints for hints in self.texts if has_columns(table, given, hints)), self.texts[-1])
        chosen = choose_columns(table, given, [hints, self.label], optional=optional)
        self.detected |= chosen
        texts = [chosen[role] for role in TEXT_ROLES if role in chosen]
        return table_examples(table, texts, chosen.get("label"), self.parse)


def table_examples(
    table: Table, texts: Sequence[str], label: str | None, parse: Callable[[Any, str, str], Any], *, id_prefix: str = ""
) -> list[Example]:
    """One example per row from the columns of its texts and, if there is one, of its label."""
    columns = zip(*(text_column(table, name) for name in texts), strict=True)
    golds: list[Any] = [None] * len(table)
    if label is not None:
        golds = [parse(cell, table.source(row), label) for row, cell in enumerate(table.column(label))]
    return [
        Example(id=id_prefix + own, texts=pair, gold=gold, source=table.source(row))
        for row, (own, pair, gold) in enumerate(zip(row_ids(table), columns, golds, strict=True))
    ]


def row_ids(table: Table) -> list[str]:
    """The ids of the rows: those of an id column if they are unique, otherwise 0, 1, 2, …."""
    for name in table.columns:
        if name.lower() in IDS and table.columns.count(name) == 1:
            ids = [str(cell) for cell in table.column(name)]
            if len(set(ids)) == len(ids):
                return ids
    return [str(row) for row in range(len(table))]


def text_column(table: Table, column: str) -> list[str]:
    """The texts of a column; a text may be empty, a missing one is an error."""
    return [parse_text(cell, table.source(row), column) for row, cell in enumerate(table.column(column))]


def parse_text(cell: Any, where: str, column: str) -> str:
    """A cell as text."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int | float) and not isinstance(cell, bool) and math.isfinite(cell):
        return str(cell)
    found = "no value" if is_missing(cell) else type(cell).__name__
    raise DataError(f"{where}: {column!r} must be a text, found {found}")


def parse_label(cell: Any, where: str, column: str) -> str | None:
    """A cell as class name; None if it is empty. 1, 1.0 and " 1 " are all "1"."""
    if is_missing(cell):
        return None
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, list | dict):
        advice = ": for several labels use the task multi_label" if isinstance(cell, list) else ""
        raise DataError(f"{where}: {column!r} must be one label, found a {'list' if advice else 'table'}{advice}")
    return str(cell).strip()


def parse_number(cell: Any, where: str, column: str) -> float | None:
    """A cell as number; None if it is empty."""
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
    """Whether a cell is empty: no value, white space only, or the nan of a data frame."""
    return cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and cell != cell)
