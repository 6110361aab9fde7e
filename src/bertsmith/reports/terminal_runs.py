"""Terminal output about training runs: lists, cards with curves, comparisons, sweeps and studies."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bertsmith.reports import run_summary
from bertsmith.reports.comparison import differences, scores
from bertsmith.reports.run_history import RUNNING, RunHistory, RunReader
from bertsmith.reports.terminal import console, facts_table, plain_table
from bertsmith.reports.text_charts import NO_SERIES, Chart, Points, draw, number, smooth, smoothing, spark
from bertsmith.system.progress import format_duration

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
GAP = 2  # characters between two columns
REFRESH = 2.0  # seconds between two drawings of a followed run
STATES = {"running": "bold cyan", "finished": "green", "stopped": "yellow", "unfinished": "red"}


def run_list(runs: Sequence[RunHistory], damaged: Sequence[str]) -> None:
    """One line per run, and one per run that cannot be read."""
    grid = plain_table("run", "recipe", "state", right=("steps", "tokens", "tokens/s", "best", "last", "age"))
    grid.columns[2].no_wrap = True
    for run in runs:
        grid.add_row(
            Text(run.name, "bold"),
            Text(run.recipe_name, "dim"),
            Text(run.state, STATES[run.state]),
            f"{run.steps:,}" + (f"/{run.planned_steps:,}" if run.planned_steps else ""),
            number(float(f"{run.tokens:.3g}")),
            f"{run.tokens_per_second:,.0f}" if math.isfinite(run.tokens_per_second) else "-",
            f"{run.best[1]:.3f} @ {run.best[0]:,}" if run.best else "-",
            f"{run.last_if_other[1]:.3f}" if run.last_if_other else "",
            _age(run),
        )
    console.print(grid)
    for line in damaged:
        console.print(Text(line, "red"), soft_wrap=True)


def run_card(run: RunHistory) -> None:
    """Figures, curves and the last evaluation of one run."""
    console.print(_card(run))


def follow(reader: RunReader) -> None:
    """Redraws the card of a run every few seconds until the run ends or Ctrl-C; the last card stays."""
    run = reader.read()
    on_screen = console.is_terminal and run.state == RUNNING
    live = Live(console=console, auto_refresh=False, screen=True) if on_screen else None
    with suppress(KeyboardInterrupt), live or nullcontext():  # Ctrl-C stops following, not the run
        while run.state == RUNNING:
            if live is not None:
                live.update(_card(run, rows=console.height), refresh=True)
            time.sleep(REFRESH)
            run = reader.read()
    run_card(run)


def training_result(result: Mapping[str, Any]) -> None:
    """The result of a pre-training or fine-tuning run: data, the best scores and the last ones, where the model is."""
    facts = {name: result[name] for name in ("task", "run", "steps", "tokens") if name in result}
    if "columns" in result:
        facts |= run_summary.training_data(result)
        facts["unknown_word_rate"] = result["unknown_word_rate"]
    facts["training time"] = format_duration(result["seconds"])
    if "best_step" in result:
        facts["best"] = _scores(result, result["best_step"])
    if "last" in result:
        facts["last"] = _scores(result["last"], result["last"]["step"])
    facts_table({**facts, "model": result["model"]})
    _notes(result["notes"])


def planned_finetuning(plan: Mapping[str, Any]) -> None:
    """What a fine-tuning run would do."""
    facts = {name: plan[name] for name in ("task", "parameters", "steps", "max_length", "unknown_word_rate")}
    facts_table({**facts, **run_summary.training_data(plan)}, title="dry run: nothing was written")
    _notes(plan["notes"])


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"note: {note}", "yellow"), soft_wrap=True)


def _scores(metrics: Mapping[str, Any], step: int) -> str:
    """`accuracy 0.912 · macro f1 0.903 at step 120`."""
    shown = {name: value for name, value in metrics.items() if name.startswith(("score/", "loss", "accuracy"))}
    if len([name for name in shown if name.startswith("loss/")]) == 1:
        shown.pop("loss", None)
    texts = [
        f"{run_summary.score_name(name.removeprefix('score/'))} "
        + (f"{value:.4f}" if name.startswith("score/") else _value(name, value))
        for name, value in shown.items()
    ]
    return f"{' · '.join(texts)} at step {step:,}"


def comparison(runs: Sequence[RunHistory]) -> None:
    """The differences of the recipes, the scores, and the losses in one chart."""
    rows = scores(runs)
    numbers = {run_summary.score_name(name): [_cell(name, row[name]) for row in rows] for name in list(rows[0])[1:]}
    runs = _numbered(runs, width=console.width - GAP - max(map(len, numbers)))
    settings, names = differences(runs), [run.name for run in runs]
    cells = {key: [_setting(value) for value in values] for key, values in settings.items()}
    if not settings:
        console.print(Text("The recipes are the same.", "dim"))
        console.print()
    elif len(_column_groups("setting", names, cells)) == 1:
        _side_by_side("setting", names, cells)
    else:
        _compared_with_first(names, settings)
    _side_by_side("", names, numbers)
    if losses := [name for name in run_summary.chart_names(runs) if name.startswith("loss")]:
        console.print(_chart(losses[0], runs, height=16))


def curves(runs: Sequence[RunHistory]) -> None:
    """A chart of every metric of the runs."""
    for name in run_summary.chart_names(runs):
        console.print(_chart(name, runs, height=12))
        console.print()


def coloured(chart: Chart) -> Text:
    """A chart with each series in its colour."""
    text = Text()
    for line, owners in zip(chart.lines, chart.owners, strict=True):
        for owner, run in groupby(zip(line, owners, strict=False), key=itemgetter(1)):
            style = "dim" if owner == NO_SERIES else COLOURS[owner % len(COLOURS)]
            text.append("".join(character for character, _ in run), style)
        text.append("\n")
    text.right_crop(1)
    return text


def sweep(result: Mapping[str, Any]) -> None:
    """Scores by learning rate over the seeds, and the run that was kept."""
    rows = plain_table(right=("learning rate", "runs", f"mean {result['main']}", "± sd", "median", "best"))
    for row in result["learning_rates"]:
        deviation = "-" if row["deviation"] is None else f"{row['deviation']:.4f}"
        numbers = (f"{row['mean']:.4f}", deviation, f"{row['median']:.4f}", f"{row['best']:.4f}")
        rows.add_row(f"{row['learning_rate']:g}", str(row["runs"]), *numbers)
    console.print(rows)
    kept = result["kept"]
    console.print(f"kept: learning rate {kept['learning_rate']:g}, seed {kept['seed']}, in {result['model']}")
    facts_table(kept["scores"])


def features(result: Mapping[str, Any]) -> None:
    """Scores by layer selection, next to the paper's where it has them."""
    source = result["source"]
    compared = any(row["published"] is not None for row in result["rows"])
    beside = [f"{source}, {result['published_split']}"] if compared else []
    rows = plain_table("layers", right=(f"dev {result['main_metric']}", "test", *beside))
    for row in result["rows"]:
        published = ["–" if row["published"] is None else _as_published(row["published"])] if compared else []
        dev, test = (mean_and_deviation(row[split]) for split in ("dev", "test"))
        rows.add_row(Text(row["layers"], "bold"), dev, test, *published)
    console.print(rows)
    for note in result["notes"]:
        console.print(f"{source}: {note}", style="dim")
    console.print(f"mean ± standard deviation in percent; the best model on dev is kept in {result['model']}")


