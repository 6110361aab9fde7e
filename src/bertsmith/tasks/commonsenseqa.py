"""CommonsenseQA (Talmor et al. 2019): a question and five choices with letters, as JSON lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import benchmark_files, parse_text
from bertsmith.tasks.tables import join_names, read_table
from bertsmith.tasks.task import Dataset, Example
from bertsmith.tasks.text_tasks import MultipleChoiceTask

FILES = {
    "train": [("train.jsonl",), ("train_rand_split.jsonl",)],
    "dev": [("valid.jsonl",), ("dev.jsonl",), ("dev_rand_split.jsonl",)],
    "test": [("test.jsonl",), ("test_rand_split_no_answers.jsonl",)],
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """CommonsenseQA has no settings."""

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> MultipleChoiceTask:
        """See `TaskConfig.build`; multiple choice has no labels."""
        paths = benchmark_files("commonsenseqa", files, FILES, subfolders=("commonsenseqa",))
        return MultipleChoiceTask("commonsenseqa", Dataset(paths, _read))


def _read(path: Path, split: str) -> list[Example]:
    table = read_table(path)
    labels = table.column("answerKey") if table.has("answerKey") else [None] * len(table)
    rows = zip(table.column("id"), table.column("question"), labels, strict=True)
    return [_example(table.source(row), own, question, label) for row, (own, question, label) in enumerate(rows)]


def _example(where: str, own: Any, question: Any, label: Any) -> Example:
    if not isinstance(question, dict) or not isinstance(question.get("choices"), list):
        raise DataError(f"{where}: 'question' must be an object with 'stem' and a list of 'choices'")
    choices = [choice if isinstance(choice, dict) else {} for choice in question["choices"]]
    letters = [str(choice.get("label")) for choice in choices]
    if label is not None and label not in letters:
        raise DataError(f"{where}: answerKey {str(label)[:40]!r} is not one of the choices {join_names(letters)}")
    texts = [parse_text(choice.get("text"), where, "text") for choice in choices]
    return Example(
        id=str(own),
        texts=(parse_text(question.get("stem"), where, "stem"), *texts),
        gold=None if label is None else letters.index(label),
        source=where,
    )
