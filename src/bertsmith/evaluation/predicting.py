"""`predict`: a row for each example of a file, answers or none in it, written as they come."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError
from bertsmith.evaluation.answering import in_parts
from bertsmith.evaluation.asking import Asked
from bertsmith.system.durable import Disk
from bertsmith.tasks.task import Example, Prediction

FORMATS = {".jsonl": "", ".csv": ",", ".tsv": "\t"}  # by ending: what stands between cells
LEFT_OUT = ("answers", "unread")  # details that are in submission files or for scores only


def prediction_row(objective: str, example: Example, prediction: Prediction) -> dict[str, Any]:
    """Id, value, score where there is one, and what else the answer has: probabilities, offsets, entities."""
    score = {} if objective == "regress" else {"score": prediction.score}
    detail = {name: value for name, value in prediction.detail.items() if name not in LEFT_OUT}
    return {"id": example.id, "value": prediction.value, **score, **detail}


def prediction_rows(asked: Asked, *, split: str = "test", quiet: bool = True) -> Iterator[dict[str, Any]]:
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
