"""Fault campaigns on `pretrain`: signals in every phase, failing data, non-finite losses, a second process."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

from faults.pretrain_fixtures import EVERY, QUICK, RESUMABLE, STEPS, PretrainOutcome, Scene, newest, wait_for
from faults.pretrain_kills import patches_of
from faults.pretrain_process import Ended
from faults.shard_fixtures import Outcome

from bertsmith.training.log import last_of_each_step, read_events

# Phase, and the step that must be saved after the stop: None if it is too late to stop.
PHASES: dict[str, int | None] = {"model": 0, "resume": 0, "step-1": 1, "update-5": 5, "save-1": 3, "manifest-3": 9}
PHASES |= {"evaluation": 4, f"step-{STEPS}": None}
SLACK = 10.0  # time limit of a run that hangs


def signals(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F13: SIGTERM and SIGINT in phases of a run: it stops after that step, saves it, and can be resumed to the end."""
    outcome = PretrainOutcome("signals", only, {"build": build})
    for index, (phase, step) in enumerate(PHASES.items()):
        number = (signal.SIGTERM, signal.SIGINT)[index % 2]
        if outcome.wants(phase):
            scene.fresh()
            patch = ("signal_at", {"phase": phase, "number": number, "marker": str(scene.sent)})
            ended = scene.call(patch, *patches_of(build))
            outcome.land(f"{number.name} in {phase}", scene.sent.exists())
            problem = _stop_problem(scene, ended, step)
            if problem := problem or scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(phase, f"{number.name}: {problem}")
    return outcome


def _stop_problem(scene: Scene, ended: Ended, step: int | None) -> str:
    """Problem unless there is one line, the right status and a checkpoint of exactly that step."""
    if step is None:
        return f"status {ended.status}: {ended.errors}" if ended.status or newest(scene.run) != STEPS else ""
    line = f"bertsmith: stopped after step {step:,}, which is saved: the same command resumes from there\n"
    if (ended.status, ended.errors) != (RESUMABLE, line) or newest(scene.run) != step:
        return f"status {ended.status}, newest checkpoint {newest(scene.run)}, stderr {ended.errors[-600:]!r}"
    return ""


