"""One page about one evaluation: scores, the confusion matrix with the examples behind its cells, errors, calibration.

Everything that comes from files or models is escaped; the page asks for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from bertsmith.evaluation.error_analysis import NOTHING, OTHER_BOUNDS, Case
from bertsmith.evaluation.evaluation import Evaluation, headline
from bertsmith.evaluation.tables import (
    Calibration,
    Confusion,
    format_score,
    labels_shown,
    metric_title,
    sure_title,
)
from bertsmith.objectives.objective import pipeline_of
from bertsmith.reports import html as pages

ASSETS = files("bertsmith.evaluation") / "assets"
MOST_LABELS = 40  # of the matrix; the most frequent ones where there are more
MOST_CASES = 4000  # examples behind cells, all cells together
MOST_LETTERS = 1500  # of a text
SHADES = 9


def page(evaluation: Evaluation) -> str:
    """The whole page as text."""
    title, data = f"{evaluation.task} {evaluation.split}", page_data(evaluation)
    return pages.render_page(ASSETS, "evaluation", title=title, data=data, parts=_parts(evaluation, data))


def page_main(evaluation: Evaluation, data: Mapping[str, Any]) -> str:
    """The page without its frame and its script; `data` is what `page_data` gave for this evaluation."""
    return pages.render_main(ASSETS, "evaluation", parts=_parts(evaluation, data))


def _parts(evaluation: Evaluation, data: Mapping[str, Any]) -> dict[str, str]:
    return {
        "head": _head(evaluation),
        "scores": _scores(evaluation),
        "confusion": _confusion(evaluation.confusion, data) if evaluation.confusion else "",
        "labels": _labels(evaluation) if evaluation.by_label else "",
        "lengths": _lengths(evaluation),
        "calibration": _calibration(evaluation.calibration) if evaluation.calibration else "",
        "facts": _facts(evaluation),
    }


def page_data(evaluation: Evaluation) -> dict[str, Any]:
    """What the script is given: some cases, which of them are the errors, and which are behind each cell."""
    numbers: dict[int, int] = {}
    chosen: list[Case] = []

    def number(case: Case) -> int:
        if id(case) not in numbers:
            numbers[id(case)] = len(chosen)
            chosen.append(case)
        return numbers[id(case)]

    errors = [number(case) for case in evaluation.errors]
    cells = {key: [number(case) for case in cases] for key, cases in _behind(evaluation).items()}
    return {
        "sure": sure_title(evaluation.objective),
        "share": pipeline_of(evaluation.objective) != "text-regression",
        "wrong": evaluation.wrong,
        "errors": errors,
        "cells": cells,
        "cases": [_plain(case) for case in chosen],
    }


def _behind(evaluation: Evaluation) -> dict[str, list[Case]]:
    """The cases of each cell, by row and column; the surest ones where there are many."""
    table = evaluation.confusion
    if table is None:
        return {}
    found: dict[str, list[Case]] = defaultdict(list)
    for case in evaluation.cases:
        if case.cell:
            found[f"{table.rows.index(case.cell[0])},{table.columns.index(case.cell[1])}"].append(case)
    most = max(MOST_CASES // max(len(found), 1), 5)
    return {key: sorted(cases, key=lambda case: -case.sure)[:most] for key, cases in found.items()}


def _plain(case: Case) -> list[Any]:
    texts = [text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} …" for text in case.texts]
    return [case.id, case.gold, case.said, round(case.sure, 4), texts, case.source, case.right]


# --- parts of the page -----------------------------------------------------------------------------------------------


def _head(evaluation: Evaluation) -> str:
    about = f"{evaluation.model} · {evaluation.split} · {evaluation.device}"
    return f'<h2>{escape(evaluation.task)}</h2><p class="faint">{escape(about)}</p>' + pages.figures(
        headline(evaluation)
    )


def _scores(evaluation: Evaluation) -> str:
    if not evaluation.scores:
        return "<p>Nobody knows the right answers of these examples: nothing is scored.</p>"
    heads = ["score", "this model", *(one.says for one in evaluation.baselines)]
    rows = []
    for key, value in evaluation.scores.items():
        if " " not in key:  # scores of one type have their own table
            rows.append(
                [
                    metric_title(key),
                    format_score(value),
                    *(format_score(one.scores.get(key)) for one in evaluation.baselines),
                ]
            )
    return f"<h2>Scores</h2>{pages.table(heads, rows)}"


def _confusion(table: Confusion, data: Mapping[str, Any]) -> str:
    rows, columns = labels_shown(table, MOST_LABELS)
    right = {key for key, numbers in data["cells"].items() if any(data["cases"][number][-1] for number in numbers)}
    head = "".join(f'<th scope="col">{escape(table.columns[column])}</th>' for column in columns)
    body = []
    for row in rows:
        cells = []
        for column in columns:
            cell = (table.rows[row], table.columns[column])
            share = table.counts[row][column] / max(sum(table.counts[row]), 1)
            good = cell[0] not in (NOTHING, OTHER_BOUNDS) and f"{row},{column}" in right
            cells.append(_cell(table.counts[row][column], share, cell, f"{row},{column}", good=good))
        body.append(f'<tr><th scope="row">{escape(table.rows[row])}</th>{"".join(cells)}</tr>')
    rest = len(table.columns) - len(columns)
    note = f" The {rest} rarest labels are left out." if rest else ""
    return (
        "<h2>What was taken for what</h2>"
        f'<p class="faint">Rows are right, columns were said. A cell shows the examples behind it.{note}</p>'
        f'<div class="wide"><table id="confusion"><thead><tr><th scope="col">right \\ said</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(count: int, share: float, cell: tuple[str, str], key: str, *, good: bool) -> str:
    if not count:
        return '<td class="empty">·</td>'
    shade = max(1, round(share * SHADES))
    label = escape(f"{cell[0]} taken for {cell[1]}: {count:,}")
    kind = f"{'good' if good else 'bad'} s{shade}"
    start = f'<button type="button" class="{kind}" data-cell="{key}" aria-label="{label}">'
    return f"<td>{start}{count:,}</button></td>"


def _labels(evaluation: Evaluation) -> str:
    heads = ["label", "F1", "precision", "recall", "right ones", "said"]
    rows = (
        [one.label, *map(format_score, (one.f1, one.precision, one.recall)), f"{one.gold:,}", f"{one.found:,}"]
        for one in evaluation.by_label
    )
    return f"<h2>By label</h2>{pages.table(heads, rows)}"


def _lengths(evaluation: Evaluation) -> str:
    if not evaluation.by_length:
        return ""
    heads = [evaluation.unit, "examples", "cut", metric_title(evaluation.main_metric)]
    rows = (
        [f"{one.least:,} – {one.most:,}", f"{one.examples:,}", f"{one.cut:,}", format_score(one.score)]
        for one in evaluation.by_length
    )
    return f"<section><h2>By length</h2>{pages.table(heads, rows)}</section>"


def _calibration(found: Calibration) -> str:
    """How often answers are right, by how sure the model is: a model that knows follows the line."""
    width, height, left, top = 320, 200, 44, 8
    bars = []
    for one in found.bins:
        x, wide = left + one.low * width, width / 10 - 4
        y, tall = top + (1 - one.right) * height, one.right * height
        words = f"sure {one.low:.0%} to {one.high:.0%}: {one.answers:,} answers, {one.right:.1%} of them right"
        place = f'x="{x + 2:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{max(tall, 1):.1f}"'
        bars.append(f'<rect class="bar" {place}><title>{words}</title></rect>')
    steps = (
        f'<text x="{left - 6}" y="{top + (1 - share) * height + 4:.0f}" text-anchor="end">{share:.0%}</text>'
        f'<text x="{left + share * width:.0f}" y="{top + height + 16}" text-anchor="middle">{share:.0%}</text>'
        for share in (0.0, 0.5, 1.0)
    )
    line = f'<line class="ideal" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top}"/>'
    floor = f'<line class="floor" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}"/>'
    title = f"Share of right answers by how sure the model is; expected calibration error {found.ece:.3f}"
    heads = ["sure", "answers", "mean", "right"]
    rows = (
        [f"{one.low:.0%} – {one.high:.0%}", f"{one.answers:,}", f"{one.sure:.1%}", f"{one.right:.1%}"]
        for one in found.bins
    )
    return (
        f'<section><h2>How sure, how right</h2><p class="faint">Expected calibration error {found.ece:.3f}</p>'
        f'<figure><svg role="img" aria-label="{title}" viewBox="0 0 {left + width + 20} {top + height + 22}">'
        f"{floor}{''.join(bars)}{line}{''.join(steps)}</svg></figure>"
        f"<details><summary>Numbers</summary>{pages.table(heads, rows)}</details></section>"
    )


def _facts(evaluation: Evaluation) -> str:
    rows = [
        ["rows of", f"{evaluation.max_length} places"],
        ["time", f"{evaluation.seconds:.1f} s"],
        *([key, value] for key, value in evaluation.detected.items()),
    ]
    types = [[metric_title(key), format_score(value)] for key, value in evaluation.scores.items() if " " in key]
    return f"<details><summary>Facts</summary>{pages.table(['fact', 'value'], [*rows, *types], wrap=True)}</details>"
