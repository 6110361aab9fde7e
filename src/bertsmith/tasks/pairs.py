"""Sentence-pair classification from user files: entailment, paraphrase, relevance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.tasks.classification import LabelConfig
from bertsmith.tasks.dataset_files import TWO_TEXTS
from bertsmith.tasks.text_tasks import ClassificationTask


@dataclass(frozen=True, kw_only=True)
class Config(LabelConfig):
    """Settings of pair classification."""

    first: str = ""  # column of the first text; detected if empty
    second: str = ""  # column of the second text; detected if empty

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> ClassificationTask:
        """See `TaskConfig.build`."""
        return self.build_task("pairs", files, labels, {"first": self.first, "second": self.second}, TWO_TEXTS)
