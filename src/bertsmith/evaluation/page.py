"""HTML page of an evaluation: scores, confusion matrix with the examples behind its cells, errors, calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from itertools import chain
from typing import Any

from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.tables import Calibration, Confusion
from bertsmith.reports import html as pages
from bertsmith.tasks.task import Case
from bertsmith.tasks.token_classification import NOTHING, OTHER_BOUNDS

ASSETS = files("bertsmith.evaluation") / "assets"
MAX_LABELS = 40  # of the confusion matrix; the most frequent ones if there are more
MAX_CASES = 4000  # examples behind all cells together
MAX_CHARACTERS = 1500  # of a text
SHADES = 9


def page(result: Evaluation) -> str:
    """The full page."""
    data = page_data(result)
    title = f"{result.task} {result.split}"
    return pages.render_page(ASSETS, "evaluation", title=title, data=data, parts=_sections(result, data))


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


def headline(result: Evaluation) -> dict[str, str]:
    """The figures at the top: main metric with its interval, examples, throughput."""
    figures = {}
    if interval := result.interval:
        figures[metric_title(result.main_metric)] = format_score(result.scores[result.main_metric])
        figures[f"{interval.level:.0%} interval"] = f"{format_score(interval.low)} – {format_score(interval.high)}"
    figures["examples"] = f"{result.examples:,}"
    figures["truncated"] = f"{result.truncated:,}"
    figures["texts / s"] = f"{result.texts_per_second:,.0f}"
    return figures


def metric_title(key: str) -> str:
    """The name of a metric in a table."""
    return key.replace("_", " ")


def format_score(value: float | None) -> str:
    """A score with four digits."""
    return "–" if value is None else f"{value:.4f}"


def confidence_title(result: Evaluation) -> str:
    """The name of `Case.confidence`."""
    return "probability" if result.probabilities else "error"


def score_tables(result: Evaluation) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Headings and rows of each table of scores, by title."""
    tables = {}
    if result.baseline:
        others, overall = result.baseline.scores, {key: value for key, value in result.scores.items() if " " not in key}
        rows = [[metric_title(key), format_score(overall[key]), format_score(others.get(key))] for key in overall]
        tables["Scores"] = (["score", "this model", result.baseline.description], rows)
    if result.by_label:
        rows = [
            [one.label, *map(format_score, (one.f1, one.precision, one.recall)), f"{one.gold:,}", f"{one.predicted:,}"]
            for one in result.by_label
        ]
        tables["By label"] = (["label", "F1", "precision", "recall", "gold", "predicted"], rows)
    if result.by_length:
        rows = [
            [f"{one.shortest:,} – {one.longest:,}", f"{one.examples:,}", f"{one.truncated:,}", format_score(one.score)]
            for one in result.by_length
        ]
        tables["By length"] = ([result.unit, "examples", "truncated", metric_title(result.main_metric)], rows)
    return tables


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
        "scores": tables.get("Scores", "<p>These examples have no gold labels, so there are no scores.</p>"),
        "confusion": _confusion(result.confusion, data) if result.confusion else "",
        "labels": tables.get("By label", ""),
        "lengths": f"<section>{tables['By length']}</section>" if result.by_length else "",
        "calibration": _calibration(result.calibration) if result.calibration else "",
        "facts": _facts(result),
    }


def _head(result: Evaluation) -> str:
    about = escape(f"{result.model} · {result.split} · {result.device}")
    return f'<h2>{escape(result.task)}</h2><p class="faint">{about}</p>{pages.figures(headline(result))}'


def _confusion(table: Confusion, data: Mapping[str, Any]) -> str:
    rows, columns = table.shown(MAX_LABELS)
    correct = {key for key, indices in data["cells"].items() if any(data["cases"][index][-1] for index in indices)}
    head = "".join(f'<th scope="col">{escape(table.columns[column])}</th>' for column in columns)
    body = []
    for row in rows:
        cells = []
        for column in columns:
            cell, key = (table.rows[row], table.columns[column]), f"{row},{column}"
            share = table.counts[row][column] / max(sum(table.counts[row]), 1)
            good = cell[0] not in (NOTHING, OTHER_BOUNDS) and key in correct
            cells.append(_cell(table.counts[row][column], share, cell, key, good=good))
        body.append(f'<tr><th scope="row">{escape(table.rows[row])}</th>{"".join(cells)}</tr>')
    rest = len(table.columns) - len(columns)
    note = f" The {rest} rarest labels are left out." if rest else ""
    return (
        "<h2>Confusion matrix</h2>"
        f'<p class="faint">Rows are gold labels, columns are predictions. Click a cell to see its examples.{note}</p>'
        f'<div class="wide"><table id="confusion"><thead><tr><th scope="col">gold \\ predicted</th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _cell(count: int, share: float, cell: tuple[str, str], key: str, *, good: bool) -> str:
    if not count:
        return '<td class="empty">·</td>'
    label = escape(f"{cell[0]} predicted as {cell[1]}: {count:,}")
    shade = f"{'good' if good else 'bad'} s{max(1, round(share * SHADES))}"
    start = f'<button type="button" class="{shade}" data-cell="{key}" aria-label="{label}">'
    return f"<td>{start}{count:,}</button></td>"


def _calibration(table: Calibration) -> str:
    """Reliability diagram: accuracy by confidence; a calibrated model follows the diagonal."""
    width, height, left, top = 320, 200, 44, 8
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
    title = f"Accuracy by confidence; expected calibration error {table.ece:.3f}"
    rows = (
        [f"{one.low:.0%} – {one.high:.0%}", f"{one.count:,}", f"{one.confidence:.1%}", f"{one.accuracy:.1%}"]
        for one in table.bins
    )
    numbers = pages.table(["confidence", "predictions", "mean", "accuracy"], rows)
    return (
        f'<section><h2>Calibration</h2><p class="faint">Expected calibration error {table.ece:.3f}</p>'
        f'<figure><svg role="img" aria-label="{title}" viewBox="0 0 {left + width + 20} {top + height + 22}">'
        f"{floor}{''.join(bars)}{diagonal}{''.join(ticks)}</svg></figure>"
        f"<details><summary>Numbers</summary>{numbers}</details></section>"
    )


def _facts(result: Evaluation) -> str:
    facts = {"max length": f"{result.max_length} tokens", "time": f"{result.seconds:.1f} s", **result.detected}
    types = [(metric_title(key), format_score(value)) for key, value in result.scores.items() if " " in key]
    rows = [*facts.items(), *types]
    return f"<details><summary>Facts</summary>{pages.table(['fact', 'value'], rows, wrap=True)}</details>"
