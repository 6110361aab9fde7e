"""The loop that drives a trainer, written out once: log, score, save, stop, go on. Knows no model and no data.

Pre-training and fine-tuning bring what differs: how a model is scored and how it is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from bertsmith import config
from bertsmith.errors import BertsmithError, ConfigError, StoppedError
from bertsmith.system.durable import Disk
from bertsmith.training.checkpoint import Checkpoint
from bertsmith.training.checkpoints import Checkpoints, Resumed
from bertsmith.training.display import ProgressDisplay
from bertsmith.training.log import NAME as EVENTS
from bertsmith.training.log import EventLog, last_of_each_step, read_events
from bertsmith.training.state import TrainingState
from bertsmith.training.step import Step
from bertsmith.training.trainer import Trainer
from bertsmith.training.world import World

T = TypeVar("T")
RECIPE = "recipe.json"
LEAN = 60.0  # seconds of learning, at least, between checkpoints of a lean run
BEHIND = 2  # steps that may still be under way on the device when an older one is logged
# What a run may go on with another value of: nothing that is learned depends on it, but for rounding and dropout.
FREE = {"micro_batch_size", "save_every", "keep_checkpoints", "eval_every", "eval_rows", "patience"}
FREE |= {f"compute.{name}" for name in ("compile", "cuda_graphs", "activation_checkpointing", "fsdp", "deterministic")}


@dataclass(frozen=True)
class Evaluation:
    """How good the model is just now."""

    numbers: dict[str, float]  # for the log
    cost: float  # the lower the better: the model of the lowest is kept as best/
    line: str  # for people


@dataclass(kw_only=True)
class Run:
    """One run under way on one rank."""

    folder: Path
    recipe: Any  # a frozen dataclass with save_every, keep_checkpoints, patience and to_json()
    eval_every: int  # steps; 0: only at the end
    trainer: Trainer
    evaluate: Callable[[], Evaluation | None]  # the same on all ranks; None where there is nothing to score on
    write_model: Callable[[str, Mapping[str, float]], None]  # by name, best or last, and with which scores
    begin: Callable[[], tuple[TrainingState, list[str]] | None] = lambda: (
        None
    )  # what a new run starts from, and what to say of it
    fingerprints: dict[str, str]  # of data and tokenizer: going on with others is refused
    about: dict[str, Any] = field(
        default_factory=dict
    )  # plain facts for the log; flops_per_token and peak_flops are shown
    waited: Callable[[int], float] = lambda step: 0.0  # seconds that a step waited for its batches
    lean: bool = False  # of a finished run only the log and best/ are wanted
    saved: float = 0.0  # seconds of learning at the last checkpoint of a lean run
    best: tuple[int, float] = (0, float("inf"))  # step and cost
    last: tuple[int, Evaluation | None] = (-1, None)


def run_training(
    run: Run,
    *,
    resume: str = "auto",
    quiet: bool = False,
    picture: bool = False,
    trackers: Sequence[str] = (),
) -> dict[str, Any]:
    """Steps until the plan is fulfilled; only the first rank writes. Returns the last scores.

    `resume`: `auto` goes on where an earlier call was stopped, `never` refuses to, a path goes on from that checkpoint.
    `trackers`: names of those that hear every event too.
    """
    with ExitStack() as stack:
        writer = Writer(run, stack, resume=resume, trackers=trackers) if run.trainer.world.is_main else None
        notes = [*(writer.notes if writer else ()), *run.trainer.load(writer.state if writer else None)]
        run.best = _agree(run.trainer.world, run.best)
        told = {"flops": run.about.get("flops_per_token", 0.0), "peak": run.about.get("peak_flops", 0.0)}
        show = ProgressDisplay(run.trainer, quiet=quiet or writer is None, picture=picture, **told)
        if writer:
            writer.write("start", step=run.trainer.steps_done, notes=notes)
            writer.write("facts", step=run.trainer.steps_done, **run.about)
        for note in notes:
            show.note(note)
        _steps(run, writer, show)
        show.close()
        if run.trainer.stopped:
            done = run.trainer.steps_done
            raise StoppedError(f"stopped after step {done:,}, which is saved: the same command goes on from there")
        return _finish(run, writer, show)


@contextmanager
def memory_advice(rows: int, what: str) -> Iterator[None]:
    """Running out of memory with so many rows in one forward becomes one line: what to change, and by how much."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        half = max((size for size in range(1, rows // 2 + 1) if rows % size == 0), default=0)
        advice = (
            f"micro_batch_size={half}"
            if half
            else "compute.activation_checkpointing=true, shorter rows or a smaller encoder"
        )
        raise BertsmithError(f"out of memory with {rows} {what} in one forward: go on with {advice}") from error


