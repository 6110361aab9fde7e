"""How runs look in a terminal: lists, cards with curves, comparisons. Takes what was read and prints it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bertsmith.reports.comparison import differences, scores
from bertsmith.reports.page_data import chart_names, smoothing
from bertsmith.reports.run_history import RUNNING, History, RunReader
from bertsmith.reports.run_summary import baselines, figures, is_share, perplexity, score_name, title
from bertsmith.reports.terminal import console
from bertsmith.reports.text_charts import NOBODY, Picture, Points, draw, number, smooth, spark
from bertsmith.system.progress import clock

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
GAP = 2  # places between two columns
EVERY = 2.0  # seconds between two drawings of a run that is followed
STATES = {"running": "bold cyan", "finished": "green", "stopped": "yellow", "unfinished": "red"}


def run_list(runs: Sequence[History], damaged: Sequence[str]) -> None:
    """A line for each run, and one for each that cannot be read."""
    grid = _grid("run", "recipe", "state", right=("steps", "tokens", "tok/s", "held out", "best", "age"))
    for run in runs:
        grid.add_row(
            Text(run.name, "bold"),
            Text(run.recipe_name, "dim"),
            Text(run.state, STATES[run.state]),
            f"{run.steps:,}" + (f"/{run.planned:,}" if run.planned else ""),
            number(float(f"{run.tokens:.3g}")),
            f"{run.speed:,.0f}" if math.isfinite(run.speed) else "-",
            _value("loss", run.result),
            f"{run.best[1]:.3f} @ {run.best[0]:,}" if run.best else "-",
            _age(run),
        )
    console.print(grid)
    for line in damaged:
        console.print(Text(line, "red"), soft_wrap=True)


def run_card(run: History) -> None:
    """Facts, curves and the last evaluation of one run."""
    console.print(_card(run))


def follow(reader: RunReader) -> History:
    """The card of a run, drawn anew every few seconds until the run ends or Ctrl-C; the last one stays."""
    run = reader.read()
    with ExitStack() as stack:
        stack.enter_context(suppress(KeyboardInterrupt))  # only the looking ends: the run goes on
        live = Live(console=console, auto_refresh=False, screen=True) if console.is_terminal else None
        if live is not None and run.state == RUNNING:
            stack.enter_context(live)
        while run.state == RUNNING:
            if live is not None:
                live.update(_card(run, rows=console.height), refresh=True)
            time.sleep(EVERY)
            run = reader.read()
    console.print(_card(run))
    return run


def comparison(runs: Sequence[History]) -> None:
    """Where recipes differ, what came of them, and the losses in one picture."""
    rows = scores(runs)
    numbers = {score_name(name): [_cell(name, row[name]) for row in rows] for name in list(rows[0])[1:]}
    runs = _numbered(runs, room=console.width - GAP - max(map(len, numbers)))
    settings, names = differences(runs), [run.name for run in runs]
    texts = {key: [_setting(value) for value in values] for key, values in settings.items()}
    if not settings:
        console.print(Text("The recipes are the same.", "dim"))
        console.print()
    elif len(_blocks("setting", names, texts)) == 1:
        _side_by_side("setting", names, texts)
    else:
        _beside_the_first(names, settings)
    _side_by_side("", names, numbers)
    losses = [name for name in chart_names(runs) if name.startswith("loss")]
    if losses:
        console.print(_chart(losses[0], runs, height=16))


def _numbered(runs: Sequence[History], *, room: int) -> Sequence[History]:
    """The same runs; where a name has no room in a table, all are told first and called 1, 2, …"""
    if all(Text(run.name).cell_len <= room for run in runs):
        return runs
    for place, run in enumerate(runs, 1):
        console.print(Text.assemble((f"{place}  ", "bold"), run.name), soft_wrap=True)
    console.print()
    return [replace(run, name=str(place)) for place, run in enumerate(runs, 1)]


def curves(runs: Sequence[History]) -> None:
    """A chart for every curve of the runs."""
    for name in chart_names(runs):
        console.print(_chart(name, runs, height=12))
        console.print()


def against_guessing(run: History) -> None:
    """The last held-out scores of a run, beside what guessing would score."""
    console.print(_evaluation(run) if run.held_out else Text("nothing was held out", "dim"))


def painted(picture: Picture) -> Text:
    """A picture with every series in its colour."""
    whole = Text()
    for line, owners in zip(picture.lines, picture.owners, strict=True):
        begin = 0
        for place in range(1, len(line) + 1):
            if place == len(line) or owners[place] != owners[begin]:
                owner = owners[begin]
                whole.append(line[begin:place], "dim" if owner == NOBODY else COLOURS[owner % len(COLOURS)])
                begin = place
        whole.append("\n")
    whole.right_crop(1)
    return whole


def _card(run: History, *, rows: int = 0) -> RenderableType:
    """The whole card, or as much of it as fits into so many rows, the curve of the loss before all."""
    names = chart_names([run])
    facts = {**figures(run), "age": _age(run)}
    head: list[RenderableType] = [
        Text.assemble((run.name, "bold"), "  ", (run.state, STATES[run.state]), f"  {run.recipe_name}"),
        _pairs(facts),
        *(Text(note, "yellow") for note in run.notes),
    ]
    losses = [name for name in names if name.startswith("loss")]
    used = len(head) + -(-len(facts) // 2)
    if losses:
        height = max(min(rows - used - 1, 14), 6) if rows else 14
        head += [Text(), _chart(losses[0], [run], height=height)]
        used += height + 1
    tables = [_evaluation(run)] if run.held_out else []
    tables += [_sparks(run, names)] if run.curves else []
    for table in tables:
        if not rows or used + table.row_count + 2 <= rows:
            head += [Text(), table]
            used += table.row_count + 2
    return Group(*head)


def _pairs(facts: Mapping[str, str]) -> Table:
    grid = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(2):
        grid.add_column(style="dim")
        grid.add_column(overflow="fold", min_width=16)
    items = [(name, Text(value)) for name, value in facts.items()]
    half = -(-len(items) // 2)
    for left, right in zip(items[:half], [*items[half:], ("", Text())], strict=False):
        grid.add_row(*left, *right)
    return grid


def _sparks(run: History, names: Sequence[str]) -> Table:
    grid = _grid("training", "", right=("first", "last"))
    for name in names:
        curve = run.curves.get(name)
        if curve is not None and len(curve):
            line = spark(curve.values, width=32)
            grid.add_row(
                title(name)[0], Text(line, "cyan"), _value(name, float(curve.values[0])), _value(name, curve.last)
            )
    return grid


def _evaluation(run: History) -> Table:
    steps = int(next(iter(run.held_out.values())).steps[-1])
    grid = _grid(f"held out, step {steps:,}", "", right=("last", "compare with"))
    for name, curve in run.held_out.items():
        beside = [line.label for line in baselines(run, name)]
        value = perplexity(name, curve.last)
        beside += [f"perplexity {value:,.1f}"] if value is not None else []
        grid.add_row(
            title(name)[0], Text(spark(curve.values, width=32), "yellow"), _value(name, curve.last), ", ".join(beside)
        )
    return grid


def _blocks(heading: str, names: Sequence[str], rows: Mapping[str, Sequence[Text]]) -> list[list[int]]:
    """Which columns stand beside each other in one table: as many as there is room for."""
    widths = [
        max([Text(name).cell_len, *(cells[place].cell_len for cells in rows.values())])
        for place, name in enumerate(names)
    ]
    labels, places, blocks = max(len(label) for label in (heading, *rows)), list(range(len(names))), list[list[int]]()
    while places:
        ends = accumulate((widths[place] + GAP for place in places), initial=labels)
        count = max(1, sum(end <= console.width for end in ends) - 1)
        blocks.append(places[:count])
        places = places[count:]
    return blocks


def _side_by_side(heading: str, names: Sequence[str], rows: Mapping[str, Sequence[Text]]) -> None:
    """A column for each run, in several tables where one is not wide enough: what a number is must be seen."""
    for places in _blocks(heading, names, rows):
        grid = _grid(heading, right=tuple(names[place] for place in places))
        grid.columns[0].no_wrap = True
        for label, cells in rows.items():
            grid.add_row(Text(label, "dim"), *(cells[place] for place in places))
        console.print(grid)
        console.print()


def _beside_the_first(names: Sequence[str], settings: Mapping[str, Sequence[Any]]) -> None:
    """A paragraph for each run: in what it differs from the first one."""
    for place, name in enumerate(names[1:], 1):
        own = {key: values[place] for key, values in settings.items() if values[place] != values[0]}
        gone = [key.removesuffix(".kind") for key, value in own.items() if value is None]
        gone = [key for key in gone if key.rpartition(".")[0] not in gone]  # of a part that is gone, not each setting
        said = [f"{key}={_setting(value)}" for key, value in own.items() if value is not None]
        words = [*said, *(f"no {key}" for key in gone)] or [f"as {names[0]}"]
        console.print(Text.assemble((name, "bold"), (f" beside {names[0]}: ", "dim"), ", ".join(words)))
    console.print()


def _chart(name: str, runs: Sequence[History], *, height: int) -> Text:
    series: dict[str, Points] = {}
    factor = 100.0 if is_share(name) else 1.0
    for run in runs:
        before = f"{run.name} " if len(runs) > 1 else ""
        held_out = name in run.held_out and len(run.held_out[name]) > 1
        if name in run.curves and (len(runs) == 1 or not held_out):
            curve = run.curves[name]
            series[f"{before}training"] = (curve.steps, smooth(curve.values, smoothing(len(curve))) * factor)
        if held_out:
            curve = run.held_out[name]
            series[f"{before}held out"] = (curve.steps, curve.values * factor)
    heading, unit = title(name)
    picture = draw(
        series,
        width=min(console.width, 110),
        height=height,
        title=f"{heading} ({unit})" if unit else heading,
        x_label="steps",
    )
    return painted(picture)


def _grid(*left: str, right: tuple[str, ...]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    for heading in left:
        grid.add_column(Text(heading), no_wrap=heading == "state")
    for heading in right:
        grid.add_column(Text(heading), justify="right", no_wrap=True)
    return grid


def _value(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if is_share(name):
        return f"{value:.1%}"
    return f"{value:.3f}" if name.startswith("loss") else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(name: str, value: Any) -> Text:
    if isinstance(value, float):
        return Text(clock(value) if name == "seconds" else _value("loss" if "loss" in name else name, value))
    return Text("-" if value is None else f"{value:,}" if isinstance(value, int) else str(value))


def _setting(value: Any) -> Text:
    return Text("-" if value is None else json.dumps(value, ensure_ascii=False))


def _age(run: History) -> str:
    """How long ago the run last said something."""
    if run.ended is None:
        return "-"
    gone = max(time.time() - run.ended, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if gone >= 2 * size:
            return f"{gone / size:.0f} {unit}"
    return f"{gone:.0f} s"
