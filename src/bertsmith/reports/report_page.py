"""The report page: one or several runs in a single HTML file with style, script and data inside."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError
from bertsmith.reports import run_summary
from bertsmith.reports.comparison import differences, dotted, scores, shared, with_unique_names
from bertsmith.reports.event_log import Curve
from bertsmith.reports.html import ASSETS, figure_grid, figures, render_main, render_page, table, write
from bertsmith.reports.layer_weights import weight_figures, weights_of
from bertsmith.reports.run_history import RunHistory, read_run
from bertsmith.reports.text_charts import smooth, smoothing, thin
from bertsmith.system.progress import format_duration

MAX_ROWS = 100  # of a table of numbers
MAX_POINTS = 2000  # of one curve
MAX_PAGE_POINTS = 90_000  # of all curves together: keeps the page under 2 MB
AXIS_POINTS = 400  # steps whose token count and time are stored
MAX_MARKS = 200
SHORT_HEADLINE = ("steps", "tokens", "training time", "parameters", "device")


def write_report(runs: Sequence[RunHistory | str | Path], path: str | Path) -> Path:
    """Writes the report of `runs` (run folders or histories) and returns its path."""
    if not runs:
        raise BertsmithError("a report needs at least one run")
    histories = with_unique_names([run if isinstance(run, RunHistory) else read_run(run) for run in runs])
    return write(Path(path), page(histories))


def page(runs: Sequence[RunHistory]) -> str:
    """The page as text."""
    names = ", ".join(run.name for run in runs)
    title = names if len(names) < 80 else f"{len(runs)} runs"
    main = render_main(ASSETS, "report", parts=page_parts(runs))
    return render_page(ASSETS, "report", heading="Training report", title=title, main=main, data=page_data(runs))


def page_data(runs: Sequence[RunHistory]) -> dict[str, Any]:
    """Runs and charts for the page's script, as plain JSON; curves are thinned to what a screen can show."""
    names = run_summary.chart_names(runs)
    curves = sum(2 * (name in run.curves) + (name in run.held_out) for run in runs for name in names)
    points = max(min(MAX_POINTS, MAX_PAGE_POINTS // max(curves, 1)), 50)
    return {
        "runs": [{"name": run.name, "axis": _axis(run), "marks": _marks(run)} for run in runs],
        "charts": [_chart(name, runs, points) for name in names],
    }


def page_parts(runs: Sequence[RunHistory]) -> dict[str, str]:
    """The markup around the charts."""
    return {
        "heads": "".join(_head(run, short=len(runs) > 1) for run in runs),
        "scores": _scores(runs) if len(runs) > 1 else "",
        "recipes": _recipe(runs[0]) if len(runs) == 1 else _recipe_differences(runs),
        "tables": "".join(_facts(run) + _numbers(run) for run in runs),
    }


def _chart(name: str, runs: Sequence[RunHistory], points: int) -> dict[str, Any]:
    heading, unit = run_summary.title(name)
    factor = 100.0 if run_summary.is_fraction(name) else 1.0
    series, lines = list[dict[str, Any]](), dict[str, float]()
    for index, run in enumerate(runs):
        if name in run.curves:
            series += _training_series(index, name, run.curves[name], factor, points)
        if name in run.held_out:
            series.append(_series(index, "held out", run.held_out[name], factor, points))
        lines |= {label: value * factor for label, value in run_summary.baselines(run, name).items()}
    return {
        "name": name,
        "title": heading,
        "unit": unit,
        "perplexity": run_summary.perplexity(name, 0.0) is not None,
        "log": name == "gradient_norm",
        "series": series,
        "lines": [{"label": label, "value": value} for label, value in lines.items()],
    }


def _training_series(run: int, name: str, curve: Curve, factor: float, points: int) -> Iterable[dict[str, Any]]:
    yield _series(run, "each step", curve, factor, points)
    if name != "learning_rate" and len(curve) > 20:
        values = smooth(curve.values, smoothing(len(curve)))
        indices = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), points // 2)).astype(int))
        yield _series(run, "smoothed", Curve(curve.steps[indices], values[indices]), factor, points)


def _series(run: int, kind: str, curve: Curve, factor: float, points: int) -> dict[str, Any]:
    indices = thin(curve.values, points)
    x, y = curve.steps[indices].tolist(), (curve.values[indices] * factor).tolist()
    return {"run": run, "kind": kind, "x": x, "y": [_rounded(value) for value in y]}


def _axis(run: RunHistory) -> dict[str, list[float]]:
    """Tokens and minutes at some of the steps, between which the page interpolates."""
    tokens, seconds = run.curves.get("tokens"), run.curves.get("seconds")
    if tokens is None or seconds is None or not len(tokens):
        return {"steps": [], "tokens": [], "minutes": []}
    indices = np.unique(np.linspace(0, len(tokens) - 1, min(len(tokens), AXIS_POINTS)).astype(int))
    return {
        "steps": [0, *tokens.steps[indices].tolist()],
        "tokens": [0, *np.nancumsum(tokens.values)[indices].astype(int).tolist()],
        "minutes": [0, *(_rounded(value / 60) or 0.0 for value in np.nancumsum(seconds.values)[indices].tolist())],
    }


def _marks(run: RunHistory) -> list[dict[str, Any]]:
    """Restarts, skipped steps, a limited number of checkpoints, and the best evaluation."""
    important = [mark for mark in run.marks if mark.kind in ("restart", "skipped")][:MAX_MARKS]
    saved = [mark for mark in run.marks if mark.kind == "checkpoint"]
    saved = saved[:: max(-(-len(saved) // MAX_MARKS), 1)]
    marks = [{"kind": mark.kind, "step": mark.step, "text": mark.text} for mark in [*saved, *important]]
    return [*marks, {"kind": "best", "step": run.best[0], "text": f"{run.best[1]:.4f}"}] if run.best else marks


def _rounded(value: float) -> float | None:
    """Five significant digits; None for a gap."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _head(run: RunHistory, *, short: bool) -> str:
    """Name, state and figures of a run; fewer figures where a table of scores follows."""
    facts = {name: value for name, value in run_summary.headline(run).items() if not short or name in SHORT_HEADLINE}
    notes = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    date = None if run.started is None else datetime.fromtimestamp(run.started, UTC)
    started = f" · started {date:%Y-%m-%d %H:%M} UTC" if date else ""
    return (
        f'<section class="run"><h2>{escape(run.name)} <span class="state {run.state}">{run.state}</span></h2>'
        f'<p class="faint">{escape(run.recipe_name)}{started}</p>{figures(facts)}'
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}{_data(run)}{_layer_weights(run)}</section>"
    )


def _data(run: RunHistory) -> str:
    """The run's tokenizer, shards and share of padding."""
    labels = {"tokenizer": "tokenizer", "data": "shards"}.items()
    items = [f"{label} <code>{escape(str(run.facts[key])[:16])}</code>" for key, label in labels if key in run.facts]
    if isinstance(run.facts.get("padding"), int | float):
        items.append(f"padding {run.facts['padding']:.1%}")
    return f'<p class="faint">Data: {" · ".join(items)}</p>' if items else ""


def _layer_weights(run: RunHistory) -> str:
    """The learned weights of layers, where the run has a mix of them."""
    weights = weights_of(run)
    return f"<h3>Learned weights of the layers</h3>{figure_grid(weight_figures(weights))}" if weights else ""


def _scores(runs: Sequence[RunHistory]) -> str:
    rows = scores(runs)
    headings = map(run_summary.score_name, rows[0])
    return "<h2>Scores</h2>" + table(headings, ([_cell(value, name) for name, value in row.items()] for row in rows))


def _recipe(run: RunHistory) -> str:
    return f"<details><summary>Recipe</summary>{_settings(dotted(run.recipe))}</details>" if run.recipe else ""


def _recipe_differences(runs: Sequence[RunHistory]) -> str:
    different, same = differences(runs), shared(runs)
    rows = ([key, *(json.dumps(value, ensure_ascii=False) for value in values)] for key, values in different.items())
    headings = ["setting", *(run.name for run in runs)]
    markup = table(headings, rows, wrap=True) if different else "<p>The recipes are the same.</p>"
    return (
        f"<h2>Recipe differences</h2>{markup}"
        f"<details><summary>{len(same)} settings with the same value in all runs</summary>{_settings(same)}</details>"
    )


def _settings(settings: Mapping[str, Any]) -> str:
    rows = ([key, json.dumps(value, ensure_ascii=False)] for key, value in settings.items())
    return table(["setting", "value"], rows, wrap=True)


def _facts(run: RunHistory) -> str:
    rows = ([key.replace("_", " "), _cell(value)] for key, value in dotted(run.facts).items())
    markup = table(["fact", "value"], rows, wrap=True)
    return f"<details><summary>Facts about {escape(run.name)}</summary>{markup}</details>" if run.facts else ""


def _numbers(run: RunHistory) -> str:
    """The curves as tables, which screen readers can read."""
    tables = []
    for caption, curves in (("held out", run.held_out), ("training", run.curves)):
        if curves:
            steps = max((curve.steps for curve in curves.values()), key=len)
            headings = ["step", *(run_summary.title(name)[0] for name in curves)]
            rows = (
                [f"{steps[index]:,}", *(_cell(float(curve.values[index]), name) for name, curve in curves.items())]
                for index in thin(np.arange(len(steps)), MAX_ROWS)
            )
            tables.append(f"<h4>{caption}</h4>{table(headings, rows)}")
    return f"<details><summary>Numbers of {escape(run.name)}</summary>{''.join(tables)}</details>" if tables else ""


def _cell(value: Any, name: str = "") -> str:
    if value is None:
        return "–"
    if run_summary.is_fraction(name) or name == "seconds":
        return f"{value:.1%}" if run_summary.is_fraction(name) else format_duration(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
