"""The page of a study of features of frozen language models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertsmith.reports import html
from bertsmith.reports.layer_weights import weight_figures
from bertsmith.reports.terminal_runs import beside_published
from bertsmith.reports.text_table import TextTable
from bertsmith.studies.study_page import write_study_page

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
    main = f"{html.section(title, caption(table), score_table(table).html())}{_weights(table)}"
    return write_study_page(path, heading="Features of language models", title=title, main=main)


def caption(table: Mapping[str, Any]) -> str:
    """What the scores are."""
    source = f"; in parentheses: {table['source']}" if table["source"] else ""
    runs = max(cell["score"]["runs"] for row in table["rows"] for cell in row["cells"].values())
    what = f"Best dev score, mean ± standard deviation of {runs} runs" if runs > 1 else "Best dev score"
    return f"{what}, in percent{source}"


def score_table(table: Mapping[str, Any]) -> TextTable:
    """One row per variant, one column per task, the paper's scores in parentheses."""
    first = table["rows"][0]["cells"]
    headings = ["", *(f"{task} {first[task]['metric']}" for task in table["tasks"])]
    return TextTable(
        headings,
        [[row["name"], *(beside_published(row["cells"][task]) for task in table["tasks"])] for row in table["rows"]],
    )


def _weights(table: Mapping[str, Any]) -> str:
    """The learned weights of each mix, by row and task."""
    found = [
        figure
        for row in table["rows"]
        for task, cell in row["cells"].items()
        for figure in weight_figures(cell["weights"], title=f"{row['name']}, {task}")
    ]
    return f"<h2>Learned weights of the layers</h2>{html.figure_grid(found)}" if found else ""
