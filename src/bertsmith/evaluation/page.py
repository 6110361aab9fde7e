"""HTML page of an evaluation: scores, confusion matrix with the examples behind its cells, errors, calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from itertools import chain
from typing import Any

from bertsmith.evaluation.evaluation import (
    BY_LENGTH,
    PER_CLASS,
    Evaluation,
    confidence_title,
    format_score,
    headline,
    metric_title,
    score_tables,
)
from bertsmith.evaluation.tables import Calibration, Confusion
from bertsmith.reports import html as pages
from bertsmith.tasks.entity_cases import NOTHING, OTHER_BOUNDS
from bertsmith.tasks.task import Case

ASSETS = files("bertsmith.evaluation") / "assets"
MAX_LABELS = 40  # of the confusion matrix; the most frequent ones if there are more
MAX_CASES = 4000  # examples behind all cells together
MAX_CHARACTERS = 1500  # of a text
SHADES = 9


def page(result: Evaluation) -> str:
    """The full page."""
    data = page_data(result)
    about = {"heading": "Evaluation", "title": f"{result.task} {result.split}", "main": page_main(result, data)}
    return pages.render_page(ASSETS, "evaluation", **about, data=data)


def page_main(result: Evaluation, data: Mapping[str, Any]) -> str:
    """The page without header and script; `data` is the `page_data` of this evaluation."""
    return pages.render_main(ASSETS, "evaluation", parts=_sections(result, data))


def page_data(result: Evaluation) -> dict[str, Any]:
    """The data of the script: cases, and the indices of the errors and of the cases behind each cell."""
    cells = _cells(result)
    chosen = {id(case): case for case in chain(result.errors, *cells.values())}
    index = {key: number for number, key in enumerate(chosen)}
    return {
        "confidence_title": confidence_title(result),
        "probabilities": result.probabilities,
        "error_count": result.error_count,
        "errors": [index[id(case)] for case in result.errors],
        "cells": {key: [index[id(case)] for case in cases] for key, cases in cells.items()},
        "cases": [_case_values(case) for case in chosen.values()],
    }


def _cells(result: Evaluation) -> dict[str, list[Case]]:
    """The cases of each cell by row and column; the most confident ones if there are many."""
    table = result.confusion
    if table is None:
        return {}
    cells: dict[str, list[Case]] = defaultdict(list)
    for case in result.cases:
        if case.cell:
            cells[f"{table.rows.index(case.cell[0])},{table.columns.index(case.cell[1])}"].append(case)
    most = max(MAX_CASES // max(len(cells), 1), 5)
    return {key: sorted(cases, key=lambda case: -case.confidence)[:most] for key, cases in cells.items()}


def _case_values(case: Case) -> list[Any]:
    texts = [text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …" for text in case.texts]
    return [case.id, case.gold, case.prediction, round(case.confidence, 4), texts, case.source, case.correct]


def _sections(result: Evaluation, data: Mapping[str, Any]) -> dict[str, str]:
    tables = {title: f"<h2>{title}</h2>{pages.table(*table)}" for title, table in score_tables(result).items()}
    return {
        "head": _head(result),
        "scores": tables.get("Scores", "<p>These examples have no labels, so there are no scores.</p>"),
        "confusion": _confusion(result.confusion, data) if result.confusion else "",
        "labels": tables.get(PER_CLASS, ""),
        "lengths": f"<section>{tables[BY_LENGTH]}</section>" if result.by_length else "",
        "calibration": _calibration(result.calibration) if result.calibration else "",
        "facts": _facts(result),
    }


def _head(result: Evaluation) -> str:
    about = escape(f"{result.model} · {result.split} · {result.device}")
    return f'<h2>{escape(result.task)}</h2><p class="faint">{about}</p>{pages.figures(headline(result))}'


def _confusion(table: Confusion, data: Mapping[str, Any]) -> str:
    correct = {key for key, indices in data["cells"].items() if any(data["cases"][index][-1] for index in indices)}

    def cell(row: int, column: int, count: int, share: float) -> str:
        label = escape(f"{table.rows[row]} predicted as {table.columns[column]}: {count:,}")
        good = table.rows[row] not in (NOTHING, OTHER_BOUNDS) and f"{row},{column}" in correct
        shade = f"{'good' if good else 'bad'} s{max(1, round(share * SHADES))}"
        start = f'<button type="button" class="{shade}" data-cell="{row},{column}" aria-label="{label}">'
        return f"<td>{start}{count:,}</button></td>"

    note = table.omission(MAX_LABELS)
    return (
        "<h2>Confusion matrix</h2>"
        f'<p class="faint">Rows: true labels. Columns: predicted labels. Click a cell to see its examples.{note}</p>'
        f'<div class="wide"><table id="confusion">{table.markup(MAX_LABELS, cell)}</table></div>'
    )


def _calibration(table: Calibration) -> str:
    """Reliability diagram: accuracy by confidence; a calibrated model follows the diagonal."""
    width, height, left, top = 320, 200, 58, 8
    bars = []
    for one in table.bins:
        x, y, tall = left + one.low * width, top + (1 - one.accuracy) * height, one.accuracy * height
        title = f"confidence {one.low:.0%} to {one.high:.0%}: {one.count:,} predictions, accuracy {one.accuracy:.1%}"
        box = f'x="{x + 2:.1f}" y="{y:.1f}" width="{width / 10 - 4:.1f}" height="{max(tall, 1):.1f}"'
        bars.append(f'<rect class="bar" {box}><title>{title}</title></rect>')
    ticks = (
        f'<text x="{left - 6}" y="{top + (1 - share) * height + 4:.0f}" text-anchor="end">{share:.0%}</text>'
        f'<text x="{left + share * width:.0f}" y="{top + height + 16}" text-anchor="middle">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    diagonal = f'<line class="ideal" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top}"/>'
    floor = f'<line class="floor" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}"/>'
    axes = (
        f'<text x="{left + width / 2:.0f}" y="{top + height + 33}" text-anchor="middle">confidence</text>'
        f'<text transform="translate(12 {top + height / 2:.0f}) rotate(-90)" text-anchor="middle">accuracy</text>'
    )
    title = f"Accuracy by confidence; expected calibration error {table.ece:.3f}"
    rows = (
        [f"{one.low:.0%} – {one.high:.0%}", f"{one.count:,}", f"{one.confidence:.1%}", f"{one.accuracy:.1%}"]
        for one in table.bins
    )
    numbers = pages.table(["confidence", "predictions", "mean", "accuracy"], rows)
    return (
        "<section><h2>Calibration (reliability diagram)</h2>"
        f'<p class="faint">Expected calibration error {table.ece:.3f}</p>'
        f'<figure><svg role="img" aria-label="{title}" viewBox="0 0 {left + width + 20} {top + height + 38}">'
        f"{floor}{''.join(bars)}{diagonal}{''.join(ticks)}{axes}</svg></figure>"
        f"<details><summary>Numbers</summary>{numbers}</details></section>"
    )


def _facts(result: Evaluation) -> str:
    facts = {"max length": f"{result.max_length} tokens", "time": f"{result.seconds:.1f} s", **result.detected}
    types = [(metric_title(key), format_score(value)) for key, value in result.scores.items() if " " in key]
    rows = [*facts.items(), *types]
    return f"<details><summary>Facts</summary>{pages.table(['fact', 'value'], rows, wrap=True)}</details>"
