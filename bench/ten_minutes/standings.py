"""Who is ahead of whom: on which tasks, and after how many seconds of learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.metrics.confidence import summarize_seeds

LOSS = "nats_per_byte"
# Scores that stand beside the one that decides, as benchmarks tell them.
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


def overtakings(runs: Runs) -> list[dict[str, Any]]:
    """Who was first judged as good as another in the end, and after how many seconds; None: never.

    Only those that one judge has judged, and no stage against the one that it follows.
    """
    found = []
    for name, run in runs.items():
        for other, theirs in runs.items():
            goal = theirs["final"].get(LOSS)
            if other == name or goal is None or LOSS not in run["final"]:
                continue
            if _judge(run) != _judge(theirs) or name == theirs.get("after") or other == run.get("after"):
                continue
            reached = next((point["seconds"] for point in run["curve"] if point.get(LOSS, goal + 1) <= goal), None)
            share = None if reached is None else reached / max(theirs["seconds"], 1e-9)
            found.append({"who": name, "whom": other, "loss": goal, "seconds": reached, "share": share})
    return found


def _judge(run: Mapping[str, Any]) -> Any:
    return run.get("judge", {}).get("fingerprint")


def standings(runs: Runs, scores: Scores, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """On which tasks each run of ours is ahead of others, and on which it is not: by the mean of what decides.

    Others are those without pre-training, transformers', what is published, and ours that are ahead on no more tasks.
    """
    ours = [name for name, run in runs.items() if run["code"] == "bertsmith"]
    known: dict[str, Mapping[str, tuple[float, ...]]] = {
        name: {task: _means(task, scores[name, task]) for task in tasks if (name, task) in scores}
        for name in dict.fromkeys(name for name, _ in scores)
    }
    known.update(PUBLISHED)
    found: list[dict[str, Any]] = []
    for who in ours:
        for whom, theirs in known.items():
            if whom == who:
                continue
            common = [task for task in tasks if task in theirs and (who, task) in scores]
            ahead, behind = [], []
            for task in common:
                score = summarize_seeds(scores[who, task]["scores"][scores[who, task]["main"]])
                other = theirs[task][measures(task, scores[who, task]).index(scores[who, task]["main"])]
                if 100 * score.mean > other:
                    ahead.append(task)
                else:
                    behind.append(
                        {"task": task, "mine": 100 * score.mean, "deviation": score.deviation, "theirs": other}
                    )
            if common:
                found.append({"who": who, "whom": whom, "ahead": ahead, "behind": behind})
    wins = {(one["who"], one["whom"]): len(one["ahead"]) for one in found}
    return [one for one in found if len(one["ahead"]) >= wins.get((one["whom"], one["who"]), 0)]


def measures(task: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """The scores of a task that are told."""
    return MEASURES.get(task, (found["main"],))


def _means(task: str, found: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(100 * summarize_seeds(found["scores"][measure]).mean for measure in measures(task, found))
