"""Questions, passages and answers in files of your own: csv, tsv, jsonl or parquet with a column for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.errors import DataError
from bertsmith.tasks import columns
from bertsmith.tasks.columns import FileSettings, Guess, is_missing
from bertsmith.tasks.passages.answering import Answering, Rules
from bertsmith.tasks.passages.manner import Manner
from bertsmith.tasks.passages.offsets import Misplaced, place, wrong_place
from bertsmith.tasks.places import own_files
from bertsmith.tasks.tables import Table
from bertsmith.tasks.task import Example

QUESTION: Guess = (("question",), (("question",), ("query",), ("q",)))
CONTEXT: Guess = (
    ("context",),
    (("context",), ("passage",), ("paragraph",), ("document",), ("text",), ("article",), ("body",)),
)
ANSWER: Guess = (("answer",), (("answer",), ("answers",), ("answer_text",), ("gold",), ("target",)))
START: Guess = (("start",), (("start",), ("answer_start",), ("answer_begin",), ("offset",)))


@dataclass(frozen=True, kw_only=True)
class Config(Manner, FileSettings):
    """Files of your own."""

    question: str = ""  # the column with the question; guessed by its name where it is not said
    context: str = ""  # the column with the passage
    answer: str = (
        ""  # the column with the answer: a text, a list of texts, or SQuAD's object with text and answer_start
    )
    start: str = ""  # the column with the first character of the answer; without one it is where the text occurs first
    rules: Rules = "1.1"  # whose scores are given: with those of 2.0 an empty answer means that there is none
    misplaced: Misplaced = "refuse"  # an answer that is not in its passage: an error, or not trained on

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> QuestionAnswering:
        """The task over files by split, or over those called train, dev and test in the folder under `data`."""
        return QuestionAnswering(self, {split: paths[0] for split, paths in own_files("qa", files).items()})


class QuestionAnswering(Answering):
    """Questions on passages of your own."""

    def __init__(self, config: Config, files: Mapping[str, Path]) -> None:
        super().__init__(name="qa", manner=config, rules=config.rules, files=files)
        self.config = config
        self.found: Mapping[str, str] = {}

    def load(self, path: Path, split: str) -> list[Example]:
        """One example for each row; a test file may lack the answers."""
        table = self.config.table(path)
        given = {role: getattr(self.config, role) for role in ("question", "context", "answer", "start")}
        spare = ("start", "answer") if split == "test" else ("start",)
        self.found = columns.choose(table, given, [QUESTION, CONTEXT, ANSWER, START], spare=spare)
        questions, passages = (columns.texts(table, self.found[role]) for role in ("question", "context"))
        texts = zip(columns.ids(table), questions, passages, strict=True)
        return [
            self._example(table, row, number, question, passage)
            for row, (number, question, passage) in enumerate(texts)
        ]

    def _example(self, table: Table, row: int, number: str, question: str, passage: str) -> Example:
        source = table.source(row)
        if "answer" not in self.found:
            return Example(id=number, texts=(question, passage), source=source)
        cells = {
            role: table.rows[row][table.place(self.found[role])] for role in ("answer", "start") if role in self.found
        }
        golds, spans = [], []
        for text, start in _answers(cells["answer"], cells.get("start"), source, self.found):
            span = _found(passage, text, start)
            if span is None and self.config.misplaced == "refuse":
                raise wrong_place(source, passage, text, start)
            golds.append(text)
            spans += [span] if span else []
        if not golds and self.rules != "2.0":
            raise DataError(f"{source}: no answer in {self.found['answer']!r}: where there may be none, say rules=2.0")
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
        number = columns.number_of(one, source, names.get("start", "answer_start"))
        if number is not None and number != int(number):
            raise DataError(f"{source}: an answer cannot begin at {number}: a whole number is needed")
        yield columns.text_of(text, source, names["answer"]), None if number is None else int(number)
