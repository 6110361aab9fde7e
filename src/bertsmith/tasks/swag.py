"""SWAG (Zellers et al. 2018): which of four endings continues a scene; train.csv, val.csv, test.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import benchmark_files, parse_label
from bertsmith.tasks.tables import read_table
from bertsmith.tasks.task import Dataset, Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

ENDINGS = ("ending0", "ending1", "ending2", "ending3")
FILES = {"train": [("train.csv",)], "dev": [("val.csv",), ("dev.csv",)], "test": [("test.csv",)]}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of SWAG."""

    beginning: Literal["second", "first"] = "second"  # the text that gets the first words of the second sentence

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """See `TaskConfig.build`; multiple choice has no labels."""
        paths = benchmark_files("swag", files, FILES, subfolders=("swag", "data", "SWAG/data"))
        return MultipleChoiceTask("swag", Dataset(paths, self.read))

    def read(self, path: Path, split: str) -> list[Example]:
        """The examples of one file: a sentence and four candidates for the next one."""
        table = read_table(path)
        scenes, begins = table.column("sent1"), table.column("sent2")
        endings = zip(*(table.column(name) for name in ENDINGS), strict=True)
        labels = table.column("label") if split != "test" or table.has("label") else [None] * len(table)
        examples = []
        for row, (scene, begin, ends, label) in enumerate(zip(scenes, begins, endings, labels, strict=True)):
            where = table.source(row)
            if self.beginning == "second":
                texts = (scene, *(f"{begin} {end}" for end in ends))
            else:
                texts = (f"{scene} {begin}", *ends)
            examples.append(Example(id=str(row), texts=texts, gold=_gold(label, where), source=where))
        return examples


def _gold(cell: str | None, where: str) -> int | None:
    label = parse_label(cell, where, "label")
    if label is not None and label not in {"0", "1", "2", "3"}:
        raise DataError(f"{where}: label {label[:40]!r} is not the number of an ending, 0 to 3")
    return None if label is None else int(label)
