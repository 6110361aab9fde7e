"""`table`: all results in one table, who was as good as whom and when, and a picture of the curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.ten_minutes import results
from bench.ten_minutes.drawing import draw
from bertsmith.durable import Disk
from bertsmith.scores.intervals import over_seeds
from bertsmith.studies.ablations import FRESH

PAGE, PICTURE, DATA = "table.md", "curves.svg", "table.json"
# Scores that stand beside the one that decides, as benchmarks tell them.
MEASURES = {
    "glue/mrpc": ("f1", "accuracy"),
    "glue/sts-b": ("pearson", "spearman"),
    "squad/1.1": ("exact_match", "f1"),
    "korean/korsts": ("pearson", "spearman"),
}
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
# Test scores that Google published of its miniatures (Turc et al. 2019; the README of google-research/bert).
PUBLISHED = {
    "Google's small, 4×512 (test)": {
        "glue/cola": "27.8",
        "glue/sst-2": "89.7",
        "glue/mrpc": "83.4/76.2",
        "glue/sts-b": "78.8/77.0",
        "glue/rte": "61.8",
    },
    "Google's medium, 8×512 (test)": {
        "glue/cola": "38.0",
        "glue/sst-2": "89.6",
        "glue/mrpc": "86.6/81.6",
        "glue/sts-b": "80.4/78.4",
        "glue/rte": "62.2",
    },
}
ABSENT = "–"
LOSS = "nats_per_byte"

Scores = Mapping[tuple[str, str], Mapping[str, Any]]


def table(folders: Sequence[Path], output: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Merges what the folders hold, of all contestants or only some, and writes table.md, curves.svg, table.json."""
    runs = {name: run for name, run in results.contestants(folders).items() if name in only or not only}
    scores = {key: found for key, found in results.task_scores(folders).items() if key[0] in only or not only}
    tasks = [task for task in TITLES if any(found == task for _, found in scores)]
    tasks += sorted({task for _, task in scores} - set(tasks))
    overtaking = overtakings(runs)
    text = "\n\n".join(part for part in (_results(runs, scores, tasks), _told(overtaking), _footing(runs)) if part)
    Disk().make_folder(output)
    Disk().write_file(output / PAGE, [(text + "\n").encode()])
    lines = {
        name: [(point["seconds"], point[LOSS]) for point in run["curve"] if LOSS in point] for name, run in runs.items()
    }
    picture = draw(lines, across="seconds of learning", up="held-out nats per byte")
    Disk().write_file(output / PICTURE, [picture.encode()])
    found = {"contestants": list(runs), "tasks": tasks, "overtaking": overtaking, "text": text}
    results.write(output / DATA, found)
    return found


def overtakings(runs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who was first judged as good as another in the end, and after how many seconds; None: never."""
    found = []
    for name, run in runs.items():
        for other, theirs in runs.items():
            goal = theirs["final"].get(LOSS)
            if other == name or goal is None or LOSS not in run["final"]:
                continue
            reached = next((point["seconds"] for point in run["curve"] if point.get(LOSS, goal + 1) <= goal), None)
            share = None if reached is None else reached / max(theirs["seconds"], 1e-9)
            found.append({"who": name, "whom": other, "loss": goal, "seconds": reached, "share": share})
    return found


def _results(runs: Mapping[str, Mapping[str, Any]], scores: Scores, tasks: Sequence[str]) -> str:
    heads = ["", "minutes", "tokens seen", "tokens/s", "of peak", "nats/piece", "nats/byte", "NSP"]
    heads += [TITLES.get(task, task) for task in tasks]
    names = list(dict.fromkeys([*runs, *(name for name, _ in scores)]))
    names.sort(key=lambda name: not name.endswith(FRESH))
    rows = [[_called(name, runs), *_facts(runs.get(name)), *_cells(name, scores, tasks)] for name in names]
    for name, known in PUBLISHED.items():
        if known.keys() & set(tasks):
            rows.append([name, *[ABSENT] * 7, *(known.get(task, ABSENT) for task in tasks)])
    return "\n".join([_line(heads), _line(["---", *["---:"] * (len(heads) - 1)]), *map(_line, rows)])


def _called(name: str, runs: Mapping[str, Mapping[str, Any]]) -> str:
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
    """Mean ± deviation in hundredths, of each measure; how many seeds where they are few."""
    parts = []
    for measure in MEASURES.get(task, (found["main"],)):
        score = over_seeds(found["scores"][measure])
        spread = f" ± {100 * score.deviation:.1f}" if score.deviation is not None else ""
        parts.append(f"{100 * score.mean:.1f}{spread}")
    count = len(found["seeds"])
    few = f" ({count} seed{'s' if count > 1 else ''})" if count < 3 else ""
    return " / ".join(parts) + few


def _told(overtaking: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for one in overtaking:
        goal = f"{one['whom']}'s final {one['loss']:.4f} nats per byte"
        if one["seconds"] is None:
            lines.append(f"- {one['who']} did not reach {goal}")
        else:
            at = f"at {one['seconds']:.1f} s, {one['share']:.0%} of its time"
            lines.append(f"- {one['who']} was first judged at or below {goal} {at}")
    return "\n".join(lines)


def _footing(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """On what everybody stood: device, seeds, fingerprints, compiling."""
    lines = []
    for name, run in runs.items():
        compiled = " + ".join(f"{seconds:.0f}" for seconds in run["compile_seconds"]) or "0"
        prints = ", ".join(f"{kind} {value}" for kind, value in run["fingerprints"].items())
        lines.append(
            f"- {name}: {run['device']}, {run['code']}, {run['parameters'] / 1e6:.1f} M parameters, "
            f"seed {run['seed']}, {run['steps']:,} steps, "
            f"the text {run['tokens'] / run['text_tokens']:.1f} times, "
            f"compiling {compiled} s in {run['calls']} calls (not counted), "
            f"{prints}, judge {run['judge']['fingerprint']}"
        )
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
