"""Fault campaigns while saving checkpoints: kill -9, power loss, disk errors, and stop signals."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from faults.broken_disks import QuickDisk, QuickFailing
from faults.checkpoint_fixtures import (
    STEPS,
    Acknowledgements,
    Build,
    CheckpointOutcome,
    differs_at_the_end,
    oracle,
    save_all,
    state_problem,
    train_all,
    undisturbed,
)
from faults.faulty_disks import SPACE, FailingDisk, Operation, RecordingDisk
from faults.power_loss import DiskState, power_loss_states
from faults.shard_crashes import StoppingDisk
from faults.shard_fixtures import Outcome, emptied, in_child
from training.training_fixtures import feed

from bertsmith.errors import StorageError
from bertsmith.system.durable import Disk
from bertsmith.training.checkpoints import Checkpoints
from bertsmith.training.signals import StopSignal

RESUMABLE = 75  # exit status of a run stopped by a signal


def operations_of(run: Path) -> list[Operation]:
    """Disk operations of three undisturbed saves, retention included."""
    disk = RecordingDisk()
    save_all(emptied(run), disk)
    return disk.operations


def kills(
    folder: Path,
    *,
    only: str | None = None,
    build: Build = Checkpoints,
    every: int = 1,
    again: int = 0,
    seed: int = 0,
) -> Outcome:
    """F1, F2: SIGKILL before each `every`-th change and half-way through writes; `again` times also in the resume."""
    outcome = CheckpointOutcome("kills", only, {"every": every, "again": again, "seed": seed})
    expected, run, acknowledged = oracle(folder / "oracle"), folder / "run", Acknowledgements(folder / "acknowledged")
    kinds = [operation.kind for operation in operations_of(folder / "recorded")]
    count = QuickFailing(-1, "kill")
    save_all(emptied(run), count, build=build)
    cases = [(number, False) for number in range(count.done)]
    cases += [(number, True) for number, kind in enumerate(kinds) if kind == "write" and count.done == len(kinds)]
    for number, halfway in cases[::every]:
        case = f"{number}{'-halfway' if halfway else ''}"
        if outcome.wants(case):
            acknowledged = Acknowledgements(folder / "acknowledged")
            outcome.landed += _killed(emptied(run), QuickFailing(number, "kill", halfway=halfway), acknowledged, build)
            if problem := state_problem(run, acknowledged.steps()) or differs_at_the_end(run, expected):
                outcome.fail(case, problem)
    chance = random.Random(seed)
    for time in range(again):
        number, share = chance.randrange(count.done - 2), chance.random()
        if outcome.wants(f"again-{time}"):
            acknowledged = Acknowledgements(folder / "acknowledged")
            first = _killed(emptied(run), QuickFailing(number, "kill"), acknowledged, build)
            second = int(share * _operations_of_resume(run, folder / "rehearsal"))
            landed = _killed(run, QuickFailing(second, "kill"), acknowledged, build)
            outcome.landed += first and landed
            if problem := state_problem(run, acknowledged.steps()) or differs_at_the_end(run, expected):
                outcome.fail(f"again-{time}", f"kills at {number} and at {second} of the resume: {problem}")
    return outcome


def _killed(run: Path, disk: Disk, on_saved: Acknowledgements, build: Build) -> bool:
    return in_child(partial(save_all, run, disk, build=build, on_saved=on_saved))[0] == -signal.SIGKILL


def _operations_of_resume(run: Path, rehearsal: Path) -> int:
    shutil.rmtree(rehearsal, ignore_errors=True)
    shutil.copytree(run, rehearsal)
    disk = QuickFailing(-1, "kill")
    save_all(rehearsal, disk)
    return disk.done


def power_losses(
    folder: Path,
    *,
    only: str | None = None,
    disk: Callable[[], RecordingDisk] = RecordingDisk,
    build: Build = Checkpoints,
    whole: bool = False,
    limit: int = 4096,
) -> Outcome:
    """F3: every state that a power loss can leave, within the last save or the `whole` run."""
    outcome = CheckpointOutcome("power_losses", only, {"whole": whole, "limit": limit})
    recorded, recorder = emptied(folder / "recorded"), disk()
    acknowledged: list[tuple[int, int]] = []
    save_all(recorded / "run", recorder, build=build, on_saved=partial(_note, acknowledged, recorder))
    states = power_loss_states(recorder.operations, recorded, first=0 if whole else acknowledged[-2][0], limit=limit)
    _check_states(outcome, folder / "lost", states, acknowledged, prefix="")
    return outcome


def power_losses_after_kills(folder: Path, *, only: str | None = None, every: int = 1, limit: int = 256) -> Outcome:
    """F3 after a kill: a run stops after every `every`-th operation, another resumes, and then the power is lost."""
    outcome = CheckpointOutcome("power_losses_after_kills", only, {"every": every, "limit": limit})
    stop = 1
    while True:
        recorded, disk = emptied(folder / "recorded"), StoppingDisk(stop)
        acknowledged: list[tuple[int, int]] = []
        try:
            save_all(recorded / "run", disk, on_saved=partial(_note, acknowledged, disk))
            return outcome
        except StorageError:
            recorder = RecordingDisk()
        recorder.operations = list(disk.operations)
        save_all(recorded / "run", recorder, on_saved=partial(_note, acknowledged, recorder))
        states = power_loss_states(recorder.operations, recorded, first=stop, limit=limit)
        _check_states(outcome, folder / "lost", states, acknowledged, prefix=f"{stop}-")
        stop += every


def _check_states(
    outcome: Outcome, folder: Path, states: list[DiskState], acknowledged: list[tuple[int, int]], *, prefix: str
) -> None:
    for number, state in enumerate(states):
        if outcome.wants(f"{prefix}{number}"):
            state.materialise(emptied(folder))
            outcome.landed += 1
            if problem := state_problem(folder / "run", [step for at, step in acknowledged if at <= state.after]):
                outcome.fail(f"{prefix}{number}", f"power lost after operation {state.after}: {problem}")


def _note(acknowledged: list[tuple[int, int]], disk: RecordingDisk, step: int) -> None:
    acknowledged.append((len(disk.operations), step))


def refusals(folder: Path, *, only: str | None = None, build: Build = Checkpoints) -> Outcome:
    """F4: no space and I/O error, once and permanently, at every operation, and short writes."""
    outcome = CheckpointOutcome("refusals", only)
    expected, run = oracle(folder / "oracle"), folder / "run"
    for number, operation in enumerate(operations_of(folder / "recorded")):
        ways = ["ENOSPC", "EIO", "ENOSPC-lasting", "EIO-lasting", *(["short"] if operation.kind == "write" else [])]
        for how in ways:
            if outcome.wants(f"{number}-{how}"):
                disk = QuickFailing(number, how.removesuffix("-lasting"), lasting=how.endswith("-lasting"))  # type: ignore[arg-type]
                problem = _refused(emptied(run), disk, build)
                if problem := problem or differs_at_the_end(run, expected, learning=False):
                    outcome.fail(f"{number}-{how}", f"{operation.kind} {operation.path.name}: {problem}")
                outcome.landed += disk.landed
    return outcome


def _refused(run: Path, disk: FailingDisk, build: Build) -> str:
    acknowledged: list[int] = []
    try:
        save_all(run, disk, build=build, on_saved=acknowledged.append)
        if disk.how != "short":
            return "the run continued without an error"
    except StorageError as error:
        reason = os.strerror(getattr(errno, disk.how, 0))
        if not re.match(rf"{reason}: .*{re.escape(str(run.parent))}.*{SPACE}", str(error)):
            return f"the message is {error}"
    return state_problem(run, acknowledged)


def terminations(folder: Path, *, only: str | None = None, heeded: bool = True) -> Outcome:
    """F13: SIGTERM or SIGINT while a batch is collated or a checkpoint saved: the run stops and can be resumed."""
    outcome = CheckpointOutcome("terminations", only, {"heeded": heeded})
    expected, run = oracle(folder / "oracle"), folder / "run"
    saves = len(operations_of(folder / "recorded"))
    phases = [f"batch-{step}" for step in (0, 1, 2, 4)] + [f"disk-{number}" for number in (3, saves // 3, saves // 2)]
    for number in (signal.SIGTERM, signal.SIGINT):
        for phase in phases:
            case = f"{number.name}-{phase}"
            if outcome.wants(case):
                status, message = in_child(partial(_run_with_signal, emptied(run), number, phase, heeded))
                outcome.landed += (run / "sent").exists()
                (run / "sent").unlink(missing_ok=True)
                newest = Checkpoints(run).resume().state
                if status != RESUMABLE or newest is None or newest.step >= STEPS:
                    outcome.fail(case, f"it ended with status {status} {message}, at {newest and newest.step} steps")
                elif problem := differs_at_the_end(run, expected, within=f"checkpoints/step-{STEPS:08}"):
                    outcome.fail(case, problem)  # the previous one may be that of the stop
    return outcome


def _run_with_signal(run: Path, number: signal.Signals, phase: str, heeded: bool) -> None:
    """A run that gets a signal in some phase; exits with RESUMABLE if stopped by it."""
    phase, _, moment = phase.partition("-")

    def send() -> None:
        if not (run / "sent").exists():
            (run / "sent").touch()
            os.kill(os.getpid(), number)

    def batches(step: int):  # type: ignore[no-untyped-def]
        if phase == "batch" and step == int(moment):
            send()
        return feed(micro_batch_size=4)(step)

    class Signalling(QuickFailing):
        def _strikes(self) -> bool:
            if phase == "disk" and self.done == int(moment):
                send()
            return super()._strikes()

    with StopSignal() as stopper:
        train_all(run, Signalling(-1, "EIO"), stopper=stopper if heeded else None, batches=batches)
        if stopper.requested and heeded:
            os._exit(RESUMABLE)


def kills_at_random(folder: Path, *, only: str | None = None, count: int = 20, seed: int = 0) -> Outcome:
    """F2: a complete run in a subprocess, killed at random times until it finishes."""
    outcome, chance = CheckpointOutcome("kills_at_random", only, {"count": count, "seed": seed}), random.Random(seed)
    expected, run = oracle(folder / "oracle"), emptied(folder / "run")
    undisturbed()
    for number in range(count):
        delay = chance.random() * 0.15
        if outcome.wants(str(number)):
            if number % 5 == 0:
                emptied(run)
            outcome.landed += _killed_after(run, delay)
            if problem := state_problem(run, []):
                outcome.fail(str(number), f"killed after {delay:.3f} s: {problem}")
    if problem := differs_at_the_end(run, expected):
        outcome.fail("end", problem)
    return outcome


def _killed_after(run: Path, delay: float) -> bool:
    """Kills a run; a kill that comes too late is repeated earlier on a new run."""

    def action() -> None:
        signal.signal(signal.SIGALRM, lambda *anything: os.kill(os.getpid(), signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, delay)
        train_all(run, QuickDisk())

    for _ in range(10):
        if in_child(action)[0] == -signal.SIGKILL:
            return True
        emptied(run)
        delay /= 2
    return False
