"""Comparison of contestants: by task scores, and by training seconds to reach another's final loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.metrics.confidence import summarize_seeds

LOSS = "nats_per_byte"
# Metrics reported for tasks with several, as in the benchmarks.
MEASURES = {
    "glue/mrpc": ("f1", "accuracy"),
    "glue/sts-b": ("pearson", "spearman"),
    "squad/1.1": ("exact_match", "f1"),
    "korean/korsts": ("pearson", "spearman"),
}
# Test scores that Google published of its miniatures (Turc et al. 2019; the README of google-research/bert).
PUBLISHED: dict[str, dict[str, tuple[float, ...]]] = {
    "Google's small, 4×512 (test)": {
        "glue/cola": (27.8,),
        "glue/sst-2": (89.7,),
        "glue/mrpc": (83.4, 76.2),
        "glue/sts-b": (78.8, 77.0),
        "glue/rte": (61.8,),
    },
    "Google's medium, 8×512 (test)": {
        "glue/cola": (38.0,),
        "glue/sst-2": (89.6,),
        "glue/mrpc": (86.6, 81.6),
        "glue/sts-b": (80.4, 78.4),
        "glue/rte": (62.2,),
    },
}

Runs = Mapping[str, Mapping[str, Any]]
Scores = Mapping[tuple[str, str], Mapping[str, Any]]


def times_to_loss(runs: Runs) -> list[dict[str, Any]]:
    """Training seconds after which a run first reached the final loss of another; None: never.

    Only runs with the same held-out rows are compared, and no stage with the stage before it.
    """
    rows = []
    for name, run in runs.items():
        for other, reference in runs.items():
            goal = reference["final"].get(LOSS)
            if other == name or goal is None or LOSS not in run["final"]:
                continue
            if (
                _held_out_fingerprint(run) != _held_out_fingerprint(reference)
                or name == reference.get("after")
                or other == run.get("after")
            ):
                continue
            reached = next((point["seconds"] for point in run["curve"] if point.get(LOSS, goal + 1) <= goal), None)
            share = None if reached is None else reached / max(reference["seconds"], 1e-9)
            rows.append({"who": name, "whom": other, "loss": goal, "seconds": reached, "share": share})
    return rows


def _held_out_fingerprint(run: Mapping[str, Any]) -> Any:
    return run.get("judge", {}).get("fingerprint")


def standings(runs: Runs, scores: Scores, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Tasks on which each bertsmith run is ahead of others and on which it is behind, by the mean of the main metric.

    Others are models without pre-training, transformers' baseline, published scores, and bertsmith runs that are ahead
    on fewer tasks.
    """
    bertsmith_runs = [name for name, run in runs.items() if run["code"] == "bertsmith"]
    known: dict[str, Mapping[str, tuple[float, ...]]] = {
        name: {task: _means(task, scores[name, task]) for task in tasks if (name, task) in scores}
        for name in dict.fromkeys(name for name, _ in scores)
    }
    known.update(PUBLISHED)
    rows: list[dict[str, Any]] = []
    for name in bertsmith_runs:
        for other, reference in known.items():
            if other == name:
                continue
            common = [task for task in tasks if task in reference and (name, task) in scores]
            ahead, behind = [], []
            for task in common:
                score = summarize_seeds(scores[name, task]["scores"][scores[name, task]["main"]])
                reference_score = reference[task][measures(task, scores[name, task]).index(scores[name, task]["main"])]
                if 100 * score.mean > reference_score:
                    ahead.append(task)
                else:
                    behind.append(
                        {
                            "task": task,
                            "mine": 100 * score.mean,
                            "deviation": score.deviation,
                            "theirs": reference_score,
                        }
                    )
            if common:
                rows.append({"who": name, "whom": other, "ahead": ahead, "behind": behind})
    wins = {(one["who"], one["whom"]): len(one["ahead"]) for one in rows}
    return [one for one in rows if len(one["ahead"]) >= wins.get((one["whom"], one["who"]), 0)]


def measures(task: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    """The reported metrics of a task."""
    return MEASURES.get(task, (result["main"],))


def _means(task: str, result: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(100 * summarize_seeds(result["scores"][measure]).mean for measure in measures(task, result))
