"""One page about one or several runs: a single HTML file with styles, script and data inside, that asks for nothing.

Everything that comes from a run is escaped, and the page forbids itself any script but its own and any request.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.errors import BertsmithError
from bertsmith.reports.comparison import differences, dotted, scores, shared, told_apart
from bertsmith.reports.html import figures as large
from bertsmith.reports.html import fill, table, write
from bertsmith.reports.page_data import page_data
from bertsmith.reports.run_history import History, read_run
from bertsmith.reports.run_summary import figures, is_share, score_name, title
from bertsmith.reports.text_charts import thin
from bertsmith.system.progress import clock

MOST_ROWS = 100  # of a table of numbers
BRIEF = ("steps", "tokens", "training time", "parameters", "device")


def write_report(runs: Sequence[History | str | Path], path: str | Path) -> Path:
    """Writes the page about `runs` (run folders, or what `read_run` made of them) and returns its path."""
    if not runs:
        raise BertsmithError("a report needs at least one run")
    read = told_apart([run if isinstance(run, History) else read_run(run) for run in runs])
    return write(Path(path), page(read))


def page(runs: Sequence[History]) -> str:
    """The whole page as text."""
    names = ", ".join(run.name for run in runs)
    heading = names if len(names) < 80 else f"{len(runs)} runs"
    folder = files("bertsmith.reports") / "assets"
    return fill(folder, "report", title=heading, data=page_data(runs), parts=page_parts(runs))


def page_parts(runs: Sequence[History]) -> dict[str, str]:
    """What stands round the charts, as markup."""
    return {
        "heads": "".join(_head(run, brief=len(runs) > 1) for run in runs),
        "scores": _scores(runs) if len(runs) > 1 else "",
        "recipes": _recipe(runs[0]) if len(runs) == 1 else _recipe_differences(runs),
        "tables": "".join(_facts(run) + _numbers(run) for run in runs),
    }


# --- parts of the page -----------------------------------------------------------------------------------------------


def _head(run: History, *, brief: bool) -> str:
    """What a run is and how far it came; brief where a table of scores follows."""
    facts = {name: value for name, value in figures(run).items() if not brief or name in BRIEF}
    notes = "".join(f"<li>{escape(note)}</li>" for note in run.notes)
    began = f" · begun {datetime.fromtimestamp(run.began, UTC):%Y-%m-%d %H:%M} UTC" if run.began is not None else ""
    return (
        f'<section class="run"><h2>{escape(run.name)} <span class="state {run.state}">{run.state}</span></h2>'
        f'<p class="faint">{escape(run.recipe_name)}{began}</p>{large(facts)}'
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}{_data(run)}</section>"
    )


def _data(run: History) -> str:
    """What the run was trained on, and what else it says of itself."""
    named = {"tokenizer": "tokenizer", "data": "shards"}
    known = [
        f"{label} <code>{escape(str(run.facts[fact])[:16])}</code>"
        for fact, label in named.items()
        if fact in run.facts
    ]
    if isinstance(run.facts.get("padding"), int | float):
        known.append(f"padding {run.facts['padding']:.1%}")
    return f'<p class="faint">Data: {" · ".join(known)}</p>' if known else ""


def _scores(runs: Sequence[History]) -> str:
    rows = scores(runs)
    heads = [{"seconds": "training time"}.get(name, score_name(name)) for name in rows[0]]
    return "<h2>Scores</h2>" + table(heads, ([_cell(value, name) for name, value in row.items()] for row in rows))


def _recipe(run: History) -> str:
    rows = ([key, json.dumps(value, ensure_ascii=False)] for key, value in dotted(run.recipe).items())
    return (
        f"<details><summary>Recipe</summary>{table(['setting', 'value'], rows, wrap=True)}</details>"
        if run.recipe
        else ""
    )


def _recipe_differences(runs: Sequence[History]) -> str:
    found, same = differences(runs), shared(runs)
    rows = ([key, *(json.dumps(value, ensure_ascii=False) for value in values)] for key, values in found.items())
    heads = ["setting", *(run.name for run in runs)]
    apart = table(heads, rows, wrap=True) if found else "<p>The recipes are the same.</p>"
    rest = table(
        ["setting", "value"], ([key, json.dumps(value, ensure_ascii=False)] for key, value in same.items()), wrap=True
    )
    return (
        f"<h2>Where the recipes differ</h2>{apart}"
        f"<details><summary>{len(same)} settings that all share</summary>{rest}</details>"
    )


def _facts(run: History) -> str:
    """What the run says of itself, all of it."""
    rows = ([key.replace("_", " "), _cell(value)] for key, value in dotted(run.facts).items())
    found = table(["fact", "value"], rows, wrap=True)
    return f"<details><summary>Facts of {escape(run.name)}</summary>{found}</details>" if run.facts else ""


def _numbers(run: History) -> str:
    """The curves as plain tables, for those who do not see charts."""
    tables = []
    for caption, curves in (("held out", run.held_out), ("training", run.curves)):
        if curves:
            steps = max((curve.steps for curve in curves.values()), key=len)
            places = thin(np.arange(len(steps)), MOST_ROWS)
            heads = ["step", *(title(name)[0] for name in curves)]
            rows = (
                [f"{steps[at]:,}", *(_cell(float(curve.values[at]), name) for name, curve in curves.items())]
                for at in places
            )
            tables.append(f"<h4>{caption}</h4>{table(heads, rows)}")
    if not tables:
        return ""
    return f"<details><summary>Numbers of {escape(run.name)}</summary>{''.join(tables)}</details>"


def _cell(value: Any, name: str = "") -> str:
    if value is None:
        return "–"
    if is_share(name) or name == "seconds":
        return f"{value:.1%}" if is_share(name) else clock(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
