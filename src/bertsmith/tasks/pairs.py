"""Sentence-pair classification from user files: entailment, paraphrase, relevance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bertsmith.tasks.classification import LabelConfig
from bertsmith.tasks.dataset_files import TWO_TEXTS, ColumnHints


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """Settings of pair classification."""

    task: ClassVar[str] = "pairs"
    texts: ClassVar[ColumnHints] = TWO_TEXTS
    tuple_columns = (("first", "second", "label"), ("first", "second"))

    first: str = ""  # column of the first text; detected if empty
    second: str = ""  # column of the second text; detected if empty
