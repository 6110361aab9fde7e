"""One text, one label, from your own files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.tasks.dataset_files import LABEL, ONE_TEXT, TableConfig, TextReader, parse_label, user_files
from bertsmith.tasks.text_tasks import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of a classification; a column that is not named is guessed."""

    text: str = ""  # the column of the text
    label: str = ""  # the column of the label
    main: Literal["accuracy", "macro_f1", "matthews", "f1"] = "accuracy"  # the score that decides
    positive: str | int = ""  # the label whose F1 is told; of two labels the second, unless another is named

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask:
        """The task; without the labels of a trained model they are those of train."""
        given = {"text": self.text, "label": self.label}
        places = user_files("classification", files)
        read = TextReader(self, files=places, given=given, texts=[ONE_TEXT], label=LABEL, answer=parse_label)
        return ClassificationTask(
            "classification",
            files=places,
            read=read,
            labels=labels,
            main=self.main,
            measures=("accuracy", "macro_f1", "matthews", "f1"),
            positive=str(self.positive),
            found=read.found,
        )