def _agree(world: World, best: tuple[int, float]) -> tuple[int, float]:
    """The first rank's best, on all ranks: they must agree on when a model is written."""
    mine = best if world.is_main else (0, 0.0)
    told = world.all_reduce({"step": world.scalar(mine[0]), "cost": world.scalar(mine[1])})
    return int(told["step"]), float(told["cost"])


def _steps(run: Run, writer: Writer | None, show: ProgressDisplay) -> None:
    waiting: deque[Step] = deque()
    if _given_up(run):  # before, and somebody has called again
        return
    for step in run.trainer:
        waiting.append(step)
        if len(waiting) > BEHIND or run.trainer.world.device.type == "cpu":
            _record(run, waiting.popleft(), writer, show)
        if run.eval_every and step.number % run.eval_every == 0:
            _evaluate(run, writer, show)
        if step.number % run.recipe.save_every == 0 and _worth_saving(run):
            _save(run, writer)
        if _given_up(run):
            show.note(f"no better since step {run.best[0]:,}: {run.recipe.patience} evaluations were enough")
            break
    while waiting:
        _record(run, waiting.popleft(), writer, show)
    if run.trainer.stopped or not run.lean:
        _save(run, writer)


def _record(run: Run, step: Step, writer: Writer | None, show: ProgressDisplay) -> None:
    waited = run.waited(step.number)
    if writer is not None:
        writer.write("step", **step.metrics(), data_seconds=waited)
    show.step(step, waited=waited)


def _evaluate(run: Run, writer: Writer | None, show: ProgressDisplay) -> None:
    """Scores; the best model so far is kept as a model folder."""
    found, done = run.evaluate(), run.trainer.steps_done
    run.last = (done, found)
    if found is None:
        return
    if found.cost < run.best[1]:
        run.best = (done, found.cost)
        run.write_model("best", found.numbers)
    if writer is not None:  # after the model: a run that goes on believes that the best of these is there
        writer.write("evaluation", step=done, **found.numbers)
    show.note(f"after step {done:,}: {found.line}")


def _given_up(run: Run) -> bool:
    """Whether as many evaluations as the recipe has patience for were no better than the best."""
    since = run.trainer.steps_done - run.best[0]
    patience = run.recipe.patience * run.eval_every
    return bool(patience) and run.best[0] > 0 and since >= patience


def _worth_saving(run: Run) -> bool:
    """The same on all ranks: seconds are the first one's."""
    return not run.lean or run.trainer.seconds - run.saved >= LEAN


def _save(run: Run, writer: Writer | None) -> None:
    state = run.trainer.state()
    run.saved = run.trainer.seconds
    if writer is not None:
        writer.save(state)


def _finish(run: Run, writer: Writer | None, show: ProgressDisplay) -> dict[str, Any]:
    if run.last[0] != run.trainer.steps_done:
        _evaluate(run, writer, show)
    found = run.last[1]
    numbers = found.numbers if found else {}
    facts = {"steps": run.trainer.steps_done, "tokens": run.trainer.tokens, "seconds": run.trainer.seconds}
    if not run.lean:
        run.write_model("last", numbers)
    if writer is not None:
        writer.write("finish", step=run.trainer.steps_done, **facts, **numbers)
        writer.log.sync()
    best = {"best_step": run.best[0]} if run.best[0] else {}
    return {"run": str(run.folder), **facts, **best, **numbers}


def with_saved_precision(recipe: T, folder: Path) -> T:
    """The recipe with the precision that the run in a folder began with, where it leaves that to the machine."""
    if recipe.precision != config.AUTO or not (folder / RECIPE).exists():  # type: ignore[attr-defined]
        return recipe
    begun = config.read_file(type(recipe), folder / RECIPE).precision  # type: ignore[attr-defined]
    return replace(recipe, precision=begun)  # type: ignore[type-var]


