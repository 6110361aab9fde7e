"""Fault campaigns on `pretrain`: kill -9 at random times and at disk changes, and disk errors."""

from __future__ import annotations

import errno
import os
import random
import re
import signal

from faults.faulty_disks import SPACE
from faults.pretrain_fixtures import MODEL, PretrainOutcome, Scene
from faults.pretrain_process import Patch
from faults.shard_fixtures import Outcome

from bertsmith.training.log import read_events

TRIES = 12  # for a kill that comes after the run has finished


def patches_of(build: str) -> list[Patch]:
    """The patches of a deliberately broken build, by name."""
    return [(build, {})] if build else []


def kills_at_random(
    scene: Scene, *, only: str | None = None, count: int = 20, seed: int = 0, build: str = ""
) -> Outcome:
    """F2: the command is killed at random times, one to four times in a row, then resumed to its end.

    Every other kill in a row comes before the resumed run has finished a step.
    """
    outcome = PretrainOutcome("kills_at_random", only, {"count": count, "seed": seed, "build": build})
    for row, shares in enumerate(_rows(count, seed)):
        if outcome.wants(str(row)):
            outcome.requested += len(shares) - 1
            scene.fresh()
            problem = ""
            for number, share in enumerate(shares):
                problem = problem or _killed(scene, outcome, share, inside_resume=number % 2 == 1, build=build)
            if problem := problem or scene.differs_at_the_end(*patches_of(build)):
                outcome.fail(str(row), f"kills at {shares} of its time: {problem}")
    return outcome


def _rows(count: int, seed: int) -> list[list[float]]:
    """Times of consecutive kills, as shares of the remaining run."""
    chance, rows = random.Random(seed), list[list[float]]()
    while count:
        rows.append([round(chance.random(), 3) for _ in range(min(count, chance.randint(1, 4)))])
        count -= len(rows[-1])
    return rows


def _killed(scene: Scene, outcome: PretrainOutcome, share: float, *, inside_resume: bool, build: str) -> str:
    """One kill that lands; the problem after it."""
    oracle = scene.oracle
    for _ in range(TRIES):
        before = len(read_events(scene.run / "events.jsonl"))
        left = oracle.first_step if inside_resume else oracle.seconds
        call = scene.server.start(scene.words(), ("quick_start", {}), *patches_of(build))
        call.work(share * left)
        call.send(signal.SIGKILL)
        ended = call.wait()
        if ended.status == -signal.SIGKILL:
            outcome.land(_phase(scene, before))
            return scene.state_problem()
        if ended.status != 0:
            return f"it ended with status {ended.status} by itself: {ended.errors[-300:]}"
        scene.fresh()
        share /= 1.5
    return "no kill landed"


def _phase(scene: Scene, before: int) -> str:
    """The phase of a kill, as visible in the folder."""
    partial = list(scene.run.rglob("*.partial")) if scene.run.exists() else []
    if partial:
        return "in a save" if partial[0].parent.name == "checkpoints" else "in a model or recipe"
    kinds = [event["kind"] for event in read_events(scene.run / "events.jsonl")][before:]
    return "between steps" if "step" in kinds else "after the start" if "start" in kinds else "before the start"


def kills_at_changes(
    scene: Scene, *, only: str | None = None, every: int = 1, build: str = "", first: int = 0
) -> Outcome:
    """F1 of the complete command: killed before every `every`-th disk operation of any component."""
    outcome = PretrainOutcome("kills_at_changes", only, {"every": every, "build": build, "first": first})
    for number in range(first, scene.changes, every):
        if outcome.wants(str(number)):
            scene.fresh()
            ended = scene.call(("kill_at_change", {"number": number}), *patches_of(build))
            outcome.land(_phase(scene, 0), ended.status == -signal.SIGKILL)
            if problem := scene.state_problem() or scene.differs_at_the_end(*patches_of(build)):
                outcome.fail(str(number), problem)
    return outcome


def kills_at_phases(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F2 at critical moments, the same for every build."""
    outcome = PretrainOutcome("kills_at_phases", only, {"build": build})
    for phase in ("model", "resume", "step-5", "save-2", "manifest-4", "evaluation-3"):
        if outcome.wants(phase):
            scene.fresh()
            ended = scene.call(("kill_at", {"phase": phase}), *patches_of(build))
            outcome.land(phase, ended.status == -signal.SIGKILL)
            if problem := scene.state_problem() or scene.differs_at_the_end(*patches_of(build)):
                outcome.fail(phase, problem)
    return outcome


def kills_at_models(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """Killed right before a model is written, in a run whose last model is also its best."""
    outcome = PretrainOutcome("kills_at_models", only, {"build": build})
    whole, rate = scene.folder / "improving", ("learning_rate=5e-3",)
    if not whole.exists():
        assert scene.call(run=whole, changes=rate).status == 0
    expected = {name: (whole / name / MODEL).read_bytes() for name in ("best", "last")}
    assert expected["best"] == expected["last"], "there is no better model at the end to be lost"
    for number in (1, 3, 4):
        if outcome.wants(str(number)):
            run = scene.fresh()
            ended = scene.call(("kill_at", {"phase": f"write-{number}"}), *patches_of(build), changes=rate)
            outcome.land("as a model is written", ended.status == -signal.SIGKILL)
            ended = scene.call(*patches_of(build), changes=rate)
            found = {name: (run / name / MODEL).read_bytes() for name in expected if (run / name).exists()}
            if ended.status or found != expected:
                wrong = [name for name in expected if found.get(name) != expected[name]]
                outcome.fail(str(number), f"status {ended.status}, and {wrong} are not those of an undisturbed run")
    return outcome


def refusals(scene: Scene, *, only: str | None = None, every: int = 1, build: str = "", first: int = 1) -> Outcome:
    """F4: from some disk operation on, each fails; once there is space, the same command resumes."""
    outcome = PretrainOutcome("refusals", only, {"every": every, "build": build, "first": first})
    for index, number in enumerate(range(first, scene.changes, every)):
        mode = ("ENOSPC", "EIO")[index % 2]
        if outcome.wants(str(number)):
            scene.fresh()
            patch = ("refuse_change", {"number": number, "mode": mode, "marker": str(scene.sent)})
            ended = scene.call(patch, *patches_of(build))
            outcome.land(mode, scene.sent.exists())
            problem = _message_problem(ended.status, ended.errors, os.strerror(getattr(errno, mode)), str(scene.folder))
            if problem := problem or scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(str(number), problem)
    return outcome


def files_too_large(scene: Scene, *, only: str | None = None) -> Outcome:
    """F4 by the kernel: a file size limit that weights, optimizer states and models exceed."""
    outcome = PretrainOutcome("files_too_large", only)
    for limit in (30_000, 120_000):
        if outcome.wants(str(limit)):
            scene.fresh()
            ended = scene.call(limit=limit)
            outcome.land("EFBIG", ended.status == 74)
            problem = _message_problem(ended.status, ended.errors, os.strerror(errno.EFBIG), str(scene.folder))
            if problem := problem or scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(str(limit), problem)
    return outcome


def _message_problem(status: int, errors: str, reason: str, folder: str) -> str:
    """Problem unless the error is one line with the reason, the path, and bytes needed and free where there are any."""
    pattern = rf"bertsmith: {reason}: .*{re.escape(folder)}.*{SPACE}( in \S+)?\n"
    return "" if status == 74 and re.fullmatch(pattern, errors) else f"status {status}, stderr {errors[-600:]!r}"