def impatient_signals(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F13: a second signal interrupts immediately and loses no more than a kill."""
    outcome = PretrainOutcome("impatient_signals", only, {"build": build})
    for phase in ("step-5", "manifest-2", "evaluation-2"):
        if outcome.wants(phase):
            scene.fresh()
            patch = {"phase": phase, "number": signal.SIGINT, "marker": str(scene.sent), "times": 2}
            ended = scene.call(("signal_at", patch), *patches_of(build))
            outcome.land(f"two SIGINT in {phase}", scene.sent.exists())
            if problem := _message_problem(ended) or scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(phase, problem)
    return outcome


def _message_problem(ended: Ended) -> str:
    one_line = ended.errors.count("\n") == 1 and "the same command" in ended.errors
    good = ended.status == RESUMABLE and one_line
    return "" if good else f"status {ended.status}, stderr {ended.errors[-600:]!r}"


def signals_at_random(
    scene: Scene, *, only: str | None = None, count: int = 10, seed: int = 0, build: str = ""
) -> Outcome:
    """F13: SIGTERM and SIGINT at random times: either the run has finished, or the same command resumes it."""
    outcome = PretrainOutcome("signals_at_random", only, {"count": count, "seed": seed, "build": build})
    for number in range(count):
        chance = random.Random(f"{seed}/{number}")
        sent, share = chance.choice((signal.SIGTERM, signal.SIGINT)), chance.random()
        if outcome.wants(str(number)):
            problem = "it did not come in time"
            for _ in range(8):
                scene.fresh()
                call = scene.server.start(scene.words(), QUICK, *patches_of(build))
                wait_for(call.begun)  # from then on it handles signals
                call.work(0.05 + share * scene.oracle.seconds)
                call.send(sent)
                ended = call.wait()
                if ended.status != 0:
                    outcome.land(sent.name)
                    problem = _message_problem(ended) or scene.state_problem()
                    break
                share /= 1.5
            if problem := problem or scene.differs_at_the_end():
                outcome.fail(str(number), f"{sent.name} after {share:.3f} of its time: {problem}")
    return outcome


def failing_batches(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F14: the data loading thread hits a disk error or an internal error, or hangs; the run can be resumed.

    Micro-batch 9 is of step 5, after the first checkpoint.
    """
    outcome = PretrainOutcome("failing_batches", only, {"build": build})
    expected = {
        "error": (74, "bertsmith: micro-batch 9 cannot be loaded"),
        "bug": (1, "ZeroDivisionError: micro-batch 9"),
    }
    expected["hang"] = (65, "bertsmith: no batch for step 5 within 0.5 seconds")
    for mode, (status, message) in expected.items():
        if outcome.wants(mode):
            scene.fresh()
            patch = ("batches", {"number": 9, "mode": mode, "patience": 0.5})
            ended = scene.server.start(scene.words(), QUICK, patch, *patches_of(build)).wait(SLACK)
            outcome.land(mode, newest(scene.run) == EVERY)
            if ended.status != status or message not in ended.errors:
                outcome.fail(mode, f"status {ended.status}, stderr {ended.errors[-600:]!r}")
            elif status != 1 and ended.errors.count("\n") != 1:
                outcome.fail(mode, f"not one line: {ended.errors[-600:]!r}")
            elif problem := scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(mode, problem)
    return outcome


def failing_shards(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F14: a shard is truncated or changed during a run: the error names it, and the run resumes once it is restored.

    Checksums are verified per block on first access; these shards are so small that they have only one block.
    """
    outcome = PretrainOutcome("failing_shards", only, {"build": build})
    (shard,) = (path for path in scene.shards.iterdir() if path.name.startswith("train-"))
    good, kept = shard.read_bytes(), scene.folder / "kept.bin"
    for mode in ("cut", "changed"):
        if outcome.wants(mode):
            scene.fresh()
            pause = scene.folder / "pause"
            patches = [("pause_at", {"phase": "step-5", "path": str(pause)}), ("checked_each_time", {})]
            call = scene.server.start(scene.words(), QUICK, *patches, *patches_of(build))
            wait_for(pause)
            try:
                _damage(shard, good, mode)
                pause.unlink()
                ended = call.wait()
                outcome.land(mode)
                problem = _names(ended, shard)
            finally:
                kept.write_bytes(good)
                shutil.move(kept, shard)
            if problem := problem or scene.state_problem() or scene.differs_at_the_end():
                outcome.fail(mode, problem)
    return outcome


def _damage(shard: Path, good: bytes, mode: str) -> None:
    """In place, as by a failing disk."""
    with open(shard, "r+b") as file:
        if mode == "cut":
            file.truncate(len(good) // 2)
        else:
            file.seek(-len(good) // 2, 2)
            file.write(bytes(byte ^ 0x55 for byte in good[-len(good) // 2 :][:2000]))


def _names(ended: Ended, shard: Path) -> str:
    if ended.status != 65 or str(shard) not in ended.errors or ended.errors.count("\n") != 1:
        return f"status {ended.status}, stderr {ended.errors[-600:]!r}"
    return ""


def not_finite(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F15: non-finite losses: no update, logged as they are, never saved; the run ends after too many in a row."""
    outcome = PretrainOutcome("not_finite", only, {"build": build})
    for value in ("nan", "inf", "-inf"):
        if outcome.wants(value):
            run = scene.fresh()
            patch = ("not_finite", {"steps": list(range(5, STEPS + 1)), "value": value})
            ended = scene.call(patch, *patches_of(build), changes=("compute.max_skipped_steps=3",))
            steps = last_of_each_step(read_events(run / "events.jsonl"), "step")
            outcome.land(value, len(steps) >= 5)
            if problem := _learned(scene, ended, steps, value):
                outcome.fail(value, problem)
    return outcome


def _learned(scene: Scene, ended: Ended, steps: list[dict[str, object]], value: str) -> str:
    line = "bertsmith: loss or gradients were not finite in 3 consecutive steps (step 7: loss "
    *warned, last = ended.errors.splitlines()
    skipped = [f"bertsmith: warning: the update of step {step} was skipped: " for step in (5, 6, 7)]
    named = len(warned) == 3 and all(map(str.startswith, warned, skipped))
    if ended.status != 2 or not last.startswith(line) or not named:
        return f"status {ended.status}, stderr {ended.errors[-600:]!r}"
    told = [(event["loss"], event["skipped"]) for event in steps[4:]]
    if told != [(value, True)] * 3:
        return f"steps 5 to 7 were logged as {told}"
    saved = [event["step"] for event in read_events(scene.run / "events.jsonl") if event["kind"] == "checkpoint"]
    if saved not in ([3], [3, 6]):
        return f"checkpoints of steps {saved}"
    return same_weights(scene, saved[-1]) if saved == [3, 6] else ""


def same_weights(scene: Scene, step: int) -> str:
    """Checkpoints saved during non-finite losses hold the weights of the last good step, the fourth."""
    from bertsmith.training.checkpoints import WEIGHTS, Checkpoint

    found = Checkpoint(scene.run / "checkpoints" / f"step-{step:08}").files[WEIGHTS].sha256
    return "" if found == scene.oracle.states[4][0] else f"the weights of step {step} are not those of step 4"


def rivals(scene: Scene, *, only: str | None = None, build: str = "") -> Outcome:
    """F17: a second command on a run folder is rejected while the first is running, which is not affected."""
    outcome = PretrainOutcome("rivals", only, {"build": build})
    for phase in ("step-1", "save-2", "evaluation-2"):
        if outcome.wants(phase):
            run, pause = scene.fresh(), scene.folder / "pause"
            call = scene.server.start(scene.words(), QUICK, ("pause_at", {"phase": phase, "path": str(pause)}))
            wait_for(pause)
            rival = scene.call(*patches_of(build))
            pause.unlink()
            ended = call.wait()
            outcome.land(phase)
            line = f"bertsmith: another process is using {run}: wait until it ends, or choose another folder\n"
            if (rival.status, rival.errors) != (2, line):
                outcome.fail(phase, f"the second left with status {rival.status}, stderr {rival.errors[-600:]!r}")
            elif ended.status or scene.differs(run):
                outcome.fail(phase, f"the first left with {ended.status} {ended.errors}, and {scene.differs(run)}")
    return outcome
