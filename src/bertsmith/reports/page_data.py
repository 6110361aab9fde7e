"""What a page about runs embeds: every curve thinned to what a screen can show, as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bertsmith.reports.run_history import TOTAL, History
from bertsmith.reports.run_summary import ACCURACY, LOSS, baselines, is_share, parts_of, perplexity, title
from bertsmith.reports.standing import Curve
from bertsmith.reports.text_charts import smooth, thin

MOST_POINTS = 2000  # of one curve
PAGE_POINTS = 90_000  # of all curves together, so that a page stays under 2 MB
AXIS_POINTS = 400  # that say how many tokens and minutes a step stands for
MOST_MARKS = 200
LEFT_OUT = ("count/", "rows", "tokens", "seconds", "cost")  # logged, but no curve of its own
AFTER_LOSSES = ("learning_rate", "gradient_norm", "tokens_per_second", "data_seconds")


def page_data(runs: Sequence[History]) -> dict[str, Any]:
    """Runs and charts for the page's script."""
    names = chart_names(runs)
    curves = sum(2 * (name in run.curves) + (name in run.held_out) for run in runs for name in names)
    points = max(min(MOST_POINTS, PAGE_POINTS // max(curves, 1)), 50)
    return {
        "runs": [{"name": run.name, "axis": _axis(run), "marks": _marks(run)} for run in runs],
        "charts": [_chart(name, runs, points) for name in names],
    }


def chart_names(runs: Sequence[History]) -> list[str]:
    """Curves that get a chart: losses, accuracies, other scores, then how the training went."""
    names = list(dict.fromkeys(name for run in runs for name in [*run.curves, *run.held_out]))
    names = [name for name in names if not name.startswith(LEFT_OUT) or name in AFTER_LOSSES]
    if all(len(parts_of(run)) == 1 for run in runs):
        names = [name for name in names if name != TOTAL]
    losses = [name for name in names if name == TOTAL or name.startswith(LOSS)]
    accuracies = [name for name in names if name.startswith(ACCURACY)]
    work = [name for name in AFTER_LOSSES if name in names]
    rest = [name for name in names if name not in {*losses, *accuracies, *work}]
    return [*losses, *accuracies, *rest, *work]


def smoothing(points: int) -> float:
    """The weight that averages over about a fiftieth of a curve, of a short one over up to ten points."""
    return 1 - 1 / max(points / 50, min(points / 6, 10), 1)


def _chart(name: str, runs: Sequence[History], points: int) -> dict[str, Any]:
    heading, unit = title(name)
    factor = 100.0 if is_share(name) else 1.0
    series, lines = list[dict[str, Any]](), dict[str, float]()
    for place, run in enumerate(runs):
        if name in run.curves:
            series += _training(place, name, run.curves[name], factor, points)
        if name in run.held_out:
            series.append(_points(place, "held out", run.held_out[name], factor, points))
        lines |= {line.label: line.value * factor for line in baselines(run, name)}
    words = perplexity(name, 0.0) is not None
    return {
        "name": name,
        "title": heading,
        "unit": unit,
        "perplexity": words,
        "log": name == "gradient_norm",
        "series": series,
        "lines": [{"label": label, "value": value} for label, value in lines.items()],
    }


def _training(run: int, name: str, curve: Curve, factor: float, points: int) -> Iterable[dict[str, Any]]:
    yield _points(run, "each step", curve, factor, points)
    if name != "learning_rate" and len(curve) > 20:
        values = smooth(curve.values, smoothing(len(curve)))
        places = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), points // 2)).astype(int))
        yield _points(run, "smoothed", Curve(curve.steps[places], values[places]), factor, points)


def _points(run: int, kind: str, curve: Curve, factor: float, points: int) -> dict[str, Any]:
    places = thin(curve.values, points)
    x, y = curve.steps[places].tolist(), (curve.values[places] * factor).tolist()
    return {"run": run, "kind": kind, "x": x, "y": [_short(value) for value in y]}


def _axis(run: History) -> dict[str, list[float]]:
    """How many tokens and minutes had gone by at some of the steps; between them the page interpolates."""
    tokens, seconds = run.curves.get("tokens"), run.curves.get("seconds")
    if tokens is None or seconds is None or not len(tokens):
        return {"steps": [], "tokens": [], "minutes": []}
    places = np.unique(np.linspace(0, len(tokens) - 1, min(len(tokens), AXIS_POINTS)).astype(int))
    return {
        "steps": [0, *tokens.steps[places].tolist()],
        "tokens": [0, *np.nancumsum(tokens.values)[places].astype(int).tolist()],
        "minutes": [0, *(_short(value / 60) or 0.0 for value in np.nancumsum(seconds.values)[places].tolist())],
    }


def _marks(run: History) -> list[dict[str, Any]]:
    """Restarts and skipped steps first; of checkpoints so many as there is room for."""
    said = [mark for mark in run.marks if mark.kind in ("restart", "skipped")][:MOST_MARKS]
    saved = [mark for mark in run.marks if mark.kind == "checkpoint"]
    saved = saved[:: max(-(-len(saved) // MOST_MARKS), 1)]
    found = [{"kind": mark.kind, "step": mark.step, "text": mark.text} for mark in [*saved, *said]]
    return [*found, {"kind": "best", "step": run.best[0], "text": f"{run.best[1]:.4f}"}] if run.best else found


def _short(value: float) -> float | None:
    """Five digits are more than a screen shows; None is a gap."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
