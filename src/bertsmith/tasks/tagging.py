"""Tags or entities of your own: column files, or tables with words and tags or with texts and entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import ConfigError
from bertsmith.tasks import tables
from bertsmith.tasks.places import Layout, benchmark_files
from bertsmith.tasks.tables import JSON_ANY, JSON_LINES, PARQUET, shown
from bertsmith.tasks.tagged import column_files, table_rows
from bertsmith.tasks.tagged.column_files import Columns
from bertsmith.tasks.tagged.manner import Manner
from bertsmith.tasks.tagged.sentences import Sentence, Unit
from bertsmith.tasks.tagged.tagging_task import Tagging

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
class Config(Manner):
    """Settings for files of your own; a column that is not named is guessed."""

    words: str = ""  # the column of the words: a name, or in column files a number; the first one there
    tags: str = ""  # the column of the tags: a name, or in column files a number; the last one there
    text: str = ""  # tables: the column of the text; beside words, the text in which they stand
    entities: str = ""  # tables: the column of the entities, by character
    document: str = ""  # tables: the column that says which document a row is of
    comment: str = ""  # column files: what a line begins with that is neither word nor end of sentence
    unit: Unit = "word"  # what gets a tag where a file gives texts and no words, and when a model is used

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> Tagging:
        """The task; without the labels of a trained model the types are those of train."""
        found: dict[str, str] = {}

        def load(path: Path, split: str) -> list[Sentence]:
            if path.suffix.lower() not in TABLES:
                columns = Columns(self._number("words", path) - 1, self._number("tags", path) - 1, self.comment)
                return column_files.read(path, columns, tagged=split != "test")
            given = {role: getattr(self, role) for role in table_rows.ROLES}
            sentences, chosen = table_rows.read(tables.read(path), given, self.unit, tagged=split != "test")
            found[f"{split}: columns"] = table_rows.told(chosen)
            return sentences

        expected = "train.conll, dev.conll, test.conll (or .bio, .iob, .txt, .tsv, .jsonl, .parquet)"
        return Tagging(
            "tagging",
            files=benchmark_files("tagging", files, LAYOUT, expected=expected),
            load=load,
            manner=self,
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
