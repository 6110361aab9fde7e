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

# Dropout is drawn for each micro-batch of each rank, and a high rate makes much of a rounding.
SAME = ("encoder.dropout=0", "encoder.attention_dropout=0", "learning_rate=1e-3", "micro_batch_size=2")
TOLERANCE = 1e-4  # of a loss
SLACK = 30.0  # seconds until ranks count as hung


def with_ranks(scene: Scene, size: int, run: Path, *patches: Patch, changes: tuple[str, ...] = SAME) -> list[Ended]:
    """The command as torchrun starts it, on so many ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(size)}
    calls = [
        scene.server.start(
            scene.words(run, *changes),
            QUICK,
            *patches,
            environment={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {},
        )
        for rank in range(size)
    ]
    return [call.wait(SLACK) for call in calls]


def rows_learned(folder: Path) -> dict[int, list[str]]:
    """Digests of all rows of each step in their global order: by micro-batch, and within it by rank."""
    found: dict[int, list[tuple[int, int, list[str]]]] = {}
    for path in folder.glob("rows-*.jsonl"):
        rank = int(path.stem.removeprefix("rows-"))
        for line in path.read_text().splitlines():
            event = json.loads(line)
            found.setdefault(event["step"], []).append((event["micro"], rank, event["rows"]))
    return {step: [row for _, _, rows in sorted(shares) for row in rows] for step, shares in found.items()}


def _segments(plan: str) -> list[tuple[int, int, str]]:
    """`1x2-2x2`: ranks and rows of a micro-batch one after the other, with the step at which each part stops."""
    parts = [part.split("x") for part in plan.split("-")]
    stops = [1 + place * STEPS // len(parts) for place in range(1, len(parts))]
    ends = [*stops, 0]
    return [(int(ranks), end, f"micro_batch_size={rows}") for (ranks, rows), end in zip(parts, ends, strict=True)]


def worlds(
    scene: Scene, *, only: str | None = None, plans: str = "2x2,1x2-2x2-4x2-1x2,1x8-2x1", build: str = ""
) -> Outcome:
    """F20: other ranks and micro-batches, from the start or under way: the same rows and masks, the same losses."""
    outcome = PretrainOutcome("worlds", only, {"plans": plans, "build": build})
    alone = _walk(scene, "1x2", build)
    assert isinstance(alone, tuple), alone
    assert [len(alone[0][step]) for step in range(1, STEPS + 1)] == [8] * STEPS
    for plan in plans.split(","):
        if outcome.wants(plan):
            found = _walk(scene, plan, build)
            outcome.land("change of ranks" if "-" in plan else "more ranks")
            if isinstance(found, str):
                outcome.fail(plan, found)
            elif found[0] != alone[0]:
                steps = [step for step in alone[0] if found[0].get(step) != alone[0][step]]
                outcome.fail(plan, f"steps {steps} learned from other rows, in another order or with other masks")
            elif apart := [(a, b) for a, b in zip(found[1], alone[1], strict=True) if abs(a - b) > TOLERANCE * b]:
                outcome.fail(plan, f"losses are apart: {apart}")
    return outcome


def _walk(scene: Scene, plan: str, build: str) -> tuple[dict[int, list[str]], list[float]] | str:
    """Rows and losses of a run by such a plan, or what went wrong."""
    run, record = emptied(scene.folder / "world"), emptied(scene.folder / "rows")
    shutil.rmtree(run)
    for ranks, stop, rows in _segments(plan):
        patches: list[Patch] = [("record", {"folder": str(record)}), *patches_of(build)]
        if stop:
            patches.append(
                ("signal_at", {"phase": f"update-{stop}", "number": signal.SIGTERM, "told": str(scene.sent)})
            )
        ended = with_ranks(scene, ranks, run, *patches, changes=(*SAME, rows))
        expected = RESUMABLE if stop else 0
        if {one.status for one in ended} != {expected} or newest(run) != (stop or STEPS):
            said = [(one.status, one.errors[-300:]) for one in ended]
            return f"{ranks} ranks up to step {stop or STEPS} left with {said}"
    return rows_learned(record), [float.fromhex(loss) for loss in numbers(run, "step")]


# Phase, the rank that gets a signal, and the step after which both stop: they agree on it in the next exchange.
ASKED = (("step-1", 1, 1), ("update-5", 1, 5), ("save-1", 0, 4), ("evaluation", 1, 5))


def one_rank_is_asked(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F13: one of two ranks gets a signal: both leave with the same step saved, and going on gives the same bits."""
    outcome = PretrainOutcome("one_rank_is_asked", only, {"build": build})
    run, whole = scene.folder / "ranks", scene.folder / "whole"
    if not whole.exists():
        assert {one.status for one in with_ranks(scene, 2, whole)} == {0}
    for phase, rank, step in ASKED:
        case = f"{phase}-of-{rank}"
        if outcome.wants(case):
            shutil.rmtree(run, ignore_errors=True)
            scene.sent.unlink(missing_ok=True)
            patch = {"phase": phase, "number": signal.SIGTERM, "told": str(scene.sent), "rank": rank}
            ended = with_ranks(scene, 2, run, ("signal_at", patch), *patches_of(build))
            outcome.land(f"signal to rank {rank}", scene.sent.exists())
            last = f"bertsmith: stopped after step {step:,}, which is saved: the same command resumes from there\n"
            good = {one.status for one in ended} == {RESUMABLE} and ended[0].errors.endswith(last)
            if not good or newest(run) != step:
                outcome.fail(case, f"newest {newest(run)}, {[(one.status, one.errors[-400:]) for one in ended]}")
            elif {one.status for one in with_ranks(scene, 2, run)} != {0} or numbers(run, "step") != numbers(
                whole, "step"
            ):
                outcome.fail(case, "going on did not give the losses of a run that was not asked to stop")
    return outcome


def fewer_rows_than_ranks(scene: Scene) -> tuple[list[int], list[list[float]]]:
    """Two held-out rows for four ranks and for one: how the ranks left, and the held-out losses of both runs."""
    few = (*SAME, "eval_rows=2")
    alone, run = emptied(scene.folder / "alone"), emptied(scene.folder / "few")
    ended = [*with_ranks(scene, 1, alone, changes=few), *with_ranks(scene, 4, run, changes=few)]
    found = [[float.fromhex(loss) for loss in numbers(folder, "evaluation")] for folder in (alone, run)]
    return [one.status for one in ended], found
