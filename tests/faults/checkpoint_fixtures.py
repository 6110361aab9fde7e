"""A small run that saves three checkpoints, its expected state, and the invariants after a fault."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from faults.broken_disks import QuickDisk
from faults.shard_fixtures import Outcome, emptied, snapshot
from training.training_fixtures import feed, same, trainer

from bertsmith.errors import BertsmithError
from bertsmith.system.durable import Disk
from bertsmith.training.checkpoints import Checkpoint, Checkpoints, TrainingState
from bertsmith.training.plan import TrainingPlan
from bertsmith.training.signals import StopSignal
from bertsmith.training.trainer import MicroBatches, Trainer

STEPS, EVERY = 6, 2  # three saves: the third removes the first
FILES = {"recipe.json": b'{"encoder": {"kind": "bert"}}', "vocab.txt": b"[PAD]\n[UNK]\nthe\n"}
FACTS = {"tokenizer": "3f9a", "data": "81c2"}
Build = Callable[..., Checkpoints]


class CheckpointOutcome(Outcome):
    def fail(self, case: str, problem: str) -> None:
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        replay = f"PYTHONPATH=src:tests python tests/faults/replay_checkpoints.py {self.name} {case}{options}"
        self.failures.append(f"{self.name} {case}: {problem}\n  replay: {replay}")


def small_trainer(stopper: StopSignal | None = None, batches: MicroBatches | None = None) -> Trainer:
    """With dropout and a stopped clock, so that equal runs write equal bytes."""
    plan = TrainingPlan(steps=STEPS, learning_rate=0.05, warmup=2 / STEPS)
    return trainer(
        plan=plan, dropout=0.3, clock=lambda: 0.0, stop_signal=stopper, feed=batches or feed(micro_batch_size=4)
    )


@cache
def undisturbed() -> tuple[tuple[str, ...], dict[int, TrainingState]]:
    """Losses of an undisturbed run as hex floats, and copies of its saved states."""
    small, losses, states = small_trainer(), [], {}
    for step in small:
        losses.append(step.loss.hex())
        if step.number % EVERY == 0:
            kept = small.state()
            weights = {name: value.clone() for name, value in kept.weights.items()}
            moments = {name: value.clone() for name, value in kept.optimizer.items()}
            states[step.number] = TrainingState(weights, moments, kept.progress, kept.environment)
    return tuple(losses), states


def save_all(
    run: Path, disk: Disk, *, build: Build = Checkpoints, on_saved: Callable[[int], None] = lambda step: None
) -> None:
    """Saves the missing ones of the three states; `on_saved` is called with acknowledged steps."""
    with build(run, files=FILES, facts=FACTS, disk=disk) as checkpoints:
        resumed = checkpoints.resume()
        saved_step = resumed.state.step if resumed.state is not None else 0
        on_saved(saved_step)
        for step, state in undisturbed()[1].items():
            if step >= saved_step:  # also an existing one: what a killed process left to be removed is removed now
                checkpoints.save(state)
                on_saved(step)


def train_all(
    run: Path, disk: Disk, *, stopper: StopSignal | None = None, batches: MicroBatches | None = None
) -> list[str]:
    """Trains from the current state to the end or to a stop; returns losses as hex floats."""
    losses = []
    with Checkpoints(run, files=FILES, facts=FACTS, disk=disk) as checkpoints:
        small = small_trainer(stopper, batches)
        small.load(checkpoints.resume().state)
        for step in small:
            losses.append(step.loss.hex())
            if step.number % EVERY == 0:
                checkpoints.save(small.state())
        checkpoints.save(small.state())
    return losses


def oracle(run: Path) -> dict[str, bytes | None]:
    """Files of an undisturbed run, created in `run` if missing."""
    if not run.exists():
        save_all(emptied(run), QuickDisk())
    return snapshot(run)


def state_problem(run: Path, acknowledged: list[int]) -> str:
    """Problem with the checkpoints after a fault: nothing acknowledged is lost, no wrong byte is accepted.

    Read-only: the folder stays as the fault has left it.
    """
    checkpoints = Checkpoints(run)
    try:
        resumed = checkpoints.resume()
    except BertsmithError as error:
        return f"no checkpoint can be resumed from: {error}"
    if resumed.skipped:
        return f"a checkpoint has its final name but is incomplete: {resumed.skipped[0]}"
    newest_step = resumed.state.step if resumed.state is not None else 0
    if newest_step < max(acknowledged, default=0):
        return f"step {max(acknowledged)} was acknowledged, the newest is {newest_step}"
    if resumed.state is not None:
        expected = undisturbed()[1].get(newest_step)
        if expected is None or not equal(resumed.state, expected):
            return f"the state of step {newest_step} is not the one that was saved"
    good = sum(1 for path in checkpoints.all() if _verifies(path))
    if good < min(2, len({step for step in acknowledged if step})):
        return f"{good} verified checkpoints are left after {acknowledged} were acknowledged"
    return ""


def equal(actual_state: TrainingState, expected_state: TrainingState) -> bool:
    numbers = actual_state.progress == expected_state.progress
    return (
        numbers
        and same(actual_state.weights, expected_state.weights)
        and same(actual_state.optimizer, expected_state.optimizer)
    )


def _verifies(path: Path) -> bool:
    try:
        Checkpoint(path).verify()
    except BertsmithError:
        return False
    return True


def differs_at_the_end(run: Path, expected: dict[str, bytes | None], *, learning: bool = True, within: str = "") -> str:
    """Resumes to the end: same losses, same bytes as an undisturbed run, no leftover files.

    Without `learning`, the remaining states are taken from the undisturbed run. Only names that begin with `within` are
    compared.
    """
    torch.manual_seed(0)
    try:
        losses = train_all(run, QuickDisk()) if learning else []
        if not learning:
            save_all(run, QuickDisk())
    except BertsmithError as error:
        return f"the resumed run ended with {error!r}"
    if losses != list(undisturbed()[0])[STEPS - len(losses) :]:
        return "the losses after the resume differ"
    files = snapshot(run)
    every = [name for name in sorted(files.keys() | expected.keys()) if name.startswith(within)]
    names = [name for name in every if files.get(name, 0) != expected.get(name, 0)]
    return f"the resumed run differs in {', '.join(names)}" if names else ""


class Acknowledgements:
    """Steps that a process, which may be killed at any moment, has acknowledged as saved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(b"")

    def __call__(self, step: int) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{step}\n".encode())
        os.close(descriptor)

    def steps(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()]
