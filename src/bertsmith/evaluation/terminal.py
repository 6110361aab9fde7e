"""How an evaluation looks in a terminal. Takes what was found and prints it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from bertsmith.evaluation.error_analysis import Case
from bertsmith.evaluation.evaluation import Evaluation, headline
from bertsmith.evaluation.tables import (
    Confusion,
    format_score,
    labels_shown,
    metric_title,
    most_confused,
    sure_title,
)
from bertsmith.objectives.objective import pipeline_of
from bertsmith.reports.terminal import console

MOST_LABELS = 8  # of a matrix; pairs where there are more
MOST_PAIRS = 10
MOST_ERRORS = 5
MOST_LETTERS = 300  # of a text


def evaluation(found: Evaluation, written: Sequence[Path] = ()) -> None:
    """Scores beside baselines, what was taken for what, by label and length, calibration, the worst errors."""
    console.print(Text.assemble((found.task, "bold"), f" {found.split}  ", (found.model, "dim")), soft_wrap=True)
    console.print(Text(" · ".join(f"{key} {value}" for key, value in headline(found).items())), soft_wrap=True)
    if not found.scores:
        console.print(Text("nobody knows the right answers: nothing is scored", "yellow"))
    for table in _tables(found):
        console.print()
        console.print(table)
    if found.calibration:
        console.print(Text(f"\nexpected calibration error {found.calibration.ece:.3f}"))
    if found.errors:
        _errors(found)
    for path in written:
        console.print(Text(f"wrote {path}", "dim"), soft_wrap=True)


def _tables(found: Evaluation) -> list[Table]:
    tables = []
    if found.scores:
        grid = _grid("score", right=("this model", *(one.says for one in found.baselines)))
        for key, value in found.scores.items():
            if " " not in key:
                grid.add_row(
                    metric_title(key),
                    format_score(value),
                    *(format_score(one.scores.get(key)) for one in found.baselines),
                )
        tables.append(grid)
    if found.confusion:
        tables.append(_confusion(found.confusion))
    if found.by_label:
        grid = _grid("label", right=("F1", "precision", "recall", "right ones", "said"))
        for label in found.by_label:
            shares = map(format_score, (label.f1, label.precision, label.recall))
            grid.add_row(Text(label.label), *shares, f"{label.gold:,}", f"{label.found:,}")
        tables.append(grid)
    if found.by_length:
        grid = _grid(found.unit, right=("examples", "cut", metric_title(found.main_metric)))
        for one in found.by_length:
            grid.add_row(f"{one.least:,} – {one.most:,}", f"{one.examples:,}", f"{one.cut:,}", format_score(one.score))
        tables.append(grid)
    return tables


def _confusion(table: Confusion) -> Table:
    if max(len(table.rows), len(table.columns)) > MOST_LABELS:
        grid = _grid("right", "taken for", right=("times",))
        for gold, said, count in most_confused(table, MOST_PAIRS):
            grid.add_row(Text(gold), Text(said), f"{count:,}")
        return grid
    grid = _grid("right \\ said", right=table.columns)
    for row in labels_shown(table, MOST_LABELS)[0]:
        grid.add_row(Text(table.rows[row]), *(_count(table, row, column) for column in range(len(table.columns))))
    return grid


def _count(table: Confusion, row: int, column: int) -> Text:
    count = table.counts[row][column]
    return (
        Text(f"{count:,}", "green" if table.rows[row] == table.columns[column] else "") if count else Text("·", "dim")
    )


def _errors(found: Evaluation) -> None:
    title = "furthest off" if pipeline_of(found.objective) == "text-regression" else "most confident errors"
    console.print(Text(f"\n{title}, {min(MOST_ERRORS, len(found.errors))} of {found.wrong:,}", "bold"))
    for case in found.errors[:MOST_ERRORS]:
        sure = f"{case.sure:.3g}" if pipeline_of(found.objective) == "text-regression" else f"{case.sure:.1%}"
        said = (f"said {case.said}", "red")
        words = (said, f" ({sure_title(found.objective)} {sure}), right is ", (case.gold, "green"))
        console.print(Text.assemble((f"{case.source}  ", "dim"), *words), soft_wrap=True)
        console.print(Text(f"  {_short(case)}"), soft_wrap=True)


def _short(case: Case) -> str:
    text = " | ".join(" ".join(text.split()) for text in case.texts)
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} …"


def _grid(*left: str, right: tuple[str, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in left:
        grid.add_column(Text(heading))
    for heading in right:
        grid.add_column(Text(heading), justify="right")
    return grid
