"""Text classification: one text, one label, from user files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.tasks.dataset_files import LABEL, ONE_TEXT, ColumnHints, TableConfig, TextReader, parse_label, user_files
from bertsmith.tasks.text_tasks import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class LabelConfig(TableConfig):
    """Settings of classification tasks over user files."""

    label: str = ""  # column of the label; detected if empty
    main_metric: Literal["accuracy", "macro_f1", "matthews", "f1"] = "accuracy"  # selects the best model
    positive: str | int = ""  # the label of the F1 score; by default the second of two labels

    def build_task(
        self, name: str, files: Mapping[str, Path], labels: Sequence[str], given: Mapping[str, str], texts: ColumnHints
    ) -> ClassificationTask:
        """The task; without the labels of a trained model they are those of train."""
        paths = user_files(name, files)
        given = {**given, "label": self.label}
        read = TextReader(self, files=paths, given=given, texts=[texts], label=LABEL, parse=parse_label)
        return ClassificationTask(
            name,
            files=paths,
            read=read,
            labels=labels,
            main_metric=self.main_metric,
            metrics=("accuracy", "macro_f1", "matthews", "f1"),
            positive=str(self.positive),
            detected=read.detected,
        )


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """Settings of text classification."""

    text: str = ""  # column of the text; detected if empty

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask:
        """See `TaskConfig.build`."""
        return self.build_task("classification", files, labels, {"text": self.text}, ONE_TEXT)
