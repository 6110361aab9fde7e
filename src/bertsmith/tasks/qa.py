"""Questions, passages and answers in files of your own: csv, tsv, jsonl or parquet with a column for each."""

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
from bertsmith.tasks.question_answering import Misplaced, QuestionAnsweringTask, ScoringRules, place, wrong_place
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
    """Files of your own."""

    question: str = ""  # the column with the question; guessed by its name where it is not said
    context: str = ""  # the column with the passage
    answer: str = (
        ""  # the column with the answer: a text, a list of texts, or SQuAD's object with text and answer_start
    )
    start: str = ""  # the column with the first character of the answer; without one it is where the text occurs first
    rules: ScoringRules = "1.1"  # whose scores are given: with those of 2.0 an empty answer means that there is none
    misplaced: Misplaced = "refuse"  # an answer that is not in its passage: an error, or not trained on

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> QuestionAnswering:
        """The task over files by split, or over those called train, dev and test in the folder under `data`."""
        return QuestionAnswering(self, {split: paths[0] for split, paths in user_files("qa", files).items()})


class QuestionAnswering(QuestionAnsweringTask):
    """Questions on passages of your own."""

    config: Config

    def __init__(self, config: Config, files: Mapping[str, Path]) -> None:
        super().__init__(name="qa", config=config, rules=config.rules, files=files)
        self.detected: Mapping[str, str] = {}

    def load(self, path: Path, split: str) -> list[Example]:
        """One example for each row; a test file may lack the answers."""
        table = self.config.table(path)
        given = {role: getattr(self.config, role) for role in ("question", "context", "answer", "start")}
        spare = ("start", "answer") if split == "test" else ("start",)
        self.detected = choose_columns(table, given, [QUESTION, CONTEXT, ANSWER, START], spare=spare)
        questions, passages = (text_column(table, self.detected[role]) for role in ("question", "context"))
        texts = zip(row_ids(table), questions, passages, strict=True)
        return [
            self._example(table, row, number, question, passage)
            for row, (number, question, passage) in enumerate(texts)
        ]

    def _example(self, table: Table, row: int, number: str, question: str, passage: str) -> Example:
        source = table.source(row)
        if "answer" not in self.detected:
            return Example(id=number, texts=(question, passage), source=source)
        cells = {
            role: table.rows[row][table.place(self.detected[role])]
            for role in ("answer", "start")
            if role in self.detected
        }
        golds, spans = [], []
        for text, start in _answers(cells["answer"], cells.get("start"), source, self.detected):
            span = _found(passage, text, start)
            if span is None and self.config.misplaced == "refuse":
                raise wrong_place(source, passage, text, start)
            golds.append(text)
            spans += [span] if span else []
        if not golds and self.rules != "2.0":
            raise DataError(
                f"{source}: no answer in {self.detected['answer']!r}: where there may be none, say rules=2.0"
            )
        return Example(id=number, texts=(question, passage), gold=tuple(golds), source=source, spans=tuple(spans[:1]))


def _found(passage: str, text: str, start: int | None) -> tuple[int, int] | None:
    """Where an answer stands: where it is said to, or else where it occurs first."""
    if start is None:
        start = passage.find(text.strip())
        text = text.strip()
    return place(passage, text, start)


def _answers(cell: Any, start: Any, source: str, names: Mapping[str, str]) -> Iterator[tuple[str, int | None]]:
    """Every answer of a row with its first character, if that is said."""
    if isinstance(cell, dict):
        cell, start = cell.get("text"), cell.get("answer_start")
    many = cell if isinstance(cell, list) else [] if is_missing(cell) else [cell]
    starts = start if isinstance(start, list) else [start] * min(len(many), 1)
    if isinstance(start, list) and len(starts) != len(many):
        raise DataError(f"{source}: {len(many)} answers but {len(starts)} numbers for where they begin")
    for turn, item in enumerate(many):
        text, one = item, starts[turn] if turn < len(starts) else None
        if isinstance(item, dict):
            text, one = item.get("text"), item.get("answer_start")
        number = parse_number(one, source, names.get("start", "answer_start"))
        if number is not None and number != int(number):
            raise DataError(f"{source}: an answer cannot begin at {number}: a whole number is needed")
        yield parse_text(text, source, names["answer"]), None if number is None else int(number)
