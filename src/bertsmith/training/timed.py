"""Pre-training for a number of minutes: only training steps count, and evaluations follow the clock.

Not counted: compilation (up to the end of the first step of each call), evaluation, saving. A stopped run is resumed by
the next call, minutes included.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.reports.run_history import CHECKPOINTS, LAST
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk
from bertsmith.training.clock import Stopwatch, TrainingLock
from bertsmith.training.distributed import join_process_group
from bertsmith.training.loop import run_training
from bertsmith.training.pretrain import PretrainRun, make_trainer, resolve_auto
from bertsmith.training.pretrain_data import PretrainData, PretrainLoader
from bertsmith.training.recipe import Recipe
from bertsmith.training.run import Evaluation, memory_advice
from bertsmith.training.signals import StopSignal
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer

CALLS = "calls.json"
NEVER = 10**9  # steps
# of the recipe: evaluation follows the clock, and a run is saved when it stops or ends
BY_THE_CLOCK = ("eval_every=1", f"save_every={NEVER}")

R = TypeVar("R", bound="TimedRun")


class TimedTrainer(Trainer):
    """A trainer that records its compile time and its elapsed training time."""

    compile_seconds: float | None = None  # of the first step of this call
    lock = TrainingLock()

    def __next__(self) -> Step:
        if self._warm:
            return super().__next__()
        if not self.builds_kernels:
            self._acquire_lock()
            return super().__next__()
        began = self._clock()
        step = super().__next__()
        # up to the start of the training clock, so that no second counts twice
        self.compile_seconds = self._began - began
        self._acquire_lock()
        return step

    def _acquire_lock(self) -> None:
        assert isinstance(self._clock, Stopwatch)
        with self._clock.paused():
            self.lock.acquire(lambda: self.stop_signal.requested)

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, earlier calls included."""
        return self._elapsed()


@dataclass(kw_only=True)
class TimedRun(PretrainRun):
    """A run evaluated at fixed intervals of training time; only its last model is saved."""

    watch: Stopwatch
    every: float = 30.0
    due: float = 0.0  # training seconds of the next evaluation

    @abstractmethod
    def measure(self, seconds: float) -> Evaluation:
        """One point of the curve; the clock is paused."""

    def evaluate(self) -> Evaluation | None:
        """Called after every step; None before the next evaluation is due."""
        assert isinstance(self.trainer, TimedTrainer)
        if not self.due:  # the first step of this call
            with self.watch.paused():
                self._note_call(self.trainer.compile_seconds)
            self.due = self.trainer.seconds // self.every * self.every + self.every
        if self.trainer.elapsed < self.due:
            return None
        self.watch.wait()
        seconds = self.trainer.elapsed
        self.due = seconds // self.every * self.every + self.every
        with self.watch.paused():
            return self.measure(seconds)

    def _note_call(self, seconds: float | None) -> None:
        """Records this call; calls killed before they saved are dropped with their steps."""
        first = self.trainer.steps_done
        kept = [call for call in calls(self.folder) if call["step"] < first]
        noted = json.dumps({"calls": [*kept, {"step": first, "compile_seconds": seconds}]})
        Disk().write_file(self.folder / CALLS, [noted.encode()])

    def write_model(self, name: str, metrics: Mapping[str, float]) -> None:
        """Writes only the last model: writing others would cost time."""
        if name == LAST:
            super().write_model(name, {})


def timed_run(
    kind: type[R], stack: ExitStack, recipe: Recipe, data: PretrainData, folder: Path, *, device: str, **fields: Any
) -> R:
    """A run of that kind, whose workers and signal handlers end with the `stack`; `fields`: those that it adds."""
    world = stack.enter_context(join_process_group(choose_device(device)))
    stopper = stack.enter_context(StopSignal())
    recipe, measured = resolve_auto(recipe, folder, world)
    loader = PretrainLoader(recipe, data.packing(recipe), world, source=data.folder)
    stack.callback(loader.close)
    watch = Stopwatch(world.device)
    trainer = make_trainer(recipe, data, loader, world, stopper, make=partial(TimedTrainer, clock=watch))
    return kind(
        config=recipe,
        folder=folder,
        tokenizer=data.tokenizer,
        trainer=trainer,
        loader=loader,
        eval_every=recipe.eval_every,
        data=data,
        held_out=data.held_out(recipe, world),
        measured=measured,
        watch=watch,
        **fields,
    )


def train_timed(run: TimedRun, *, quiet: bool) -> None:
    """Trains until the minutes are over."""
    recipe = run.config
    with memory_advice(recipe.micro_batch_size or recipe.batch_size, "rows"):
        run_training(run, quiet=quiet)


def remove_checkpoints(folder: Path) -> None:
    """Removes those of a finished run."""
    if (folder / CHECKPOINTS).exists():
        Disk().remove_folder(folder / CHECKPOINTS)


def calls(folder: Path) -> list[dict[str, Any]]:
    """The first step of each call so far and its compile time; None without compilation."""
    path = folder / CALLS
    result: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["calls"] if path.is_file() else []
    return result


def compile_times(folder: Path) -> list[float]:
    """The compile times of all calls that compiled."""
    return [call["compile_seconds"] for call in calls(folder) if call["compile_seconds"] is not None]
