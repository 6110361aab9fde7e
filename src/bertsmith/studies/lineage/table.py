"""The table of the study: what is finished so far, in the terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.text import Text

from bertsmith.reports.terminal import WIDE, console
from bertsmith.reports.terminal_runs import mean_and_deviation
from bertsmith.reports.text_table import TextTable
from bertsmith.studies.lineage.models import STAGES, LineageModel, stages_of
from bertsmith.studies.lineage.settings import EVALUATE, PRETRAIN, TEXT, LineageConfig, read_part
from bertsmith.studies.lineage.tasks import Cell, TaskFacts

TITLE = "The lineage of language encoders"
EMPTY, WAITING = "–", "…"  # there is none; not finished yet
KINDS = {"likelihood": "likelihood", "likelihood of both directions": "both directions", "masked": "masked"}
MASKED = "masked"
SMALLEST = 0.001  # share of bytes in unknown words that is worth a note
Table = Mapping[str, Any]


def collect(
    study: LineageConfig, facts: Mapping[str, TaskFacts], cells: Mapping[tuple[str, str], Cell]
) -> dict[str, Any]:
    """Everything that is finished, as plain JSON."""
    rows = [_row(study, name, model, cells) for name, model in study.rows().items()]
    kinds = dict.fromkeys(STAGES[study.size][stage].tokenizer for stage in study.stages())
    tasks = [asdict(one) for one in facts.values()]
    return {
        "minutes": study.minutes,
        "size": study.size,
        "seeds": study.seeds,
        "vocab_size": study.vocabulary,
        "sentences": list(study.sentences),
        "texts": {kind: _result(study, TEXT, kind) for kind in kinds},
        "tasks": tasks,
        "rows": rows,
        "left_out": study.left_out(),
        "added": [difference(before, after, list(facts)) for before, after in pairwise(rows)],
    }


def evaluated_stage(model: LineageModel) -> str:
    """The stage that is evaluated on text: the language model where it gives features, else what is fine-tuned."""
    return model.features[0] if model.features else model.stage


def _result(study: LineageConfig, kind: str, name: str) -> dict[str, Any] | None:
    return read_part(study.folder(kind, name), {})


def _row(study: LineageConfig, name: str, model: LineageModel, cells: Mapping[tuple[str, str], Cell]) -> dict[str, Any]:
    stages = stages_of(model, study.size)
    trained = {stage: facts for stage in stages if (facts := _result(study, PRETRAIN, stage)) is not None}
    complete = len(trained) == len(stages)
    sums = ("minutes", "seconds", "tokens", "flop", "compile_seconds")
    last = {stage: trained[stage] for stage in (model.stage, *model.features) if stage in trained}
    evaluated = _result(study, EVALUATE, evaluated_stage(model)) or {}
    return {
        "name": name,
        "title": model.title,
        "paper": model.paper,
        "idea": model.idea,
        "adds": model.adds,
        "stages": trained,
        **{one: sum(facts[one] for facts in trained.values()) if complete else None for one in sums},
        "parameters": sum(facts["parameters"] for facts in last.values()) if complete else None,
        "text_loss": evaluated.get("text_loss"),
        "samples": evaluated.get("samples") or {},
        "cells": {cell.setup.task: cell.summary() for (row, _), cell in cells.items() if row == name},
    }


def difference(before: Table, after: Table, tasks: Sequence[str]) -> dict[str, Any]:
    """What a row adds to the row before: the differences of their scores."""
    gains = {task: _gain(_score(before, task), _score(after, task)) for task in tasks}
    known = [gain for gain in gains.values() if gain is not None]
    mean = None
    if len(known) == len(tasks):
        mean = {"mean": sum(gain["mean"] for gain in known) / len(known), "deviation": None}
        if all(gain["deviation"] is not None for gain in known):
            mean["deviation"] = math.sqrt(sum(gain["deviation"] ** 2 for gain in known)) / len(known)
    return {"from": before["title"], "to": after["title"], "adds": after["adds"], "gains": gains, "mean": mean}


def _gain(before: Table | None, after: Table | None) -> dict[str, Any] | None:
    """The difference of two means; its deviation is that of a difference of independent runs."""
    if before is None or after is None:
        return None
    deviations = [before["deviation"], after["deviation"]]
    known = [one for one in deviations if one is not None]
    deviation = math.hypot(*known) if len(known) == 2 else None
    return {"mean": after["mean"] - before["mean"], "deviation": deviation}


def _score(row: Table, task: str) -> Table | None:
    cell = row["cells"].get(task)
    return None if cell is None else cell.get("score")


def main_table(table: Table) -> TextTable:
    """One row for each model: minutes, nats per byte, scores in percent and their mean."""
    tasks = [task["name"] for task in table["tasks"]]
    headings = ["Model", "Idea", "Minutes", "Nats/byte", "Loss", *(_heading(task) for task in table["tasks"])]
    rows = [
        [row["title"], row["idea"], _number(row["minutes"], "g"), *_nats(row), *(_percent(row, task) for task in tasks)]
        for row in table["rows"]
    ]
    if len(tasks) > 1:
        headings.append("Mean")
        for row, shown in zip(table["rows"], rows, strict=True):
            means = [score["mean"] for task in tasks if (score := _score(row, task))]
            shown.append(f"{100 * sum(means) / len(means):.1f}" if len(means) == len(tasks) else EMPTY)
    baselines = [task["baseline"]["score"] for task in table["tasks"]]
    shown = [EMPTY if score is None else f"{100 * score:.1f}" for score in baselines]
    rows.insert(0, ["(no model)", *[EMPTY] * 4, *shown, *([EMPTY] if len(tasks) > 1 else [])])
    return TextTable(headings, rows, left=2)


def _heading(task: Table) -> str:
    return f"{task['name']}, {str(task['metric']).replace('_', ' ')}"


def _percent(row: Table, task: str) -> str:
    if row["cells"].get(task) is None:
        return WAITING
    score = _score(row, task)
    return EMPTY if score is None else mean_and_deviation(score)


def _nats(row: Table) -> list[str]:
    """The loss and its kind; of a masked model in parentheses, since it is not a likelihood."""
    loss = row["text_loss"]
    if loss is None:
        return [EMPTY, EMPTY]
    figure = f"{loss['nats_per_byte']:.3f}"
    return [f"({figure})" if loss["kind"] == MASKED else figure, KINDS[loss["kind"]]]


def cost_table(table: Table) -> TextTable:
    """What each model has cost."""
    headings = ["Model", "Stages", "Parameters", "Tokens", "FLOP", "Seconds", "Compiling", "Fine-tuning"]
    rows = []
    for row in table["rows"]:
        seconds = [cell["seconds"] for cell in row["cells"].values() if cell and "seconds" in cell]
        stages = ", ".join(f"{stage['recipe']} ({stage['minutes']:g} min)" for stage in row["stages"].values())
        rows.append(
            [
                row["title"],
                stages or EMPTY,
                _number(row["parameters"], ","),
                _number(row["tokens"], ","),
                _number(row["flop"] or None, ".2e"),  # word vectors have no matrix products
                _number(row["seconds"], ".0f"),
                _number(row["compile_seconds"], ".0f"),
                _number(sum(seconds), ".0f") if seconds else EMPTY,
            ]
        )
    return TextTable(headings, rows, left=2)


def _number(value: float | None, form: str) -> str:
    return EMPTY if value is None else f"{value:{form}}"


def added_table(table: Table) -> TextTable:
    """The difference of each row from the row before, in points."""
    tasks = [task["name"] for task in table["tasks"]]
    headings = ["From", "To", "What it adds", *tasks, *(["Mean"] if len(tasks) > 1 else [])]
    rows = [
        [
            step["from"],
            step["to"],
            step["adds"],
            *(points(step["gains"][task]) for task in tasks),
            *([points(step["mean"])] if len(tasks) > 1 else []),
        ]
        for step in table["added"]
    ]
    return TextTable(headings, rows, left=3)


def points(gain: Mapping[str, Any] | None) -> str:
    """`+3.4 ± 1.2`."""
    if gain is None:
        return EMPTY
    deviation = "" if gain["deviation"] is None else f" ± {100 * gain['deviation']:.1f}"
    return f"{100 * gain['mean']:+.1f}{deviation}"


def caption(table: Table) -> str:
    """What the numbers are."""
    runs = f"mean ± sd of {table['seeds']} seeds" if table["seeds"] > 1 else "one seed"
    minutes = "1 minute" if table["minutes"] == 1 else f"{table['minutes']:g} minutes"
    trained = f"{minutes} of pre-training for each model, size {table['size']}"
    return f"{trained}; dev scores in percent, {runs}"


def notes(table: Table) -> Iterator[str]:
    """What is not in the table, and how to read it."""
    for name, reason in table["left_out"].items():
        yield f"{name} is left out: it {reason}."
    devices = {stage["device"] for row in table["rows"] for stage in row["stages"].values()} - {""}
    if len(devices) > 1:
        yield f"The minutes are not comparable: stages were trained on {' and '.join(sorted(devices))}."
    for row in table["rows"]:
        for task, cell in row["cells"].items():
            if cell and "reason" in cell:
                yield f"{row['title']} on {task} is empty: {cell['reason']}"
    kinds = {row["text_loss"]["kind"] for row in table["rows"] if row["text_loss"]}
    if kinds - {MASKED}:
        words = [row for row in table["rows"] if row["text_loss"] and row["text_loss"]["unknown_bytes"] >= SMALLEST]
        about = ", ".join(f"{row['title']} {row['text_loss']['unknown_bytes']:.1%}" for row in words)
        unknown = f" Bytes in words outside of the vocabulary, at ln 256 each: {about}." if about else ""
        yield f"Nats per byte of held-out text: lower is better.{unknown}"
    if MASKED in kinds:
        why = "masked tokens, predicted from both sides; not comparable with a likelihood"
        yield f"Nats per byte in parentheses: {why}."
    waiting = sum(cell is None for row in table["rows"] for cell in row["cells"].values())
    if waiting:
        cells = "1 cell is" if waiting == 1 else f"{waiting} cells are"
        yield f"{cells} not finished ({WAITING}): the same command resumes."


def show(table: Table) -> None:
    """Prints the table, its costs and its notes; a narrow terminal shows fewer columns."""
    shown = main_table(table)
    if console.width < WIDE:
        shown = shown.without("Idea").without("Loss")
    shown.print(caption(table))
    cost_table(table).without("Stages").print("Cost of pre-training")
    if table["added"]:
        added_table(table).without("What it adds").print("What each idea added, in points")
    for line in (*notes(table), f"page: {table['page']}"):
        console.print(Text(line, "dim"), soft_wrap=True)


def markdown(table: Table) -> str:
    """The table, its costs, what each idea added, and the notes."""
    parts = [f"# {TITLE}", f"{caption(table)}.", main_table(table).markdown()]
    parts += ["\n".join(f"- {line}" for line in notes(table))] if any(notes(table)) else []
    if table["added"]:
        about = "Differences from the row before, in points."
        parts += ["## What each idea added", about, added_table(table).markdown()]
    parts += ["## Cost of pre-training", cost_table(table).markdown()]
    return "\n\n".join(parts) + "\n"
