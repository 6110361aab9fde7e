"""Text classification: one text, one label, from user files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bertsmith.tasks.dataset_files import LABEL, ONE_TEXT, ColumnHints, TableConfig, TextReader, parse_label, user_files
from bertsmith.tasks.text_tasks import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class LabelConfig(TableConfig):
    """Settings of classification tasks over user files."""

    task: ClassVar[str]
    texts: ClassVar[ColumnHints]

    label: str = ""  # column of the label; detected if empty
    positive: str = ""  # the positive label of the F1 score; by default the second of two labels

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask:
        """See `TaskConfig.build`; without the labels of a trained model they are those of train."""
        return ClassificationTask(
            self.task,
            TextReader(self, user_files(self.task, files), [self.texts], LABEL, parse_label).dataset(),
            labels=labels,
            metrics=("accuracy", "macro_f1", "matthews", "f1"),
            positive=self.positive,
        )


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """Settings of text classification."""

    task: ClassVar[str] = "classification"
    texts: ClassVar[ColumnHints] = ONE_TEXT
    tuple_columns = (("text", "label"), ("text",))

    text: str = ""  # column of the text; detected if empty