def ablations(result: Mapping[str, Any]) -> None:
    """One row per model, one column per task, the paper's numbers in parentheses."""
    measures = {
        task: next(filter(None, (row["cells"][task].get("metric") for row in result["rows"])), "")
        for task in result["tasks"]
    }
    rows = plain_table("model", right=tuple(f"{task} {measure}".rstrip() for task, measure in measures.items()))
    cells = [row["cells"][task] for row in result["rows"] for task in result["tasks"]]
    for row in result["rows"]:
        rows.add_row(Text(row["name"], "bold"), *(beside_published(row["cells"][task]) for task in result["tasks"]))
    console.print(rows)
    published = any(cell["published"] is not None for cell in cells)
    source = f"; in parentheses: {result['source']}" if published else ""
    console.print(f"mean ± standard deviation in percent{source}")
    if result["page"]:
        console.print(f"page: {result['page']}")


def mean_and_deviation(score: Mapping[str, Any] | None) -> str:
    """`95.6 ± 0.2`; the deviation only where there are several runs."""
    if score is None:
        return "–"
    deviation = score["deviation"]
    return f"{100 * score['mean']:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def beside_published(cell: Mapping[str, Any]) -> str:
    """`95.6 ± 0.2 (91.55)`: a score, and the paper's with its own decimals if there is one."""
    published = cell["published"]
    return mean_and_deviation(cell["score"]) + ("" if published is None else f" ({_as_published(published)})")


