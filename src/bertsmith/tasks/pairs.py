"""Two texts, one label, from your own files: entailment, paraphrase, answer or no answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.tasks.dataset_files import LABEL, TWO_TEXTS, TableConfig, TextReader, parse_label, user_files
from bertsmith.tasks.text_tasks import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of a classification of pairs; columns that are not named are guessed."""

    first: str = ""  # the column of the first text
    second: str = ""  # the column of the second text
    label: str = ""  # the column of the label
    main: Literal["accuracy", "macro_f1", "matthews", "f1"] = "accuracy"  # the score that decides
    positive: str | int = ""  # the label whose F1 is told; of two labels the second, unless another is named

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask:
        """The task; without the labels of a trained model they are those of train."""
        given = {"first": self.first, "second": self.second, "label": self.label}
        places = user_files("pairs", files)
        read = TextReader(self, files=places, given=given, texts=[TWO_TEXTS], label=LABEL, answer=parse_label)
        return ClassificationTask(
            "pairs",
            files=places,
            read=read,
            labels=labels,
            main=self.main,
            measures=("accuracy", "macro_f1", "matthews", "f1"),
            positive=str(self.positive),
            found=read.found,
        )
