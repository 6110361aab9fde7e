"""What an evaluation leaves in a folder: numbers, page, predictions, and the benchmark's own files."""

from __future__ import annotations

import json
from pathlib import Path

from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.page import page
from bertsmith.evaluation.predicting import as_lines, prediction_row
from bertsmith.reports.html import write
from bertsmith.system.durable import Disk

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
