"""How an export looks in a terminal. Takes finished facts and prints them; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from bertsmith.reports.terminal import console, table


def exported(facts: Mapping[str, Any]) -> None:
    """What was written, and how far it is from the model on each batch that was compared."""
    measured = ("largest_difference", "tolerance")
    shown = {name: f"{value:.2g}" if name in measured else value for name, value in facts.items() if name != "parity"}
    if "parity" in facts:
        rows = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("texts", "of up to", "padded", "largest difference"):
            rows.add_column(heading, justify="right")
        for one in facts["parity"]:
            padded = "yes" if one["padded"] else "no"
            rows.add_row(str(one["texts"]), f"{one['length']} tokens", padded, f"{one['difference']:.2g}")
        console.print(rows)
        console.print()
    table(shown)
