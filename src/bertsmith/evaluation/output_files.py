"""Output files: the evaluation folder, written and read, and predictions as JSON lines or tables."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, DataError, DataWarning, StorageError
from bertsmith.evaluation.ensemble import Ensemble
from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.evaluator import Evaluator
from bertsmith.evaluation.page import page
from bertsmith.reports.html import write
from bertsmith.system.durable import Disk
from bertsmith.tasks.question_answering import QuestionAnsweringTask
from bertsmith.tasks.task import Example, Prediction, Task
from bertsmith.tasks.text_tasks import MultipleChoiceTask
from bertsmith.training.finetune_data import check_examples

NUMBERS, PAGE, PREDICTIONS = "evaluation.json", "evaluation.html", "predictions.jsonl"
FORMATS = {".jsonl": "", ".csv": ",", ".tsv": "\t"}  # separator by extension
OMITTED = ("answers", "unread")  # details for submission files and scores only
PAGE_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', flags=re.DOTALL)
PAGE_KEYS = {"confidence_title", "probabilities", "error_count", "errors", "cells", "cases"}
MAX_BYTES = 1 << 26  # of a file that is read


def write_evaluation(result: Evaluation, folder: str | Path) -> list[Path]:
    """Writes numbers, page, predictions and submission files, replacing those of an earlier evaluation."""
    disk, folder = Disk(), Path(folder)
    disk.make_folder(folder)
    numbers = json.dumps(result.to_dict(), ensure_ascii=False, indent=1) + "\n"
    disk.write_file(folder / NUMBERS, [numbers.encode()])
    write(folder / PAGE, page(result))
    pairs = zip(*result.predictions, strict=True)
    rows = (prediction_row(example, one, probabilities=result.probabilities) for example, one in pairs)
    disk.write_file(folder / PREDICTIONS, (line.encode() for line in json_lines(rows)))
    for name, data in result.submission.items():
        disk.write_file(folder / name, [data])
    return [folder / name for name in (NUMBERS, PAGE, PREDICTIONS, *result.submission)]


def read_numbers(folder: Path) -> Evaluation:
    """The evaluation of a folder, without cases and errors."""
    path = folder / NUMBERS
    numbers = _json(_text(path), path)
    if not isinstance(numbers, dict):
        raise DataError(f"{path} is not an evaluation: expected a JSON object")
    numbers.pop("errors", None)  # the page has them
    try:
        return config.from_dict(Evaluation, numbers)
    except ConfigError as error:
        raise DataError(f"{path} is not an evaluation: {error}") from error


def read_cases(folder: Path) -> dict[str, Any]:
    """The `page_data` of the folder's page."""
    path = folder / PAGE
    match = PAGE_DATA.search(_text(path))
    data = _json(match[1], path) if match else None
    if not isinstance(data, dict) or not data.keys() >= PAGE_KEYS:
        raise DataError(f"{path} is not the page of an evaluation: write it again with bertsmith evaluate")
    return data


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not an evaluation: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} is not an evaluation: it is larger than {MAX_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BertsmithError(f"{path} does not exist: run bertsmith evaluate again") from error
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start})") from error


def prediction_row(
    example: Example, prediction: Prediction, *, probabilities: bool, texts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Id, texts, value, score if it is a probability, and details such as probabilities, offsets and entities."""
    score = {"score": prediction.score} if probabilities else {}
    detail = {name: value for name, value in prediction.detail.items() if name not in OMITTED}
    return {"id": example.id, **(texts or {}), "value": prediction.value, **score, **detail}


def texts_by_role(task: Task, example: Example) -> dict[str, Any]:
    """The texts of an example: `text`, `first` and `second`, `question` and `context`, or `question` and `choices`."""
    texts = example.texts
    if isinstance(task, MultipleChoiceTask):
        return {"question": texts[0], "choices": list(texts[1:])}
    pair = ("question", "context") if isinstance(task, QuestionAnsweringTask) else ("first", "second")
    return dict(zip(pair if len(texts) == 2 else ("text",), texts, strict=True))


def prediction_rows(
    evaluator: Evaluator | Ensemble, *, split: str = "test", with_text: bool = False, quiet: bool = True
) -> Iterator[dict[str, Any]]:
    """One row per example of a split, in order; `with_text` adds the texts of the example.

    Labels of the examples are ignored. Warns at the end if examples were truncated.
    """
    task, truncated = evaluator.task, 0
    examples = task.examples(split, with_labels=False)
    for one in evaluator.members:
        check_examples(one.tokenizer, examples)
    for chunk in evaluator.predict(examples, title="predict", quiet=quiet):
        for example, prediction in zip(chunk.examples, chunk.predictions, strict=True):
            texts = texts_by_role(task, example) if with_text else None
            yield prediction_row(example, prediction, probabilities=task.has_probabilities, texts=texts)
        truncated += sum(chunk.truncated)
    if truncated:
        shortest = min(evaluator.members, key=lambda one: one.max_length)
        found = f"{truncated:,} of {len(examples):,} examples were truncated at {shortest.truncation_advice()}"
        warnings.warn(found, DataWarning, stacklevel=2)


def check_output(path: Path) -> None:
    """Raises if predictions cannot be written to this path, before anything is computed."""
    if path.suffix not in FORMATS:
        raise BertsmithError(f"{path}: the extension must be one of {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise BertsmithError(f"no such folder: {path.parent}")


def write_predictions(rows: Iterator[dict[str, Any]], path: Path) -> int:
    """Writes the rows as they are computed and returns their number; the file appears when it is complete."""
    check_output(path)
    count, separator = itertools.count(), FORMATS[path.suffix]
    counted = (row for row, _ in zip(rows, count, strict=False))  # advances `count` once per row
    lines = table_lines(counted, separator) if separator else json_lines(counted)
    Disk().write_file(path, (line.encode() for line in lines))
    return next(count)


def json_lines(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One JSON object per line."""
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def table_lines(rows: Iterator[dict[str, Any]], separator: str) -> Iterator[str]:
    """A header and cells; each probability has its column, other nested values are JSON."""
    columns: list[str] = []
    for row in rows:
        flat = _flat(row)
        if not columns:
            columns = list(flat)
            yield _line(columns, separator)
        yield _line([_cell(flat.get(name)) for name in columns], separator)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name == "probabilities" and isinstance(value, Mapping):
            flat |= {f"probability {label}": share for label, share in value.items()}
        elif name == "value" and isinstance(value, tuple | list):
            flat[name] = ("|" if "probabilities" in row else " ").join(map(str, value))  # labels may have spaces
        else:
            flat[name] = value
    return flat


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(cells: list[str], separator: str) -> str:
    if separator == "\t":  # unquoted, as bertsmith reads tsv files: a tab or line break would split the row
        return "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
