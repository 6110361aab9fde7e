"""A table of texts and numbers, for the terminal, for Markdown, for pages and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from bertsmith.reports import html
from bertsmith.reports.terminal import console, plain_table


@dataclass(frozen=True)
class TextTable:
    """Headings and rows. The first `left` columns are texts and aligned to the left, the others to the right."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def without(self, heading: str) -> TextTable:
        """The table without a column."""
        index = list(self.headings).index(heading)
        headings, *rows = ([*row[:index], *row[index + 1 :]] for row in (self.headings, *self.rows))
        return TextTable(headings, rows, self.left - (index < self.left))

    def records(self) -> list[dict[str, str]]:
        """Each row as a dict."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def print(self, title: str) -> None:
        """Prints the table below its title."""
        headings = [heading.replace(", ", ",\n") for heading in self.headings]
        grid = plain_table(*headings[: self.left], right=tuple(headings[self.left :]))
        grid.columns[0].no_wrap = True  # the names of the rows stay readable in a narrow terminal
        for row in self.rows:
            grid.add_row(*row)
        console.print(Text(title, "bold"), soft_wrap=True)
        console.print(grid)

    def markdown(self) -> str:
        """As Markdown."""
        marks = ["---" if index < self.left else "---:" for index in range(len(self.headings))]
        lines = ([cell.replace("|", "\\|") for cell in row] for row in (self.headings, marks, *self.rows))
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        """As markup for a page."""
        return html.table(self.headings, self.rows, left=self.left)
