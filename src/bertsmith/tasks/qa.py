"""Extractive question answering from user files: csv, tsv, jsonl or parquet with columns for question and passage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks import dataset_files
from bertsmith.tasks.dataset_files import ColumnHints, TableConfig, column_hints, is_missing, parse_number, parse_text
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import Misplaced, QuestionAnsweringTask, ScoringRules, locate_answers
from bertsmith.tasks.tables import JSON_ANY, Table, read_whole, table_format
from bertsmith.tasks.task import Dataset, Example

COLUMNS = {
    "question": column_hints("question", "question", "query", "q"),
    "context": column_hints("context", "context", "passage", "paragraph", "document", "text", "article", "body"),
    "answer": column_hints("answer", "answer", "answers", "answer_text", "gold", "target"),
    "start": column_hints("start", "start", "answer_start", "answer_begin", "offset"),
}
TEXTS: ColumnHints = (("question", "context"), ())


@dataclass(frozen=True, kw_only=True)
class Config(QAConfig, TableConfig):
    """Settings of question answering over user files; empty columns are detected."""

    tuple_columns = (("question", "context", "answer"), ("question", "context"))

    question: str = ""  # column of the question
    context: str = ""  # column of the passage
    answer: str = ""  # column of the answer: a text, a list of texts, or SQuAD's object with text and answer_start
    start: str = ""  # column of the answer's first character; without one it is the first occurrence
    rules: ScoringRules = "1.1"  # those of the official script; with 2.0 an empty answer means that there is none
    misplaced: Misplaced = "error"  # an answer that is not in its passage; skip: it is not trained on

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> QuestionAnsweringTask:
        """See `TaskConfig.build`; question answering has no labels."""
        detected: dict[str, str] = {}
        dataset = Dataset(dataset_files.user_files("qa", files), partial(self._read, detected), detected)
        return QuestionAnsweringTask("qa", dataset, config=self, rules=self.rules)

    def _read(self, detected: dict[str, str], path: Path, split: str) -> list[Example]:
        """One example per row; a test file may have no answers."""
        given = {role: getattr(self, role) for role in COLUMNS}
        texts = [TEXTS] if split == "test" else []
        optional = ("start", "answer") if split == "test" else ("start",)
        try:
            table = self.read(path, list(COLUMNS.values()), given, texts)
            columns = dataset_files.choose_columns(table, given, list(COLUMNS.values()), optional=optional)
        except DataError as error:
            raise _squad_error(path) or error from None
        detected.clear()
        detected |= columns
        questions, passages = (dataset_files.text_column(table, columns[role]) for role in ("question", "context"))
        rows = zip(dataset_files.row_ids(table), questions, passages, strict=True)
        return [self._example(table, columns, row, *texts) for row, texts in enumerate(rows)]

    def _example(
        self, table: Table, columns: Mapping[str, str], row: int, id: str, question: str, passage: str
    ) -> Example:
        source = table.source(row)
        if "answer" not in columns:
            return Example(id=id, texts=(question, passage), source=source)
        answer, start = (
            table.rows[row][table.column_index(columns[role])] if role in columns else None
            for role in ("answer", "start")
        )
        gold, spans = locate_answers(passage, _answers(answer, start, source, columns), source, self.misplaced)
        if not gold and self.rules != "2.0":
            raise DataError(
                f"{source}: no answer in {columns['answer']!r}: set task.rules=2.0 if questions may have none"
            )
        return Example(id=id, texts=(question, passage), gold=gold, source=source, spans=spans)


def _squad_error(path: Path) -> DataError | None:
    """The error for a file in the format of SQuAD, which is not a table; None for other files."""
    with suppress(DataError, ValueError, RecursionError):
        text = read_whole(path, str(path))
        content = json.loads(text) if table_format(path) == JSON_ANY else None
        if isinstance(content, dict) and isinstance(content.get("data"), list):
            version = "2.0" if '"is_impossible"' in text else "1.1"
            return DataError(f"{path} is a SQuAD file, not a table of questions: pass --task squad/{version}")
    return None


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
