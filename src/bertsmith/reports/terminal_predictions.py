"""How a model's answers about a text look in a terminal. Takes finished facts and prints them; decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bertsmith.reports.terminal import console

AROUND = 40  # characters of the passage that are shown on each side of an answer
SHADES = " ░▒▓█"  # from no attention to the most
TOKEN = 16  # columns for a token


def predictions(texts: Sequence[str], found: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    rows = _rows()
    for text, some in zip(texts, found, strict=True):
        for one in some:
            score = f"{one['score']:7.2%}" if "label" in one else f"{one['score']:.4g}"
            rows.add_row(score, Text(one.get("label", ""), "bold"), Text(_line(text), "dim"), _windows(one))
    console.print(rows)


def entities(found: Sequence[Mapping[str, Any]]) -> None:
    rows = _rows()
    for one in found:
        kind, place = Text(one["entity_group"], "cyan"), f"{one['start']}-{one['end']}"
        rows.add_row(f"{one['score']:7.2%}", kind, Text(_line(one["word"]), "bold"), Text(place, "dim"))
    console.print(rows if found else "no entity")


def answers(passage: str, found: Sequence[Mapping[str, Any]]) -> None:
    """Each answer where it stands, with what is round it."""
    rows = _rows()
    for one in found:
        begin, end = one["start"], one["end"]
        where = Text("no answer", "italic")
        if one["answer"]:
            before, after = passage[max(begin - AROUND, 0) : begin], passage[end : end + AROUND]
            parts = ((_flat(before), "dim"), (f"«{_flat(passage[begin:end])}»", "bold cyan"), (_flat(after), "dim"))
            where = Text.assemble(*parts)
        rows.add_row(f"{one['score']:7.2%}", where, "(question truncated)" if one.get("truncated") else "")
    console.print(rows)


def choices(given: Sequence[str], found: Mapping[str, Any]) -> None:
    rows = _rows()
    for place, (choice, share) in enumerate(zip(given, found["probabilities"], strict=True)):
        rows.add_row(f"{share:7.2%}", Text(_line(choice), "bold" if place == found["index"] else "dim"))
    console.print(rows)
    if found.get("truncated"):
        console.print("(cut to fit)")


def ranked(found: Sequence[Mapping[str, Any]]) -> None:
    rows = _rows()
    for one in found:
        remark = "(truncated)" if one.get("truncated") else _windows(one)
        rows.add_row(f"{one['score']:8.4f}", Text(str(one["index"] + 1), "dim"), Text(_line(one["text"])), remark)
    console.print(rows)


def heat_map(facts: Mapping[str, Any]) -> None:
    """A line for each token, darker where it attends more; as many tokens as the terminal is wide."""
    tokens = facts["tokens"]
    shown = min(len(tokens), max((console.width - TOKEN - 4) // 2, 1))
    weights = [line[:shown] for line in facts["weights"][:shown]]
    most = max(max(line) for line in weights) or 1.0
    layer, head = (facts[name] or "mean" for name in ("layer", "head"))
    console.print(f"layer {layer}, head {head}: a line for each token, darkest {most:.2f}", style="dim")
    console.print(Text(" " * (TOKEN + 4) + "".join(f"{place % 100:2d}" for place in range(shown)), "dim"))
    for place, line in enumerate(weights):
        cells = "".join(SHADES[round(weight / most * (len(SHADES) - 1))] * 2 for weight in line)
        name = Text(tokens[place])
        name.truncate(TOKEN, overflow="ellipsis", pad=True)  # by columns: letters of some scripts take two
        console.print(Text.assemble(f"{place:3d} ", name, cells), no_wrap=True, crop=True)
    if shown < len(tokens):
        console.print(f"({len(tokens) - shown} more tokens: --json gives all)", style="dim")
    if facts["truncated"]:
        console.print("(the text was cut to fit)", style="dim")


def _rows() -> Table:
    return Table(box=None, pad_edge=False, show_header=False)


def _windows(one: Mapping[str, Any]) -> str:
    return f"({one['windows']} windows)" if "windows" in one else ""


def _flat(text: str) -> str:
    """Without line ends."""
    return "".join(" " if character.isspace() else character for character in text)


def _line(text: str, most: int = 70) -> str:
    """One line, at most so many characters."""
    flat = _flat(text).strip()
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
