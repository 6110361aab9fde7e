"""CODAH (Chen et al. 2019): sentence completion with four choices, in five folds for cross-validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import ConfigError, DataError
from bertsmith.tasks.dataset_files import benchmark_files
from bertsmith.tasks.tables import read_table
from bertsmith.tasks.task import Dataset, Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

COLUMNS = ("category", "prompt", "0", "1", "2", "3", "label")
FILES = {"train": [("train.tsv",)], "dev": [("dev.tsv",)], "test": [("test.tsv",)]}
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of CODAH."""

    fold: int = 0  # 0 to 4; the published score is the mean over the five folds

    def __post_init__(self) -> None:
        if not 0 <= self.fold < FOLDS:
            raise ConfigError(f"task.fold={self.fold} must be 0 to {FOLDS - 1}")

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """See `TaskConfig.build`; multiple choice has no labels."""
        fold = f"fold_{self.fold}"
        subfolders = (fold, f"cv_split/{fold}", f"data/cv_split/{fold}", f"codah/data/cv_split/{fold}")
        paths = benchmark_files("codah", files, FILES, subfolders=subfolders)
        return MultipleChoiceTask("codah", Dataset(paths, _read))


def _read(path: Path, split: str) -> list[Example]:
    table = read_table(path, columns=COLUMNS)
    examples = []
    for row, (_, prompt, *choices, label) in enumerate(table.rows):
        where = table.source(row)
        if label.strip() not in {"0", "1", "2", "3"}:
            raise DataError(f"{where}: the last cell, {label[:40]!r}, is not the number of a choice, 0 to 3")
        examples.append(Example(id=str(row), texts=(prompt, *choices), gold=int(label), source=where))
    return examples
