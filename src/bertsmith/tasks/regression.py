"""Regression from user files: one or two texts, one number, such as a similarity or a rating."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.errors import ConfigError
from bertsmith.tasks.dataset_files import NUMBER, ONE_TEXT, TWO_TEXTS, TableConfig, TextReader, parse_number, user_files
from bertsmith.tasks.text_tasks import RegressionTask


@dataclass(frozen=True, kw_only=True)
class Config(TableConfig):
    """Settings of regression; empty columns are detected, and whether there are one or two texts."""

    tuple_columns = (("text", "label"), ("first", "second", "label"), ("text",))

    text: str = ""  # column of the text, if there is one
    first: str = ""  # column of the first text, if there are two
    second: str = ""  # column of the second text, if there are two
    label: str = ""  # column of the number

    def __post_init__(self) -> None:
        if self.text and (self.first or self.second):
            raise ConfigError(
                f"task.text={self.text} is for one text, task.first and task.second are for two: set one or the other"
            )

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> RegressionTask:
        """See `TaskConfig.build`; regression has no labels."""
        texts = [ONE_TEXT] if self.text else [TWO_TEXTS] if self.first or self.second else [TWO_TEXTS, ONE_TEXT]
        read = TextReader(self, user_files("regression", files), texts, NUMBER, parse_number)
        return RegressionTask("regression", read.dataset())
