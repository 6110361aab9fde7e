"""One or two texts, one number, from your own files: similarity, stars, prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertsmith.errors import ConfigError
from bertsmith.tasks.dataset_files import NUMBER, ONE_TEXT, TWO_TEXTS, TableConfig, TextReader, parse_number, user_files
from bertsmith.tasks.text_tasks import RegressionTask


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of a regression; columns that are not named are guessed, and so is whether there are two texts."""

    text: str = ""  # the column of the text, where there is one
    first: str = ""  # the column of the first text, where there are two
    second: str = ""  # the column of the second text, where there are two
    label: str = ""  # the column of the number
    main: Literal["pearson", "spearman"] = "pearson"  # the score that decides

    def __post_init__(self) -> None:
        if self.text and (self.first or self.second):
            raise ConfigError(
                f"text={self.text} is for one text and first=, second= are for two: name one or the other"
            )

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> RegressionTask:
        """The task; numbers have no labels."""
        given = {"text": self.text, "first": self.first, "second": self.second, "label": self.label}
        either = [ONE_TEXT] if self.text else [TWO_TEXTS] if self.first or self.second else [TWO_TEXTS, ONE_TEXT]
        places = user_files("regression", files)
        read = TextReader(self, files=places, given=given, texts=either, label=NUMBER, answer=parse_number)
        return RegressionTask("regression", files=places, read=read, main=self.main, found=read.found)
