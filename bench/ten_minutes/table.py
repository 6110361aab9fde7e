"""`table`: all results in one table, comparisons between contestants, and a plot of the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bench.ten_minutes.drawing import draw
from bench.ten_minutes.standings import LOSS, PUBLISHED, Runs, Scores, measures, standings, times_to_loss
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.studies.ablations import FRESH
from bertsmith.system.durable import Disk

PAGE, PICTURE, DATA = "table.md", "curves.svg", "table.json"
TITLES = {
    "squad/1.1": "SQuAD 1.1",
    "glue/sst-2": "SST-2",
    "glue/cola": "CoLA",
    "glue/mrpc": "MRPC",
    "glue/sts-b": "STS-B",
    "glue/rte": "RTE",
    "conll/conll2003": "CoNLL-2003",
    "codah": "CODAH",
    "korean/nsmc": "NSMC",
    "korean/korsts": "KorSTS",
}
ABSENT = "–"


def table(folders: Sequence[Path], output: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Merges the results of all or some contestants and writes table.md, curves.svg and table.json."""
    runs = {name: run for name, run in results.contestants(folders).items() if name in only or not only}
    scores = {key: found for key, found in results.task_scores(folders).items() if key[0] in only or not only}
    tasks = [task for task in TITLES if any(found == task for _, found in scores)]
    tasks += sorted({task for _, task in scores} - set(tasks))
    times, standing = times_to_loss(runs), standings(runs, scores, tasks)
    parts = (_results(runs, scores, tasks), _standing(standing), _time_to_loss_lines(times), _footnotes(runs))
    text = "\n\n".join(part for part in parts if part)
    Disk().make_folder(output)
    Disk().write_file(output / PAGE, [(text + "\n").encode()])
    lines = {
        name: [(point["seconds"], point[LOSS]) for point in run["curve"] if LOSS in point] for name, run in runs.items()
    }
    picture = draw(lines, across="training seconds", up="held-out nats per byte")
    Disk().write_file(output / PICTURE, [picture.encode()])
    found = {"contestants": list(runs), "tasks": tasks, "standing": standing, "times_to_loss": times, "text": text}
    results.write(output / DATA, found)
    return found


def _results(runs: Runs, scores: Scores, tasks: Sequence[str]) -> str:
    heads = ["", "minutes", "tokens seen", "tokens/s", "MFU", "nats/piece", "nats/byte", "NSP"]
    heads += [TITLES.get(task, task) for task in tasks]
    names = list(dict.fromkeys([*runs, *(name for name, _ in scores)]))
    names.sort(key=lambda name: not name.endswith(FRESH))
    rows = [[_title(name, runs), *_facts(runs.get(name)), *_cells(name, scores, tasks)] for name in names]
    for name, known in PUBLISHED.items():
        if known.keys() & set(tasks):
            cells = [" / ".join(f"{score:.1f}" for score in known.get(task, ())) or ABSENT for task in tasks]
            rows.append([name, *[ABSENT] * 7, *cells])
    return "\n".join([_line(heads), _line(["---", *["---:"] * (len(heads) - 1)]), *map(_line, rows)])


def _title(name: str, runs: Runs) -> str:
    if name.endswith(FRESH):
        return f"no pre-training ({name.removesuffix(FRESH)})"
    return f"{name} ({runs[name]['recipe']})" if name in runs else name


def _facts(run: Mapping[str, Any] | None) -> list[str]:
    if run is None:
        return [ABSENT] * 7
    final = run["final"]
    return [
        f"{run['seconds'] / 60:.2f}",
        f"{run['tokens'] / 1e6:,.1f} M",
        f"{run['tokens_per_second'] / 1e3:,.1f} k",
        f"{run['share_of_peak']:.1%}",
        *(f"{final[key]:.3f}" if key in final else ABSENT for key in ("nats_per_piece", LOSS)),
        f"{final['next_sentence']:.1%}" if "next_sentence" in final else ABSENT,
    ]


def _cells(name: str, scores: Scores, tasks: Sequence[str]) -> list[str]:
    return [_cell(task, scores[name, task]) if (name, task) in scores else ABSENT for task in tasks]


def _cell(task: str, found: Mapping[str, Any]) -> str:
    """Mean ± deviation of each metric in percent, with the number of seeds if below 3."""
    parts = []
    for measure in measures(task, found):
        score = summarize_seeds(found["scores"][measure])
        spread = f" ± {100 * score.deviation:.1f}" if score.deviation is not None else ""
        parts.append(f"{100 * score.mean:.1f}{spread}")
    count = len(found["seeds"])
    few = f" ({count} seed{'s' if count > 1 else ''})" if count < 3 else ""
    return " / ".join(parts) + few


def _standing(standing: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in standing:
        ahead = ", ".join(TITLES.get(task, task) for task in one["ahead"]) or "nothing"
        behind = []
        for lost in one["behind"]:
            spread = f" ± {100 * lost['deviation']:.1f}" if lost["deviation"] is not None else ""
            behind.append(
                f"{TITLES.get(lost['task'], lost['task'])} ({lost['mine']:.1f}{spread}, {lost['theirs']:.1f})"
            )
        but = f", not on {', '.join(behind)}" if behind else ""
        lines.append(f"- {one['who']} is ahead of {_title(one['whom'], {})} on {ahead}{but}")
    return "\n".join(lines)


def _time_to_loss_lines(times: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in times:
        goal = f"{one['whom']}'s final {one['loss']:.4f} nats per byte"
        if one["seconds"] is None:
            lines.append(f"- {one['who']} did not reach {goal}")
        else:
            at = f"at {one['seconds']:.1f} s, {one['share']:.0%} of its time"
            lines.append(f"- {one['who']} first reached {goal} {at}")
    return "\n".join(lines)


def _footnotes(runs: Runs) -> str:
    """Device, seeds, fingerprints and compile times of all runs."""
    lines = []
    for name, run in runs.items():
        compiled = " + ".join(f"{seconds:.0f}" for seconds in run["compile_seconds"]) or "0"
        prints = [f"{kind} {value}" for kind, value in run["fingerprints"].items()]
        judge = run["judge"].get("fingerprint")  # none where the loss is that of the recipe's own objectives
        held_out = [f"held-out set {judge}"] if judge else []
        lines.append(
            f"- {name}: {run['device']}, {run['code']}, {run['parameters'] / 1e6:.1f} M parameters, "
            f"seed {run['seed']}, {run['steps']:,} steps, "
            f"{run['tokens'] / run['text_tokens']:.1f} epochs, "
            f"{compiled} s compilation in {run['calls']} call{'s' if run['calls'] > 1 else ''} (not counted), "
            f"{', '.join([*prints, *held_out])}"
        )
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
