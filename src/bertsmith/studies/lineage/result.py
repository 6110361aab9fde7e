"""The result of the study in Python."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from bertsmith.reports import html
from bertsmith.studies.lineage.page import note_list
from bertsmith.studies.lineage.table import TITLE, added_table, caption, cost_table, main_table, markdown, notes


class LineageTable:
    """The table of `lineage`; a notebook shows it.

    Rows are dicts with the texts of the table, such as `"73.1 ± 1.1"`; `to_dict` has the numbers.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """`values`: everything that the study has found, with the path of its page."""
        self._values = values

    @property
    def rows(self) -> list[dict[str, str]]:
        """One row for each model: minutes, nats per byte of held-out text, and its scores in percent."""
        return main_table(self._values).records()

    @property
    def added(self) -> list[dict[str, str]]:
        """The difference of each model from the one before it, in points."""
        return added_table(self._values).records()

    @property
    def cost(self) -> list[dict[str, str]]:
        """Parameters, tokens, FLOP and seconds of each model."""
        return cost_table(self._values).records()

    @property
    def notes(self) -> list[str]:
        """What is not in the table, and how to read it."""
        return list(notes(self._values))

    @property
    def page(self) -> Path:
        """The HTML page with charts, learning curves and predictions."""
        return Path(self._values["page"])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, as in lineage.json: scores of each seed, learning curves, predictions."""
        return dict(self._values)

    def to_markdown(self) -> str:
        """The table, the differences, the costs and the notes as Markdown."""
        return markdown(self._values)

    def __repr__(self) -> str:
        tasks = ", ".join(task["name"] for task in self._values["tasks"])
        return f"LineageTable({len(self._values['rows'])} models, {tasks}, {str(self.page)!r})"

    def _repr_html_(self) -> str:
        parts = [f"<h4>{TITLE}</h4><p>{escape(caption(self._values))}</p>", main_table(self._values).html()]
        parts.append(note_list(self._values))
        if self._values["added"]:
            parts.append(f"<h4>What each idea added, in points</h4>{added_table(self._values).html()}")
        return html.notebook("".join(parts))
