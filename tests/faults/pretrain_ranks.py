"""Fault campaigns on several ranks: a signal to one of them, and a changed world size."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from pathlib import Path

from faults.pretrain_fixtures import QUICK, RESUMABLE, STEPS, PretrainOutcome, Scene, newest, numbers
from faults.pretrain_kills import patches_of
from faults.pretrain_process import Ended, Patch
from faults.shard_fixtures import Outcome, emptied

# Dropout depends on micro-batch and rank, and a high learning rate amplifies rounding.
SAME = ("encoder.dropout=0", "encoder.attention_dropout=0", "learning_rate=1e-3", "micro_batch_size=2")
TOLERANCE = 1e-4  # of a loss
SLACK = 30.0  # seconds after which ranks count as hung


def with_ranks(scene: Scene, size: int, run: Path, *patches: Patch, changes: tuple[str, ...] = SAME) -> list[Ended]:
    """Runs the command as torchrun does, on several ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(size)}
    calls = [
        scene.server.start(
            scene.words(run, *changes),
            QUICK,
            *patches,
            environment={**rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {},
        )
        for rank in range(size)
    ]
    return [call.wait(SLACK) for call in calls]


def rows_learned(folder: Path) -> dict[int, list[str]]:
    """Digests of all rows of each step in global order: by micro-batch, then by rank."""
    rows_by_step: dict[int, list[tuple[int, int, list[str]]]] = {}
    for path in folder.glob("rows-*.jsonl"):
        rank = int(path.stem.removeprefix("rows-"))
        for line in path.read_text().splitlines():
            event = json.loads(line)
            rows_by_step.setdefault(event["step"], []).append((event["micro"], rank, event["rows"]))
    return {step: [row for _, _, rows in sorted(shares) for row in rows] for step, shares in rows_by_step.items()}


def _segments(plan: str) -> list[tuple[int, int, str]]:
    """Parses `1x2-2x2`: consecutive pairs of ranks and micro-batch sizes, with the last step of each part."""
    parts = [part.split("x") for part in plan.split("-")]
    stops = [1 + number * STEPS // len(parts) for number in range(1, len(parts))]
    ends = [*stops, 0]
    return [(int(ranks), end, f"micro_batch_size={rows}") for (ranks, rows), end in zip(parts, ends, strict=True)]


def worlds(
    scene: Scene, *, only: str | None = None, plans: str = "2x2,1x2-2x2-4x2-1x2,1x8-2x1", build: str = ""
) -> Outcome:
    """F20: other world sizes and micro-batch sizes, from the start or on resume: same rows, masks and losses."""
    outcome = PretrainOutcome("worlds", only, {"plans": plans, "build": build})
    single_rank = _walk(scene, "1x2", build)
    assert isinstance(single_rank, tuple), single_rank
    assert [len(single_rank[0][step]) for step in range(1, STEPS + 1)] == [8] * STEPS
    for plan in plans.split(","):
        if outcome.wants(plan):
            result = _walk(scene, plan, build)
            outcome.land("change of ranks" if "-" in plan else "more ranks")
            if isinstance(result, str):
                outcome.fail(plan, result)
            elif result[0] != single_rank[0]:
                steps = [step for step in single_rank[0] if result[0].get(step) != single_rank[0][step]]
                outcome.fail(plan, f"steps {steps} learned from other rows, in another order or with other masks")
            elif apart := [
                (a, b) for a, b in zip(result[1], single_rank[1], strict=True) if abs(a - b) > TOLERANCE * b
            ]:
                outcome.fail(plan, f"losses are apart: {apart}")
    return outcome


def _walk(scene: Scene, plan: str, build: str) -> tuple[dict[int, list[str]], list[float]] | str:
    """Rows and losses of a run with such a plan, or the problem."""
    run, record = emptied(scene.folder / "world"), emptied(scene.folder / "rows")
    shutil.rmtree(run)
    for ranks, stop, rows in _segments(plan):
        patches: list[Patch] = [("record", {"folder": str(record)}), *patches_of(build)]
        if stop:
            patches.append(
                ("signal_at", {"phase": f"update-{stop}", "number": signal.SIGTERM, "marker": str(scene.sent)})
            )
        ended = with_ranks(scene, ranks, run, *patches, changes=(*SAME, rows))
        expected = RESUMABLE if stop else 0
        if {one.status for one in ended} != {expected} or newest(run) != (stop or STEPS):
            failures = [(one.status, one.errors[-300:]) for one in ended]
            return f"{ranks} ranks up to step {stop or STEPS} left with {failures}"
    return rows_learned(record), [float.fromhex(loss) for loss in numbers(run, "step")]


# Phase, the rank that gets a signal, and the step after which both stop: they agree in the next all-reduce.
SIGNALS = (("step-1", 1, 1), ("update-5", 1, 5), ("save-1", 0, 4), ("evaluation", 1, 5))


def signal_to_one_rank(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F13: one of two ranks gets a signal: both stop with the same step saved, and resuming gives the same bits."""
    outcome = PretrainOutcome("one_rank_is_asked", only, {"build": build})
    run, whole = scene.folder / "ranks", scene.folder / "whole"
    if not whole.exists():
        assert {one.status for one in with_ranks(scene, 2, whole)} == {0}
    for phase, rank, step in SIGNALS:
        case = f"{phase}-of-{rank}"
        if outcome.wants(case):
            shutil.rmtree(run, ignore_errors=True)
            scene.sent.unlink(missing_ok=True)
            patch = {"phase": phase, "number": signal.SIGTERM, "marker": str(scene.sent), "rank": rank}
            ended = with_ranks(scene, 2, run, ("signal_at", patch), *patches_of(build))
            outcome.land(f"signal to rank {rank}", scene.sent.exists())
            last = f"bertsmith: stopped after step {step:,}, which is saved: the same command resumes from there\n"
            good = {one.status for one in ended} == {RESUMABLE} and ended[0].errors.endswith(last)
            if not good or newest(run) != step:
                outcome.fail(case, f"newest {newest(run)}, {[(one.status, one.errors[-400:]) for one in ended]}")
            elif {one.status for one in with_ranks(scene, 2, run)} != {0} or numbers(run, "step") != numbers(
                whole, "step"
            ):
                outcome.fail(case, "resuming did not give the losses of an uninterrupted run")
    return outcome


def fewer_rows_than_ranks(scene: Scene) -> tuple[list[int], list[list[float]]]:
    """Two held-out rows for four ranks and for one: exit statuses and held-out losses of both runs."""
    four_ranks = (*SAME, "eval_rows=2")
    single_rank, run = emptied(scene.folder / "alone"), emptied(scene.folder / "few")
    ended = [*with_ranks(scene, 1, single_rank, changes=four_ranks), *with_ranks(scene, 4, run, changes=four_ranks)]
    losses = [[float.fromhex(loss) for loss in numbers(folder, "evaluation")] for folder in (single_rank, run)]
    return [one.status for one in ended], losses
