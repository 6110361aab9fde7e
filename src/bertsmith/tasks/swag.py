"""SWAG (Zellers et al. 2018): which of four endings goes on with a scene; train.csv, val.csv, test.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import benchmark_files, parse_label
from bertsmith.tasks.tables import read_table
from bertsmith.tasks.task import Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
FILES = {"train": [("train.csv",)], "dev": [("val.csv",), ("dev.csv",)], "test": [("test.csv",)]}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of SWAG."""

    beginning: Literal["second", "first"] = "second"  # the text in which the first words of the second sentence stand

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """The task; choices have no labels."""
        places = benchmark_files("swag", files, FILES, inside=("swag", "data", "SWAG/data"))
        return MultipleChoiceTask("swag", files=places, read=self.read)

    def read(self, path: Path, split: str) -> list[Example]:
        """The examples of one file: the sentence before, and four ways in which the next one may go."""
        table = read_table(path)
        scenes, begins = table.column("sent1"), table.column("sent2")
        endings = zip(*(table.column(name) for name in ENDINGS), strict=True)
        rights = table.column("label") if split != "test" or table.has("label") else [None] * len(table)
        found = []
        for row, (scene, begin, ends, right) in enumerate(zip(scenes, begins, endings, rights, strict=True)):
            where = table.source(row)
            if self.beginning == "second":
                texts = (scene, *(f"{begin} {end}" for end in ends))
            else:
                texts = (f"{scene} {begin}", *ends)
            found.append(Example(id=str(row), texts=texts, gold=_right(right, where), source=where))
        return found


def _right(cell: str | None, where: str) -> int | None:
    number = parse_label(cell, where, "label")
    if number is not None and number not in {"0", "1", "2", "3"}:
        raise DataError(f"{where}: label {number[:40]!r} is no number of an ending, 0 to 3")
    return None if number is None else int(number)