def recipe_changes(folder: Path, recipe: Any) -> list[str]:
    """How a recipe differs from that of the run in a folder; an error where the run would learn otherwise.

    What the recipe leaves to the machine was settled when the run began.
    """
    if not (folder / RECIPE).exists():
        return []
    before = config.to_dict(config.read_file(type(recipe), folder / RECIPE))
    changes = config.resume_differences(before, config.to_dict(recipe))
    wrong = [change for change in changes if change.split(" ")[0] not in FREE]
    if wrong:
        raise ConfigError(f"{folder} holds a run of another recipe: {'; '.join(wrong[:3])}: choose another -o")
    return changes


class Writer:
    """What the first rank writes: the recipe, events, checkpoints; and where it found the run."""

    def __init__(self, run: Run, stack: ExitStack, *, resume: str, trackers: Sequence[str]) -> None:
        self.run = run
        files = {RECIPE: run.recipe.to_json()}
        self.checkpoints = stack.enter_context(
            Checkpoints(run.folder, keep=run.recipe.keep_checkpoints, files=files, facts=run.fingerprints)
        )
        found = self._resume(resume)
        begun = run.begin() if found.state is None else None
        self.state = begun[0] if begun else found.state
        self.notes = [*self._settle_recipe(), *found.skipped, *(begun[1] if begun else ())]
        if found.checkpoint is not None and found.checkpoint.facts != run.fingerprints:
            other = next(
                name for name in run.fingerprints if found.checkpoint.facts.get(name) != run.fingerprints[name]
            )
            raise ConfigError(f"{run.folder} was trained with another {other}: choose another -o, or pass the same one")
        self.log = stack.enter_context(EventLog(run.folder / EVENTS))
        self._recall_best()
        self.trackers = stack.enter_context(self._trackers(trackers)) if trackers else None

    def write(self, kind: str, **facts: Any) -> None:
        """One event with its step, for the log and for trackers."""
        self.log.write(kind, **facts)
        if self.trackers is not None:
            self.trackers.write(kind, facts["step"], facts)

    def save(self, state: TrainingState) -> None:
        """A checkpoint, and everything logged until now with it."""
        self.checkpoints.save(state)
        self.write("checkpoint", step=state.step)
        self.log.sync()

    def _trackers(self, names: Sequence[str]) -> Any:
        from bertsmith.training.trackers import open_trackers  # only when named

        folder, done = self.run.folder, self.state.step if self.state else 0
        return open_trackers(names, folder, name=folder.name, recipe=config.to_dict(self.run.recipe), step=done)

    def _resume(self, how: str) -> Resumed:
        folder, there = self.run.folder, self.checkpoints.all()
        if how == "auto":
            return self.checkpoints.resume()
        if how == "never":
            if there:
                raise ConfigError(f"{folder} holds a run that has begun ({there[-1].name}): choose another -o")
            return Resumed()
        checkpoint = Checkpoint(Path(how))
        state = checkpoint.state()
        newer = [path.name for path in there if int(path.name.removeprefix("step-")) > state.step]
        if newer:
            raise ConfigError(f"{folder} has gone further than {how} ({newer[-1]}): choose another -o")
        return Resumed(state, checkpoint)

    def _settle_recipe(self) -> list[str]:
        """The recipe lies in the run folder, as it was last gone on with; returns what is not as it was."""
        path, changes = self.run.folder / RECIPE, recipe_changes(self.run.folder, self.run.recipe)
        if not path.exists() or changes:
            Disk().write_file(path, [self.run.recipe.to_json()])
        return changes

    def _recall_best(self) -> None:
        """The best evaluation before the step from which the run goes on."""
        done = self.state.step if self.state else 0
        for event in last_of_each_step(read_events(self.run.folder / EVENTS), "evaluation"):
            cost = float(event.get("cost", event.get("loss", "inf")))
            if event["step"] <= done and cost < self.run.best[1]:
                self.run.best = (event["step"], cost)
