"""The results of a study of sample efficiency: in the terminal, as Markdown, and as a page with a chart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from rich.text import Text

from bertsmith.reports import html
from bertsmith.reports.comparison import dotted
from bertsmith.reports.terminal import console
from bertsmith.reports.terminal_runs import mean_and_deviation
from bertsmith.reports.text_charts import axis_ticks, number
from bertsmith.reports.text_table import TextTable
from bertsmith.studies.study_page import write_study_page

UNKNOWN = "—"
BROAD, NARROW = (860, 400), (360, 320)  # pixels of the chart on a wide screen and on a phone
LEFT, RIGHT, TOP, BOTTOM = 48, 18, 34, 48  # margins of a chart
SHIFT = 3.0  # pixels between the points of two models at one size
LINE = 16  # pixels of a line of labels on the x axis
LABEL_WIDTH = 7.5  # pixels of a character on the x axis

Table = Mapping[str, Any]


def score_table(table: Table) -> TextTable:
    """Labels, then mean ± standard deviation in percent of each model."""
    headings = ["Labels", *(model["name"] for model in table["models"])]
    columns = [[_score(cell) for cell in model["scores"]] for model in table["models"]]
    rows = [[size, *row] for size, *row in zip(_sizes(table), *columns, strict=True)]
    return TextTable(headings, rows, left=0)


def label_table(table: Table) -> TextTable | None:
    """The labels that training from scratch needs for the score of each other model."""
    models = [model for model in table["models"] if model["labels_from_scratch"] is not None]
    if not models:
        return None
    headings = ["Labels", *(model["name"] for model in models)]
    rows = [
        [label, *(_needed(model["labels_from_scratch"][index], size) for model in models)]
        for index, (label, size) in enumerate(zip(_sizes(table), table["sizes"], strict=True))
    ]
    return TextTable(headings, rows, left=0)


def _sizes(table: Table) -> list[str]:
    """`140 (1%)`, or `140` if the size was given as a number."""
    pairs = zip(table["sizes"], table["percentages"], strict=True)
    return [f"{size:,} ({percentage})" if percentage else f"{size:,}" for size, percentage in pairs]


def _score(cell: Mapping[str, Any] | None) -> str:
    return UNKNOWN if cell is None else mean_and_deviation(cell)


def _needed(labels: float | None, size: int) -> str:
    """`1,250 (12.5×)`."""
    return UNKNOWN if labels is None else f"{labels:,.0f} ({labels / size:.1f}×)"


def caption(table: Table) -> str:
    """What the scores are."""
    runs = f"mean ± sd of {table['seeds']} seeds" if table["seeds"] > 1 else "one seed"
    return f"{_metric(table)} on {table['split']} ({table['examples']:,} examples), {runs}, in percent"


def label_title(table: Table) -> str:
    """The title of the second table."""
    return f"Labels that from-scratch training needs for the same {_metric(table)}"


def show(table: Table) -> None:
    """Prints both tables."""
    score_table(table).print(_sentence(caption(table)))
    if needed := label_table(table):
        needed.print(f"{label_title(table)} ({UNKNOWN}: outside its range)")
    console.print(Text(f"page: {table['page']}", "dim"), soft_wrap=True)


def markdown(table: Table) -> str:
    """Both tables."""
    parts = [f"# Sample efficiency: {table['task']}", f"{_sentence(caption(table))}.", score_table(table).markdown()]
    if needed := label_table(table):
        parts += [f"{label_title(table)} (interpolated; {UNKNOWN}: outside its range):", needed.markdown()]
    return "\n\n".join(parts) + "\n"


def write_page(table: Table, path: Path) -> Path:
    """Writes the page and returns its path."""
    scores = f"<h2>Scores</h2>{score_table(table).html()}"
    main = "\n".join([_head(table), _figure(table), scores, _labels(table), _facts(table)])
    title = f"Sample efficiency: {table['task']}"
    return write_study_page(path, heading="Sample efficiency", title=title, main=main)


def _head(table: Table) -> str:
    done = sum(cell is not None for model in table["models"] for cell in model["scores"])
    cells = len(table["models"]) * len(table["sizes"])
    left = "" if done == cells else f" · {done} of {cells} cells finished"
    return html.section(table["task"], caption(table) + left)


def _labels(table: Table) -> str:
    needed = label_table(table)
    if needed is None:
        return ""
    about = "Between two sizes, linear in the logarithm of the number of labels; in parentheses the factor."
    return html.section(label_title(table), about, needed.html())


def _facts(table: Table) -> str:
    """Models and settings."""
    models = {
        model["name"]: f"random weights, shape of {model['folder']}" if model["random_init"] else model["folder"]
        for model in table["models"]
    }
    general = {
        "training examples": f"{table['train_examples']:,}",
        "steps of a run": f"at least {table['min_steps']:,}",
        "baseline": table["baseline"]["description"],
    }
    settings = {name: str(value) for name, value in dotted(table["settings"]).items() if name not in ("model", "limit")}
    rows = html.table(["fact", "value"], [*models.items(), *general.items()], wrap=True)
    listed = html.table(["setting", "value"], settings.items(), wrap=True)
    return (
        f"<details><summary>Models and settings</summary>{rows}<h4>Settings of the first model</h4>{listed}</details>"
    )


def _figure(table: Table) -> str:
    """The chart in two widths, of which the style shows one, so that its text is never scaled down."""
    key = "".join(
        f'<li><svg width="30" height="12" aria-hidden="true" class="{_classes(model)}">'
        f'<path class="curve c{index % 10}" d="M0 6H30"/>{_point(15, 6, index)}</svg>{escape(model["name"])}</li>'
        for index, model in enumerate(table["models"])
    )
    charts = "".join(
        chart(table, width=width, height=height, name=name)
        for name, (width, height) in (("broad", BROAD), ("narrow", NARROW))
    )
    return f'<figure class="by-size"><ul class="key">{key}</ul>{charts}</figure>'


def chart(table: Table, *, width: int, height: int, name: str) -> str:
    """Scores in percent over the number of labels, on a logarithmic axis, with error bars of one standard deviation."""
    axes = _Axes(table, width, height)
    curves = [
        f'<g class="{_classes(model)}">{_curve(axes, model, index, len(table["models"]))}</g>'
        for index, model in enumerate(table["models"])
    ]
    title = escape(f"{_metric(table)} by number of labels: {', '.join(model['name'] for model in table['models'])}")
    return (
        f'<svg role="img" class="{name}" aria-label="{title}" viewBox="0 0 {width} {height}">'
        f"{axes.markup(table)}{''.join(curves)}</svg>"
    )


class _Axes:
    """The scales of a chart."""

    def __init__(self, table: Table, width: int, height: int) -> None:
        self.width, self.sizes, self.percentages = width, table["sizes"], table["percentages"]
        self.floor = height - BOTTOM - (LINE if any(self.percentages) else 0)
        cells = [cell for model in table["models"] for cell in model["scores"] if cell]
        values = [100 * (cell["mean"] + sign * (cell["deviation"] or 0)) for cell in cells for sign in (-1, 1)]
        self.base = None if table["baseline"]["score"] is None else 100 * table["baseline"]["score"]
        values += [] if self.base is None else [self.base]
        low, high = (min(values), max(values)) if values else (0.0, 100.0)
        margin = 0.05 * (high - low) or 1.0
        self.low, self.high = low - margin, high + margin
        self.first, self.last = math.log(self.sizes[0]), math.log(self.sizes[-1])

    def x(self, size: int) -> float:
        """The place of a number of labels, in the middle if there is only one."""
        share = (math.log(size) - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + 14 + share * (self.width - LEFT - RIGHT - 28)

    def y(self, percent: float) -> float:
        """The place of a score."""
        return TOP + (self.high - percent) / (self.high - self.low) * (self.floor - TOP)

    def markup(self, table: Table) -> str:
        """Grid, ticks, labels and the baseline."""
        right, floor = self.width - RIGHT, self.floor
        parts = []
        for value in axis_ticks(self.low, self.high, 6):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
        parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{floor}" y2="{floor}"/>')
        parts += self._size_labels()
        if self.base is not None:
            y, label = self.y(self.base), escape(table["baseline"]["description"])
            parts.append(f'<line class="base" x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{right}" y="{y - 5:.1f}" text-anchor="end">{label}</text>')
        bottom = floor + 40 + (LINE if any(self.percentages) else 0)
        axis = f'<text x="{right}" y="{bottom}" text-anchor="end">labelled training examples</text>'
        unit = f'<text x="{LEFT - 40}" y="{TOP - 18}">{escape(_metric(table))} in %</text>'
        return "".join([*parts, axis, unit])

    def _size_labels(self) -> Iterator[str]:
        """Ticks, each with its number of labels, and with the percentage below if it was given as one."""
        free = -math.inf
        sizes = list(zip(self.sizes, self.percentages, strict=True))
        for size, percentage in reversed(sizes):  # the label of the largest size is always shown
            x, lines = self.x(size), [number(size), *([percentage] if percentage else [])]
            yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{self.floor}" y2="{self.floor + 5}"/>'
            half = max(map(len, lines)) * LABEL_WIDTH / 2
            if -x - half >= free:
                for row, text in enumerate(lines):
                    y = self.floor + 20 + row * LINE
                    yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'
                free = -x + half + 4


def _curve(axes: _Axes, model: Mapping[str, Any], index: int, count: int) -> str:
    """Line, error bars and points of a model, shifted a little so that those of several models do not overlap."""
    shift = SHIFT * (index - (count - 1) / 2)
    bars, points, places = [], [], []
    for size, cell in zip(axes.sizes, model["scores"], strict=True):
        if cell is None:
            continue
        x, y = axes.x(size) + shift, axes.y(100 * cell["mean"])
        places.append(f"{x:.1f} {y:.1f}")
        if cell["deviation"]:
            top, bottom = (axes.y(100 * (cell["mean"] + sign * cell["deviation"])) for sign in (1, -1))
            cap = f"M{x - 4:.1f} {{}}H{x + 4:.1f}"
            ends = "".join(cap.format(f"{end:.1f}") for end in (top, bottom))
            bars.append(f'<path class="error c{index % 10}" d="M{x:.1f} {top:.1f}V{bottom:.1f}{ends}"/>')
        title = escape(f"{model['name']}, {size:,} labels: {mean_and_deviation(cell)}")
        points.append(_point(x, y, index, title))
    line = f'<path class="curve c{index % 10}" d="M{"L".join(places)}"/>' if places else ""
    return line + "".join(bars) + "".join(points)


def _point(x: float, y: float, index: int, title: str = "") -> str:
    inside = f"<title>{title}</title>" if title else ""
    return f'<circle class="c{index % 10} point" cx="{x:.1f}" cy="{y:.1f}" r="4.5">{inside}</circle>'


def _classes(model: Mapping[str, Any]) -> str:
    return "scratch" if model["random_init"] else "pretrained"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _metric(table: Table) -> str:
    return str(table["metric"]).replace("_", " ")
