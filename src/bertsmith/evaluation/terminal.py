"""An evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.page import confidence_title, format_score, headline, metric_title
from bertsmith.evaluation.tables import Confusion
from bertsmith.reports.terminal import console
from bertsmith.tasks.task import Case

MAX_LABELS = 8  # of a confusion matrix; more labels are shown as the most confused pairs
MAX_PAIRS = 10
MAX_ERRORS = 5
MAX_CHARACTERS = 300  # of a text


def print_evaluation(result: Evaluation, written: Sequence[Path] = ()) -> None:
    """Scores and baseline, confusion matrix, scores by label and length, calibration, the worst errors."""
    console.print(Text.assemble((result.task, "bold"), f" {result.split}  ", (result.model, "dim")), soft_wrap=True)
    console.print(Text(" · ".join(f"{key} {value}" for key, value in headline(result).items())), soft_wrap=True)
    if not result.scores:
        console.print(Text("no gold labels: no scores", "yellow"))
    for table in _tables(result):
        console.print()
        console.print(table)
    if result.calibration:
        console.print(Text(f"\nexpected calibration error {result.calibration.ece:.3f}"))
    if result.errors:
        _print_errors(result)
    for path in written:
        console.print(Text(f"wrote {path}", "dim"), soft_wrap=True)


def _tables(result: Evaluation) -> list[Table]:
    tables = []
    if result.baseline:
        grid = _grid("score", right=("this model", result.baseline.description))
        for key, value in result.scores.items():
            if " " not in key:
                grid.add_row(metric_title(key), format_score(value), format_score(result.baseline.scores.get(key)))
        tables.append(grid)
    if result.confusion:
        tables.append(_confusion(result.confusion))
    if result.by_label:
        grid = _grid("label", right=("F1", "precision", "recall", "gold", "predicted"))
        for label in result.by_label:
            scores = map(format_score, (label.f1, label.precision, label.recall))
            grid.add_row(Text(label.label), *scores, f"{label.gold:,}", f"{label.predicted:,}")
        tables.append(grid)
    if result.by_length:
        grid = _grid(result.unit, right=("examples", "truncated", metric_title(result.main_metric)))
        for one in result.by_length:
            lengths, counts = f"{one.shortest:,} – {one.longest:,}", (f"{one.examples:,}", f"{one.truncated:,}")
            grid.add_row(lengths, *counts, format_score(one.score))
        tables.append(grid)
    return tables


def _confusion(table: Confusion) -> Table:
    if max(len(table.rows), len(table.columns)) > MAX_LABELS:
        grid = _grid("gold", "predicted", right=("count",))
        for gold, predicted, count in table.most_confused(MAX_PAIRS):
            grid.add_row(Text(gold), Text(predicted), f"{count:,}")
        return grid
    grid = _grid("gold \\ predicted", right=table.columns)
    for row in table.shown(MAX_LABELS)[0]:
        grid.add_row(Text(table.rows[row]), *(_count(table, row, column) for column in range(len(table.columns))))
    return grid


def _count(table: Confusion, row: int, column: int) -> Text:
    count = table.counts[row][column]
    style = "green" if table.rows[row] == table.columns[column] else ""
    return Text(f"{count:,}", style) if count else Text("·", "dim")


def _print_errors(result: Evaluation) -> None:
    title = "most confident errors" if result.probabilities else "largest errors"
    console.print(Text(f"\n{title}, {min(MAX_ERRORS, len(result.errors))} of {result.error_count:,}", "bold"))
    for case in result.errors[:MAX_ERRORS]:
        confidence = f"{case.confidence:.1%}" if result.probabilities else f"{case.confidence:.3g}"
        predicted = (f"predicted {case.prediction}", "red")
        words = (predicted, f" ({confidence_title(result)} {confidence}), gold ", (case.gold, "green"))
        console.print(Text.assemble((f"{case.source}  ", "dim"), *words), soft_wrap=True)
        console.print(Text(f"  {_shortened(case)}"), soft_wrap=True)


def _shortened(case: Case) -> str:
    text = " | ".join(" ".join(text.split()) for text in case.texts)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"


def _grid(*left: str, right: tuple[str, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in left:
        grid.add_column(Text(heading))
    for heading in right:
        grid.add_column(Text(heading), justify="right")
    return grid
