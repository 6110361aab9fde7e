"""`predict`: a row for each example of a file, answers or none in it, written as they come.

What an evaluation leaves in a folder: numbers, page, predictions, and the benchmark's own files.

An evaluation folder read again, for whoever shows it: the numbers of its JSON, the cases of its page."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, DataError, StorageError
from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.evaluator import Evaluator, in_parts
from bertsmith.evaluation.page import page
from bertsmith.objectives.objective import pipeline_of
from bertsmith.reports.html import write
from bertsmith.system.durable import Disk
from bertsmith.tasks.task import Example, Prediction

FORMATS = {".jsonl": "", ".csv": ",", ".tsv": "\t"}  # by ending: what stands between cells
LEFT_OUT = ("answers", "unread")  # details that are in submission files or for scores only


def prediction_row(objective: str, example: Example, prediction: Prediction) -> dict[str, Any]:
    """Id, value, score where there is one, and what else the answer has: probabilities, offsets, entities."""
    score = {} if pipeline_of(objective) == "text-regression" else {"score": prediction.score}
    detail = {name: value for name, value in prediction.detail.items() if name not in LEFT_OUT}
    return {"id": example.id, "value": prediction.value, **score, **detail}


def prediction_rows(asked: Evaluator, *, split: str = "test", quiet: bool = True) -> Iterator[dict[str, Any]]:
    """A row for each example of a split, in its order."""
    for part in in_parts(asked, asked.task.examples(split), title="predict", quiet=quiet):
        for example, prediction in zip(part.examples, part.predictions, strict=True):
            yield prediction_row(asked.task.objective, example, prediction)


def check_output(path: Path) -> None:
    """Raises where predictions cannot be written, before anything is computed."""
    if path.suffix not in FORMATS:
        raise BertsmithError(f"{path}: predictions are written as {', '.join(FORMATS)}: give the file such an ending")
    if not path.parent.is_dir():
        raise BertsmithError(f"no such folder: {path.parent}")


def write_predictions(rows: Iterator[dict[str, Any]], path: Path) -> int:
    """Writes the rows as they come and returns how many; the file is there once it is whole."""
    check_output(path)
    count = 0

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    between = FORMATS[path.suffix]
    lines = as_table(counted(), between) if between else as_lines(counted())
    Disk().write_file(path, (line.encode() for line in lines))
    return count


def as_lines(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One JSON object a line."""
    for row in rows:
        yield json.dumps(row, ensure_ascii=False) + "\n"


def as_table(rows: Iterator[dict[str, Any]], between: str) -> Iterator[str]:
    """A header and cells; lists and tables within a cell are JSON, and every probability has its column."""
    columns: list[str] = []
    for row in rows:
        flat = _flat(row)
        if not columns:
            columns = list(flat)
            yield _line(columns, between)
        yield _line([_cell(flat.get(name)) for name in columns], between)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name == "probabilities" and isinstance(value, Mapping):
            found |= {f"probability {label}": share for label, share in value.items()}
        elif name == "value" and isinstance(value, tuple | list):
            found[name] = " ".join(map(str, value))
        else:
            found[name] = value
    return found


def _cell(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _line(cells: list[str], between: str) -> str:
    if between == "\t":  # without quotes, as bertsmith reads such files: a tab or line end would break the row
        return "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


NUMBERS, PAGE, PREDICTIONS = "evaluation.json", "evaluation.html", "predictions.jsonl"


def write_evaluation(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Writes the files, in place of those of an earlier evaluation, and returns their paths."""
    disk, folder = Disk(), Path(folder)
    disk.make_folder(folder)
    numbers = json.dumps(evaluation.to_dict(), ensure_ascii=False, indent=1) + "\n"
    disk.write_file(folder / NUMBERS, [numbers.encode()])
    write(folder / PAGE, page(evaluation))
    pairs = zip(*evaluation.answered, strict=True)
    rows = (prediction_row(evaluation.objective, example, prediction) for example, prediction in pairs)
    disk.write_file(folder / PREDICTIONS, (line.encode() for line in as_lines(rows)))
    for name, data in evaluation.submission.items():
        disk.write_file(folder / name, [data])
    return [folder / name for name in (NUMBERS, PAGE, PREDICTIONS, *evaluation.submission)]


DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', flags=re.DOTALL)
LARGEST = 1 << 26  # bytes of a file that is read


def read_numbers(folder: Path) -> Evaluation:
    """The evaluation without its cases and errors."""
    path = folder / NUMBERS
    numbers = _json(_text(path), path)
    if not isinstance(numbers, dict):
        raise DataError(f"{path} is no evaluation: it holds no values by name")
    numbers.pop("errors", None)  # the page has them too
    try:
        return config.from_dict(Evaluation, numbers)
    except ConfigError as error:
        raise DataError(f"{path} is no evaluation: {error}") from error


def read_cases(folder: Path) -> dict[str, Any]:
    """What `page_data` gave when the folder was written."""
    path = folder / PAGE
    found = DATA.search(_text(path))
    data = _json(found[1], path) if found else None
    if not isinstance(data, dict) or not {"sure", "share", "wrong", "errors", "cells", "cases"} <= data.keys():
        raise DataError(f"{path} is no page about an evaluation: write it again with bertsmith evaluate")
    return data


def _json(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no evaluation: {error}") from error


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} is larger than {LARGEST >> 20} MiB: no evaluation is")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise BertsmithError(f"{path} is not there: run bertsmith evaluate again") from error
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8 (byte {error.start})") from error
