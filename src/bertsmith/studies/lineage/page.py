"""The page of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bertsmith.reports import html
from bertsmith.reports.terminal_runs import mean_and_deviation
from bertsmith.reports.text_table import TextTable
from bertsmith.studies.lineage.charts import Bar, bars, curve, key
from bertsmith.studies.lineage.models import Idea
from bertsmith.studies.lineage.table import (
    EMPTY,
    MASKED,
    TITLE,
    Table,
    added_table,
    caption,
    cost_table,
    main_table,
    notes,
)
from bertsmith.studies.study_page import write_study_page

COLORS: dict[Idea, int] = {
    **{"none": 9, "static": 0, "contextual": 6, "deep": 2},
    **{"fine-tuned": 1, "bidirectional": 3, "more efficient": 4},
}
FILLED = {
    "filled": "Predictions for the masked word, most likely first",
    "filled by the generator": "Predictions of ELECTRA's generator for the masked word",
    "next": "Next-token predictions from the words before the marked word",
    "translated": "Translated",
}


def write_page(table: Table, path: Path) -> Path:
    """Writes the page and returns its path."""
    sections = (_scores, _bars, _added, _curves, _cost, _sentences, _examples, _facts)
    main = "\n".join(section(table) for section in sections)
    return write_study_page(path, heading="Lineage", title=TITLE, main=main)


def _scores(table: Table) -> str:
    return html.section(TITLE, caption(table), main_table(table).html(), note_list(table))


def note_list(table: Table) -> str:
    """The notes below the main table."""
    listed = "".join(f"<li>{escape(line)}</li>" for line in notes(table))
    return f'<ul class="notes">{listed}</ul>' if listed else ""


def _bars(table: Table) -> str:
    """The scores of each task, and the nats per byte."""
    shown = [_task_bars(table, task) for task in table["tasks"]]
    for title, unit, masked in (
        ("Held-out text", "nats per byte, lower is better", False),
        ("Held-out text, masked tokens", "nats per byte, not a likelihood", True),
    ):
        losses = [
            Bar(row["title"], value, None, COLORS[row["idea"]], f"{value:.3f}")
            for row in table["rows"]
            if row["text_loss"] and (row["text_loss"]["kind"] == MASKED) is masked
            for value in [row["text_loss"]["nats_per_byte"]]
        ]
        shown += [bars(title, unit, losses)] if losses else []
    ideas = {row["idea"]: COLORS[row["idea"]] for row in table["rows"]}
    about = "Mean over the seeds with one standard deviation; the dashed line is the baseline without a model."
    return html.section("Scores", about, key(ideas), html.figure_grid(shown))


def _task_bars(table: Table, task: Mapping[str, Any]) -> str:
    some = []
    for row in table["rows"]:
        cell = row["cells"].get(task["name"]) or {}
        score, color = cell.get("score"), COLORS[row["idea"]]
        if score is None:
            some.append(Bar(row["title"], None, None, color, EMPTY))
            continue
        deviation = None if score["deviation"] is None else 100 * score["deviation"]
        some.append(Bar(row["title"], 100 * score["mean"], deviation, color, mean_and_deviation(score)))
    base = task["baseline"]["score"]
    unit = f"{str(task['metric']).replace('_', ' ')}, %"
    return bars(task["name"], unit, some, base=None if base is None else 100 * base)


def _added(table: Table) -> str:
    if not table["added"]:
        return ""
    about = (
        "Each row is the difference from the model before it, in points; after ± the deviation of a difference of "
        "independent runs. A difference that is not larger than its deviation says nothing."
    )
    return html.section("What each idea added", about, f'<div class="added">{added_table(table).html()}</div>')


def _curves(table: Table) -> str:
    shown, seen = list[str](), set[str]()
    for row in table["rows"]:
        for name, stage in row["stages"].items():
            curve_points = [(point["seconds"], point["loss"]) for point in stage["curve"]]
            if name not in seen and len(curve_points) > 1:
                shown.append(curve(name, stage["recipe"], curve_points, color=COLORS[row["idea"]]))
            seen.add(name)
    about = "Held-out loss over seconds of training, each with its own objective: the heights are not comparable."
    return html.section("Learning curves", about, html.figure_grid(shown)) if shown else ""


def _cost(table: Table) -> str:
    about = (
        "Minutes are minutes of training steps; compilation, evaluation and saving are not counted. FLOP are those of "
        "matrix products in forward and backward. Fine-tuning: seconds of all tasks, one seed of each."
    )
    return html.section("Cost", about, cost_table(table).html())


def _sentences(table: Table) -> str:
    """Predictions of the pre-trained models for the same sentences."""
    shown = [_kind(table, kind, title) for kind, title in FILLED.items()] + [_near(table), _contexts(table)]
    about = "From the pre-trained models, before any task: " + " · ".join(table["sentences"])
    return html.section("The same sentences", about, *shown) if any(shown) else ""


def _kind(table: Table, kind: str, title: str) -> str:
    rows = [
        [row["title"], *(_listed(answer) for answer in row["samples"][kind])]
        for row in table["rows"]
        if kind in row["samples"]
    ]
    return f"<h4>{escape(title)}</h4>{_beside(['Model', *table['sentences']], rows)}" if rows else ""


def _listed(answer: str | Sequence[str]) -> str:
    return answer if isinstance(answer, str) else " · ".join(answer) or EMPTY


def _near(table: Table) -> str:
    rows = [
        [row["title"], word, _listed(words)]
        for row in table["rows"]
        for word, words in row["samples"].get("near", {}).items()
    ]
    heading = "<h4>Nearest neighbours of static word vectors</h4>"
    return f"{heading}{html.table(['Model', 'Word', 'Nearest'], rows, wrap=True)}" if rows else ""


def _contexts(table: Table) -> str:
    """Similarities of the marked words, each pair of sentences a column."""
    count = len(table["sentences"])
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count)]
    rows = []
    for row in table["rows"]:
        similarity = row["samples"].get("contexts")
        if isinstance(similarity, list):
            rows.append([row["title"], *(f"{similarity[one][other]:.2f}" for one, other in pairs)])
    if not rows:
        return ""
    headings = ["Model", *(f"sentences {one + 1} and {other + 1}" for one, other in pairs)]
    title = "Cosine similarity of the vectors of the marked words (1.00 for static vectors of the same word)"
    return f"<h4>{escape(title)}</h4>{TextTable(headings, rows).html()}"


def _examples(table: Table) -> str:
    """Predictions of the fine-tuned models for the same examples, each of which is a column."""
    parts = []
    for task in table["tasks"]:
        cells = {row["title"]: row["cells"].get(task["name"]) or {} for row in table["rows"]}
        rows = [[title, *cell["shown"]] for title, cell in cells.items() if "shown" in cell]
        if not rows:
            continue
        gold = ["(label)", *(example["gold"] for example in task["shown"])]
        headings = ["Model", *(example["text"] for example in task["shown"])]
        parts.append(f"<h4>{escape(task['name'])}</h4>{_beside(headings, [gold, *rows])}")
    about = "The first dev examples of each task, after fine-tuning with the first seed."
    return html.section("The same examples", about, *parts) if parts else ""


def _beside(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with texts as headings."""
    return f'<div class="beside">{html.table(headings, rows, wrap=True)}</div>'


def _facts(table: Table) -> str:
    """Texts, tokenizers and papers."""
    texts = [
        [
            kind,
            facts["data"][:16],
            *(f"{facts[name]:,}" for name in ("vocab_size", "tokens", "held_out_documents")),
        ]
        for kind, facts in table["texts"].items()
        if facts
    ]
    papers = [[row["title"], row["paper"] or EMPTY, row["idea"], row["adds"]] for row in table["rows"]]
    tasks = [
        [task["name"], task["baseline"]["description"], f"{task['train_examples']:,}", f"{task['dev_examples']:,}"]
        for task in table["tasks"]
    ]
    headings = ["Tokenizer", "Data", "Vocabulary", "Training tokens", "Held-out documents"]
    return (
        "<details><summary>Models, texts and tasks</summary>"
        f"{html.table(['Model', 'Paper', 'Idea', 'What it adds'], papers, wrap=True)}"
        f"{TextTable(headings, texts, left=2).html()}"
        f"{TextTable(['Task', 'Baseline', 'Training', 'Dev'], tasks, left=2).html()}</details>"
    )
