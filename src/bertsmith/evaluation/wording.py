"""Words and figures for an evaluation, the same in the terminal and on the page."""

from __future__ import annotations

from bertsmith.evaluation.cases import NOTHING, OTHER_BOUNDS
from bertsmith.evaluation.evaluation import Evaluation
from bertsmith.evaluation.tables import Confusion


def name(key: str) -> str:
    """A score's name for people."""
    return key.replace("_", " ")


def score(value: float | None) -> str:
    """A score with four digits."""
    return "–" if value is None else f"{value:.4f}"


def sure_title(objective: str) -> str:
    """What the number beside an answer is."""
    return "off by" if objective == "regress" else "probability"


def figures(evaluation: Evaluation) -> dict[str, str]:
    """What comes first: the score that decides with its interval, how many examples, how fast."""
    found = {}
    if interval := evaluation.interval:
        found[name(evaluation.main)] = score(evaluation.scores[evaluation.main])
        found[f"{interval.level:.0%} interval"] = f"{score(interval.low)} – {score(interval.high)}"
    found["examples"] = f"{evaluation.examples:,}"
    found["cut"] = f"{evaluation.cut:,}"
    found["texts / s"] = f"{evaluation.texts_per_second:,.0f}"
    return found


def labels_shown(table: Confusion, most: int) -> tuple[list[int], list[int]]:
    """The numbers of the rows and columns to show: all but empty rows of no label, or the most frequent ones."""
    rows, columns = list(range(len(table.rows))), list(range(len(table.columns)))
    if max(len(rows), len(columns)) > most and table.rows == table.columns:
        seen = [sum(table.counts[row]) + sum(line[row] for line in table.counts) for row in rows]
        rows = columns = sorted(sorted(rows, key=lambda row: -seen[row])[:most])
    return [row for row in rows if table.rows[row] not in (OTHER_BOUNDS, NOTHING) or any(table.counts[row])], columns


def most_confused(table: Confusion, most: int) -> list[tuple[str, str, int]]:
    """What was taken for something else most often: right, said, how often."""
    found = [
        (row, column, table.counts[y][x])
        for y, row in enumerate(table.rows)
        for x, column in enumerate(table.columns)
        if row != column and table.counts[y][x]
    ]
    return sorted(found, key=lambda one: -one[2])[:most]
