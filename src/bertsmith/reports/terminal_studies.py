"""How tables of studies look in a terminal. Takes finished facts and prints them; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from bertsmith.reports.terminal import console


def features(found: Mapping[str, Any]) -> None:
    """Scores by layers, beside the paper's where it has them."""
    rows = Table(box=None, pad_edge=False, header_style="dim")
    source = found["source"]
    for heading in ("layers", f"dev {found['main']}", "test", *([source] if source else [])):
        rows.add_column(heading, justify="left" if heading == "layers" else "right")
    for row in found["rows"]:
        published = [_percent(row["published"])] if source else []
        rows.add_row(Text(row["layers"], "bold"), spread(row["dev"]), spread(row["test"]), *published)
    console.print(rows)
    for name, (dev, test) in found["fine_tuned"].items():
        console.print(f"{source}: {name} fine-tuned as a whole {dev:.1f} on dev, {test:.1f} on test", style="dim")
    console.print(f"mean ± deviation in percent; the best on dev is kept in {found['model']}")


def ablations(found: Mapping[str, Any]) -> None:
    """A row for each folder, a column for each task, the paper's numbers in brackets."""
    rows = Table(box=None, pad_edge=False, header_style="dim")
    rows.add_column("model")
    for task in found["tasks"]:
        measures = [row["cells"][task].get("measure") for row in found["rows"]]
        rows.add_column(f"{task} {next(filter(None, measures), '')}".rstrip(), justify="right")
    for row in found["rows"]:
        cells = [row["cells"][task] for task in found["tasks"]]
        rows.add_row(Text(row["name"], "bold"), *(_cell(cell) for cell in cells))
    console.print(rows)
    told = any(cell["published"] is not None for row in found["rows"] for cell in row["cells"].values())
    console.print("mean ± deviation in percent" + (f"; in brackets {found['source']}" if told else ""))
    if found["page"]:
        console.print(f"{found['page']} has the curves of the best runs")


def spread(score: Mapping[str, Any] | None) -> str:
    """`95.6 ± 0.2`; the deviation only where there are several runs."""
    if score is None:
        return "–"
    deviation = score["deviation"]
    return f"{100 * score['mean']:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def _cell(cell: Mapping[str, Any]) -> str:
    published = cell["published"]
    return spread(cell["score"]) + ("" if published is None else f" ({published:.1f})")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