def _as_published(percent: float) -> str:
    """At least one decimal, and no rounding: 91.55 is not 91.5."""
    return max(f"{percent:.1f}", f"{percent:g}", key=len)


def _numbered(runs: Sequence[RunHistory], *, width: int) -> Sequence[RunHistory]:
    """The same runs; if a name is wider than `width`, all names are listed first and replaced by 1, 2, …"""
    if all(Text(run.name).cell_len <= width for run in runs):
        return runs
    for index, run in enumerate(runs, 1):
        console.print(Text.assemble((f"{index}  ", "bold"), run.name), soft_wrap=True)
    console.print()
    return [replace(run, name=str(index)) for index, run in enumerate(runs, 1)]


def _card(run: RunHistory, *, rows: int = 0) -> RenderableType:
    """The card, or as much of it as fits into `rows` rows; the loss chart comes first."""
    names = run_summary.chart_names([run])
    facts = {**run_summary.headline(run), "age": _age(run)}
    content: list[RenderableType] = [
        Text.assemble((run.name, "bold"), "  ", (run.state, STATES[run.state]), f"  {run.recipe_name}"),
        _pairs(facts),
        *(Text(note, "yellow") for note in run.notes),
    ]
    losses = [name for name in names if name.startswith("loss")]
    used = len(content) + -(-len(facts) // 2)
    if losses:
        height = max(min(rows - used - 1, 14), 6) if rows else 14
        content += [Text(), _chart(losses[0], [run], height=height)]
        used += height + 1
    tables = [_evaluation(run)] if run.held_out else []
    tables += [_spark_lines(run, names)] if run.curves else []
    for table in tables:
        if not rows or used + table.row_count + 2 <= rows:
            content += [Text(), table]
            used += table.row_count + 2
    return Group(*content)


def _pairs(facts: Mapping[str, str]) -> Table:
    grid = plain_table(show_header=False)
    for _ in range(2):
        grid.add_column(style="dim")
        grid.add_column(overflow="fold", min_width=16)
    items = [(name, Text(value)) for name, value in facts.items()]
    half = -(-len(items) // 2)
    for left, right in zip(items[:half], [*items[half:], ("", Text())], strict=False):
        grid.add_row(*left, *right)
    return grid


def _spark_lines(run: RunHistory, names: Sequence[str]) -> Table:
    grid = plain_table("training", "", right=("first", "last"))
    for name in names:
        curve = run.curves.get(name)
        if curve is not None and len(curve):
            line = Text(spark(curve.values, width=32), "cyan")
            first, last = _value(name, float(curve.values[0])), _value(name, curve.last)
            grid.add_row(run_summary.title(name)[0], line, first, last)
    return grid


def _evaluation(run: RunHistory) -> Table:
    """Held-out metrics of the best model, and the last ones where they differ."""
    step = (run.best or run.last or (run.steps, 0.0))[0]
    others = run.last_if_other if run.best else None
    last = (f"last, step {others[0]:,}",) if others else ()
    grid = plain_table("held out", "", right=(f"best, step {step:,}", *last, "baseline, perplexity"))
    for name, best in run.best_held_out.items():
        remarks = list(run_summary.baselines(run, name))
        value = run_summary.perplexity(name, best)
        remarks += [f"perplexity {value:,.1f}"] if value is not None else []
        line = Text(spark(run.held_out[name].values, width=24 if others else 32), "yellow")
        numbers = [_value(name, one) for one in (best, *([run.held_out[name].last] if others else []))]
        grid.add_row(run_summary.title(name)[0], line, *numbers, ", ".join(remarks))
    return grid


def _column_groups(heading: str, names: Sequence[str], rows: Mapping[str, Sequence[Text]]) -> list[list[int]]:
    """The columns of each table, as many as fit into the terminal."""
    groups, used = list[list[int]](), math.inf
    for column, name in enumerate(names):
        width = GAP + max([Text(name).cell_len, *(cells[column].cell_len for cells in rows.values())])
        if used + width > console.width:
            groups.append([])
            used = max(map(len, (heading, *rows)))
        groups[-1].append(column)
        used += width
    return groups


def _side_by_side(heading: str, names: Sequence[str], rows: Mapping[str, Sequence[Text]]) -> None:
    """One column per run, in several tables where one is not wide enough."""
    for columns in _column_groups(heading, names, rows):
        grid = plain_table(heading, right=tuple(names[column] for column in columns))
        grid.columns[0].no_wrap = True
        for label, cells in rows.items():
            grid.add_row(Text(label, "dim"), *(cells[column] for column in columns))
        console.print(grid)
        console.print()


def _compared_with_first(names: Sequence[str], settings: Mapping[str, Sequence[Any]]) -> None:
    """One paragraph per run: how its settings differ from the first run's."""
    for index, name in enumerate(names[1:], 1):
        changed = {key: values[index] for key, values in settings.items() if values[index] != values[0]}
        absent = [key.removesuffix(".kind") for key, value in changed.items() if value is None]
        absent = [key for key in absent if key.rpartition(".")[0] not in absent]  # an absent group only once
        texts = [f"{key}={_setting(value)}" for key, value in changed.items() if value is not None]
        texts = [*texts, *(f"without {key}" for key in absent)] or [f"same as {names[0]}"]
        console.print(Text.assemble((name, "bold"), (f" compared with {names[0]}: ", "dim"), ", ".join(texts)))
    console.print()


def _chart(name: str, runs: Sequence[RunHistory], *, height: int) -> Text:
    series: dict[str, Points] = {}
    factor = 100.0 if run_summary.is_fraction(name) else 1.0
    for run in runs:
        prefix = f"{run.name} " if len(runs) > 1 else ""
        held_out = name in run.held_out and len(run.held_out[name]) > 1
        if name in run.curves and (len(runs) == 1 or not held_out):
            curve = run.curves[name]
            smoothed = smooth(curve.values, smoothing(len(curve)))
            series[f"{prefix}training"] = (curve.steps, smoothed * factor)
        if held_out:
            curve = run.held_out[name]
            series[f"{prefix}held out"] = (curve.steps, curve.values * factor)
    heading, unit = run_summary.title(name)
    heading = f"{heading} ({unit})" if unit else heading
    return coloured(draw(series, width=min(console.width, 110), height=height, title=heading, x_label="steps"))


def _value(name: str, value: float) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    if run_summary.is_fraction(name):
        return f"{value:.1%}"
    return f"{value:.3f}" if name.startswith("loss") else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(name: str, value: Any) -> Text:
    if isinstance(value, float):
        return Text(format_duration(value) if name == "seconds" else _value("loss" if "loss" in name else name, value))
    return Text("-" if value is None else f"{value:,}" if isinstance(value, int) else str(value))


def _setting(value: Any) -> Text:
    return Text("-" if value is None else json.dumps(value, ensure_ascii=False))


def _age(run: RunHistory) -> str:
    """Time since the last event."""
    if run.updated is None:
        return "-"
    seconds = max(time.time() - run.updated, 0.0)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
