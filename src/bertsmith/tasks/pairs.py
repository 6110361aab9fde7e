"""Two texts, one label, from your own files: entailment, paraphrase, answer or no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.tasks.columns import LABEL, TWO_TEXTS, FileSettings, label_of
from bertsmith.tasks.labelled import LabelTask
from bertsmith.tasks.own_columns import OwnColumns
from bertsmith.tasks.places import own_files


@dataclass(frozen=True, kw_only=True)
class Config(FileSettings):
    """Settings of a classification of pairs; columns that are not named are guessed."""

    first: str = ""  # the column of the first text
    second: str = ""  # the column of the second text
    label: str = ""  # the column of the label
    main: Literal["accuracy", "macro_f1", "matthews", "f1"] = "accuracy"  # the score that decides
    positive: str | int = ""  # the label whose F1 is told; of two labels the second, unless another is named

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> LabelTask:
        """The task; without the labels of a trained model they are those of train."""
        given = {"first": self.first, "second": self.second, "label": self.label}
        places = own_files("pairs", files)
        read = OwnColumns(self, files=places, given=given, texts=[TWO_TEXTS], label=LABEL, answer=label_of)
        return LabelTask(
            "pairs",
            files=places,
            read=read,
            labels=labels,
            main=self.main,
            measures=("accuracy", "macro_f1", "matthews", "f1"),
            positive=str(self.positive),
            found=read.found,
        )
