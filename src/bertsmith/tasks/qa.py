"""Extractive question answering from user files: csv, tsv, jsonl or parquet with columns for question and passage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import (
    ColumnHints,
    TableConfig,
    choose_columns,
    is_missing,
    parse_number,
    parse_text,
    row_ids,
    text_column,
    user_files,
)
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import (
    Misplaced,
    QuestionAnsweringTask,
    ScoringRules,
    locate_answer,
    misplaced_answer,
)
from bertsmith.tasks.tables import Table
from bertsmith.tasks.task import Example

QUESTION: ColumnHints = (("question",), (("question",), ("query",), ("q",)))
CONTEXT: ColumnHints = (
    ("context",),
    (("context",), ("passage",), ("paragraph",), ("document",), ("text",), ("article",), ("body",)),
)
ANSWER: ColumnHints = (("answer",), (("answer",), ("answers",), ("answer_text",), ("gold",), ("target",)))
START: ColumnHints = (("start",), (("start",), ("answer_start",), ("answer_begin",), ("offset",)))


@dataclass(frozen=True, kw_only=True)
class Config(QAConfig, TableConfig):
    """Settings of question answering over user files; empty columns are detected."""

    question: str = ""  # column of the question
    context: str = ""  # column of the passage
    answer: str = ""  # column of the answer: a text, a list of texts, or SQuAD's object with text and answer_start
    start: str = ""  # column of the answer's first character; without one it is the first occurrence
    rules: ScoringRules = "1.1"  # the official script; with 2.0 an empty answer means that there is none
    misplaced: Misplaced = "error"  # for an answer that is not in its passage

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> UserQuestionAnswering:
        """See `TaskConfig.build`; question answering has no labels."""
        return UserQuestionAnswering(self, {split: paths[0] for split, paths in user_files("qa", files).items()})


class UserQuestionAnswering(QuestionAnsweringTask):
    """Questions on passages of user files."""

    config: Config

    def __init__(self, config: Config, files: Mapping[str, Path]) -> None:
        super().__init__(name="qa", config=config, rules=config.rules, files=files)
        self.detected: Mapping[str, str] = {}

    def load(self, path: Path, split: str) -> list[Example]:
        """One example per row; a test file may have no answers."""
        table = self.config.read(path)
        given = {role: getattr(self.config, role) for role in ("question", "context", "answer", "start")}
        optional = ("start", "answer") if split == "test" else ("start",)
        self.detected = choose_columns(table, given, [QUESTION, CONTEXT, ANSWER, START], optional=optional)
        questions, passages = (text_column(table, self.detected[role]) for role in ("question", "context"))
        rows = zip(row_ids(table), questions, passages, strict=True)
        return [self._example(table, row, *texts) for row, texts in enumerate(rows)]

    def _example(self, table: Table, row: int, id: str, question: str, passage: str) -> Example:
        source, columns = table.source(row), self.detected
        if "answer" not in columns:
            return Example(id=id, texts=(question, passage), source=source)
        answer, start = (
            table.rows[row][table.column_index(columns[role])] if role in columns else None
            for role in ("answer", "start")
        )
        golds, spans = [], []
        for text, first in _answers(answer, start, source, columns):
            span = _locate(passage, text, first)
            if span is None and self.config.misplaced == "error":
                raise misplaced_answer(source, passage, text, first)
            golds.append(text)
            spans += [span] if span else []
        if not golds and self.rules != "2.0":
            raise DataError(f"{source}: no answer in {columns['answer']!r}: set rules=2.0 if questions may have none")
        return Example(id=id, texts=(question, passage), gold=tuple(golds), source=source, spans=tuple(spans[:1]))


def _locate(passage: str, text: str, start: int | None) -> tuple[int, int] | None:
    """The span of an answer: at the given start, or its first occurrence."""
    if start is None:
        return locate_answer(passage, text.strip(), passage.find(text.strip()))
    return locate_answer(passage, text, start)


def _answers(cell: Any, start: Any, source: str, columns: Mapping[str, str]) -> Iterator[tuple[str, int | None]]:
    """The answers of a row with their first character, if given."""
    if isinstance(cell, dict):
        cell, start = cell.get("text"), cell.get("answer_start")
    many = cell if isinstance(cell, list) else [] if is_missing(cell) else [cell]
    starts = start if isinstance(start, list) else [start] * min(len(many), 1)
    if isinstance(start, list) and len(starts) != len(many):
        raise DataError(f"{source}: {len(many)} answers but {len(starts)} start offsets")
    for index, item in enumerate(many):
        text, one = item, starts[index] if index < len(starts) else None
        if isinstance(item, dict):
            text, one = item.get("text"), item.get("answer_start")
        number = parse_number(one, source, columns.get("start", "answer_start"))
        if number is not None and number != int(number):
            raise DataError(f"{source}: the start of an answer must be an integer, found {number}")
        yield parse_text(text, source, columns["answer"]), None if number is None else int(number)
