"""SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018), KorQuAD 1.0, and any other file in their format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.config import did_you_mean
from bertsmith.errors import DataError
from bertsmith.tasks.dataset_files import benchmark_files
from bertsmith.tasks.qa_windows import QAConfig
from bertsmith.tasks.question_answering import Misplaced, QuestionAnsweringTask, ScoringRules, locate_answers, shorten
from bertsmith.tasks.tables import JSON_LINES, PARQUET, join_names, read_whole
from bertsmith.tasks.task import SPLITS, Dataset, Example
from bertsmith.tokenizers.pretokenization import replace_surrogates

MEMBERS: Mapping[ScoringRules, str] = {"1.1": "{}-v1.1.json", "2.0": "{}-v2.0.json", "korquad": "KorQuAD_v1.0_{}.json"}
FOLDERS = ("squad", "squad1", "squad2", "korquad", "korquad1", "dataset", "korquad1/dataset")


@dataclass(frozen=True, kw_only=True)
class Config(QAConfig):
    """Settings of a dataset in the SQuAD format."""

    name: ScoringRules = "1.1"  # the official script; with 2.0 a question may have no answer
    misplaced: Misplaced = "error"  # an answer that is not at its offset; skip: it is not trained on

    def build(self, *, files: Mapping[str, Path], labels: Sequence[str] = ()) -> QuestionAnsweringTask:
        """See `TaskConfig.build`; files in the folder `data` have their official names."""
        title = f"squad/{self.name}"
        layout = {split: [(MEMBERS[self.name].format(split),)] for split in SPLITS}
        paths = benchmark_files(title, files, layout, subfolders=FOLDERS)
        return QuestionAnsweringTask(title, Dataset(paths, self.read), config=self, rules=self.name)

    def read(self, path: Path, split: str) -> list[Example]:
        """Each question with its passage; those of a test file may have no answers."""
        examples: dict[str, Example] = {}
        for where, passage, item in _questions(path):
            number = str(_needed(item, "id", where, str | int))
            source = f"{where}, question {number}"
            if number in examples:
                raise DataError(f"{source}: the id is not unique (also {examples[number].source})")
            texts = (replace_surrogates(_needed(item, "question", source, str)), passage)
            gold: tuple[str, ...] | None = None
            spans: tuple[tuple[int, int], ...] = ()
            if split != "test" or "answers" in item:
                gold, spans = locate_answers(passage, self._answers(item, source), source, self.misplaced)
            examples[number] = Example(id=number, texts=texts, gold=gold, source=source, spans=spans)
        if not examples:
            raise DataError(f"{path} has no questions")
        return list(examples.values())

    def _answers(self, item: Mapping[str, Any], source: str) -> Iterator[tuple[str, int]]:
        """The accepted answers with their first character."""
        answers = _needed(item, "answers", source, list)
        impossible = bool(item.get("is_impossible", not answers))
        if self.name != "2.0" and (impossible or not answers):
            raise DataError(f"{source} has no answer: use squad/2.0 for a dataset with such questions")
        for answer in () if impossible else answers:
            text = replace_surrogates(_needed(answer, "text", source, str))
            yield text, _needed(answer, "answer_start", source, int)


def _questions(path: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Location, passage and JSON object of each question."""
    content = _json(path)
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        found = f"an object with {join_names(list(content))}" if isinstance(content, dict) else type(content).__name__
        raise DataError(f"{path} is not a SQuAD file: expected an object with a list under 'data', found {found}")
    for number, article in enumerate(content["data"]):
        name = article.get("title") if isinstance(article, dict) else None
        where = f"{path}: article {number}" + (f" ({name})" if isinstance(name, str) and name else "")
        for index, paragraph in enumerate(_needed(article, "paragraphs", where, list)):
            here = f"{where}, paragraph {index}"
            passage = replace_surrogates(_needed(paragraph, "context", here, str))
            for item in _needed(paragraph, "qas", here, list):
                yield here, passage, item


def _json(path: Path) -> Any:
    if path.suffix.lower() in (".csv", ".tsv", *JSON_LINES, PARQUET):
        raise DataError(f"{path} is a table, not a SQuAD file: pass --task qa")
    text = read_whole(path, str(path))
    if not text.strip():
        raise DataError(f"{path} is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: invalid JSON: {error}") from None


def _needed(item: Any, key: str, where: str, kind: Any) -> Any:
    """The value of a required key, of the expected type."""
    if not isinstance(item, dict):
        raise DataError(f"{where}: expected an object with {key!r}, found {shorten(str(item))}")
    if key not in item:
        raise DataError(f"{where}: {key!r} is missing among {join_names(list(item))}{did_you_mean(key, item)}")
    if not isinstance(item[key], kind) or isinstance(item[key], bool):
        raise DataError(f"{where}: invalid {key!r}: {shorten(str(item[key]))} ({type(item[key]).__name__})")
    return item[key]
