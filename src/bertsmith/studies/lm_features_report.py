"""The page of a study of features of frozen language models: one file that makes no requests."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from bertsmith.reports import html
from bertsmith.reports.layer_weights import picture
from bertsmith.reports.terminal_runs import mean_and_deviation

ASSETS = files("bertsmith.studies") / "assets"
TITLES = {
    "position": "Where the features are read",
    "models": "Language models",
    "layers": "Layers of the language model",
    "mix": "Regularisation of the mix",
    "injection": "Input or output of the recurrent layers",
}


def write_page(table: Mapping[str, Any], path: Path) -> Path:
    """Writes the page and returns its path."""
    title = TITLES[table["table"]]
    parts = {"head": _head(table, title), "scores": _scores(table), "weights": _weights(table)}
    return html.write(path, html.render_page(ASSETS, "lm_features", title=title, data=None, parts=parts))


def _head(table: Mapping[str, Any], title: str) -> str:
    source = f"; in parentheses: {table['source']}" if table["source"] else ""
    runs = max(cell["score"]["runs"] for row in table["rows"] for cell in row["cells"].values())
    what = f"Best dev score, mean ± standard deviation of {runs} runs, in percent" if runs > 1 else "Best dev score"
    return f'<h2>{escape(title)}</h2><p class="faint">{escape(what + source)}</p>'


def _scores(table: Mapping[str, Any]) -> str:
    first = table["rows"][0]["cells"]
    headings = ["", *(f"{task} {first[task]['metric']}" for task in table["tasks"])]
    rows = ([row["name"], *(_text(row["cells"][task]) for task in table["tasks"])] for row in table["rows"])
    return html.table(headings, rows)


def _text(cell: Mapping[str, Any]) -> str:
    published = cell["published"]
    return mean_and_deviation(cell["score"]) + ("" if published is None else f" ({published:.1f})")


def _weights(table: Mapping[str, Any]) -> str:
    """The learned weights of each mix, by row and task."""
    pictures = [
        picture(cell["weights"], title=f"{row['name']}, {task}")
        for row in table["rows"]
        for task, cell in row["cells"].items()
        if cell["weights"]
    ]
    return f"<h2>Learned weights of the layers</h2>{''.join(pictures)}" if pictures else ""
