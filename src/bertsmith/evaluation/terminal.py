"""An evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bertsmith.evaluation.evaluation import (
    BY_LENGTH,
    PER_CLASS,
    Evaluation,
    confidence_title,
    headline,
    score_tables,
)
from bertsmith.evaluation.tables import Confusion
from bertsmith.reports.terminal import console
from bertsmith.tasks.task import Case

ORDER = ("Scores", PER_CLASS, "Confusion matrix", BY_LENGTH)
MAX_LABELS = 8  # of a confusion matrix; more labels are shown as the most confused pairs
MAX_PAIRS = 10
MAX_ERRORS = 5
MAX_CHARACTERS = 300  # of a text


def print_evaluation(result: Evaluation, written: Sequence[Path] = ()) -> None:
    """Scores and baseline, scores per class, confusion matrix, scores by length, calibration, errors."""
    console.print(Text.assemble((result.task, "bold"), f" {result.split}  ", (result.model, "dim")), soft_wrap=True)
    console.print(Text(" · ".join(f"{key} {value}" for key, value in headline(result).items())), soft_wrap=True)
    if not result.scores:
        console.print(Text("no labels: no scores", "yellow"))
    tables = {title: _table(*table) for title, table in score_tables(result).items()}
    if result.confusion:
        tables["Confusion matrix"] = _confusion(result.confusion)
    for title in sorted(tables, key=ORDER.index):
        console.print(Text(f"\n{title}", "bold"))
        console.print(tables[title])
    if result.calibration:
        console.print(
            Text.assemble(("\nCalibration", "bold"), f"  expected calibration error {result.calibration.ece:.3f}")
        )
    if result.errors:
        _print_errors(result)
    for path in written:
        console.print(Text(f"wrote {path}", "dim"), soft_wrap=True)


def _confusion(table: Confusion) -> Table:
    if max(len(table.rows), len(table.columns)) > MAX_LABELS:
        pairs = [(true, predicted, f"{count:,}") for true, predicted, count in table.most_confused(MAX_PAIRS)]
        return _table(["true", "predicted", "count"], pairs, left=2)
    rows = [[Text(table.rows[row]), *_counts(table, row)] for row in table.shown(MAX_LABELS)[0]]
    return _table(["true \\ predicted", *table.columns], rows)


def _counts(table: Confusion, row: int) -> Iterator[Text]:
    for label, count in zip(table.columns, table.counts[row], strict=True):
        style = "green" if table.rows[row] == label else ""
        yield Text(f"{count:,}", style) if count else Text("·", "dim")


def _print_errors(result: Evaluation) -> None:
    which = "the most confident" if result.probabilities else "the largest"
    count = f"  {which} {min(MAX_ERRORS, len(result.errors))} of {result.error_count:,}"
    console.print(Text.assemble(("\nErrors", "bold"), count))
    for case in result.errors[:MAX_ERRORS]:
        confidence = f"{case.confidence:.1%}" if result.probabilities else f"{case.confidence:.3g}"
        predicted = (f"predicted {case.prediction}", "red")
        words = (predicted, f" ({confidence_title(result)} {confidence}), true label ", (case.gold, "green"))
        console.print(Text.assemble((f"{case.source}  ", "dim"), *words), soft_wrap=True)
        console.print(Text(f"  {_shortened(case)}"), soft_wrap=True)


def _shortened(case: Case) -> str:
    text = " | ".join(" ".join(text.split()) for text in case.texts)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, left: int = 1) -> Table:
    """All columns but the first `left` ones are right-aligned."""
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for index, heading in enumerate(headings):
        grid.add_column(Text(heading), justify="left" if index < left else "right")
    for row in rows:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return grid
