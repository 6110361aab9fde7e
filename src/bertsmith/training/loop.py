"""The training loop of every run: log, evaluate, save, stop, resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import ConfigError, StoppedError
from bertsmith.model_io.run_folder import RECIPE, refuse_other_folders
from bertsmith.reports.run_history import COST, read_run
from bertsmith.system.durable import Disk
from bertsmith.training.checkpoints import Checkpoint, Checkpoints, Resumed, TrainingState
from bertsmith.training.log import NAME as EVENTS
from bertsmith.training.log import EventLog, to_json
from bertsmith.training.progress import ProgressDisplay
from bertsmith.training.run import OVERWRITE, Run, agree_on_best, recipe_changes
from bertsmith.training.step import Step

LEAN_INTERVAL = 60.0  # seconds of training between checkpoints of a lean run, at least
LOG_DELAY = 2  # steps that may be in flight on the device when an older one is logged


def run_training(
    run: Run, *, resume: str = "auto", quiet: bool = False, chart: bool = False, trackers: Sequence[str] = ()
) -> dict[str, Any]:
    """Trains until the plan ends; only rank 0 writes. Returns the metrics of the best and the last model.

    `resume`: `auto` resumes the run in the folder, `never` refuses to, a path resumes from that checkpoint.
    `trackers`: names of the trackers that get every event too.
    """
    with ExitStack() as stack:
        writer = RunWriter(run, stack, resume=resume, trackers=trackers) if run.trainer.world.is_main else None
        skipped = writer.skipped if writer else []
        notes = [*(writer.notes if writer else ()), *run.trainer.load(writer.state if writer else None)]
        run.best = agree_on_best(run.trainer.world, run.best)
        known = {"flops": run.facts.get("flops_per_token", 0.0), "peak": run.facts.get("peak_flops", 0.0)}
        display = ProgressDisplay(run.trainer, quiet=quiet or writer is None, chart=chart, **known)
        if writer:
            writer.write("start", step=run.trainer.steps_done, notes=[*skipped, *notes])
            writer.write("facts", step=run.trainer.steps_done, **run.facts)
        for line in skipped:
            display.warn(line)
        for line in [*run.opening_lines(), *notes]:
            display.note(line)
        _train(run, writer, display)
        display.close()
        if run.trainer.stopped:
            done = run.trainer.steps_done
            raise StoppedError(f"stopped after step {done:,}, which is saved: the same command resumes from there")
        return _finish(run, writer, display)


def _train(run: Run, writer: RunWriter | None, display: ProgressDisplay) -> None:
    pending: deque[Step] = deque()
    if run.stops_early():  # it did so in an earlier call
        _note_early_stop(run, display)
        return
    for step in run.trainer:
        pending.append(step)
        if len(pending) > LOG_DELAY or run.trainer.world.device.type == "cpu":
            _log(run, pending.popleft(), writer, display)
        if run.eval_every and step.number % run.eval_every == 0:
            _evaluate(run, writer, display)
        saves = not run.lean or run.trainer.seconds - run.saved_at >= LEAN_INTERVAL  # `seconds` are those of rank 0
        if step.number % run.config.save_every == 0 and saves:
            _save(run, writer)
        if run.stops_early():
            _note_early_stop(run, display)
            break
    while pending:
        _log(run, pending.popleft(), writer, display)
    if run.trainer.stopped or not run.lean:
        _save(run, writer)


def _note_early_stop(run: Run, display: ProgressDisplay) -> None:
    display.note(f"stopped early: no improvement since step {run.best[0]:,} (patience={run.config.patience})")


def _log(run: Run, step: Step, writer: RunWriter | None, display: ProgressDisplay) -> None:
    waited = run.loader.wait_seconds(step.number)
    if writer is not None:
        writer.write("step", **step.metrics(), data_seconds=waited)
        if step.skipped:
            display.warn(f"the update of step {step.number:,} was skipped: its loss or gradient is not finite")
    display.step(step, waited=waited)


def _evaluate(run: Run, writer: RunWriter | None, display: ProgressDisplay) -> None:
    """Evaluates; the best model so far is saved as best/."""
    evaluation, done = run.evaluate(), run.trainer.steps_done
    run.last = (done, evaluation)
    if evaluation is None:
        return
    if evaluation.cost < run.best[1]:
        run.best, run.best_metrics = (done, evaluation.cost), evaluation.metrics
        run.write_model("best", evaluation.metrics)
    if writer is not None:  # after the model: a resumed run relies on the best model of the log being saved
        writer.write("evaluation", step=done, **evaluation.metrics)
    reduced = run.trainer.plateau.observe(evaluation.cost)
    lower = f" · learning rate times {run.trainer.plateau.factor:g} from here" if reduced else ""
    display.note(f"after step {done:,}: {evaluation.summary}{lower}")


def _save(run: Run, writer: RunWriter | None) -> None:
    state = run.trainer.state()
    run.saved_at = run.trainer.seconds
    if writer is not None:
        writer.save(state)


def _finish(run: Run, writer: RunWriter | None, display: ProgressDisplay) -> dict[str, Any]:
    trainer = run.trainer
    if run.last[0] != trainer.steps_done:
        _evaluate(run, writer, display)
    metrics = run.last[1].metrics if run.last[1] else {}
    totals = {"steps": trainer.steps_done, "tokens": trainer.tokens, "seconds": trainer.seconds}
    if not run.lean:
        run.write_model("last", metrics)
    if writer is not None:
        writer.write("finish", step=trainer.steps_done, **totals, **metrics)
        writer.log.sync()
    return {"run": str(run.folder), **totals, **_result(run, metrics)}


def _result(run: Run, last: Mapping[str, float]) -> dict[str, Any]:
    """Step and metrics of the best model; those of the last one where it is another."""
    best_step, last_step = run.best[0], run.trainer.steps_done
    result: dict[str, Any] = {"model": str(run.folder / ("best" if best_step else "last"))}
    if best_step:
        result |= {"best_step": best_step, **_without_cost(run.best_metrics)}
    if last and best_step != last_step and last != run.best_metrics:
        result["last"] = {"step": last_step, **_without_cost(last)}
    return result | {"notes": run.closing_notes()}


def _without_cost(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if name != COST}


class RunWriter:
    """What rank 0 writes to the run folder: settings, events, checkpoints; and the state that it resumes from."""

    def __init__(self, run: Run, stack: ExitStack, *, resume: str, trackers: Sequence[str]) -> None:
        self.run = run
        refuse_other_folders(run.folder)
        files, keep = {RECIPE: run.config.to_json()}, run.config.keep_checkpoints
        checkpoints = Checkpoints(run.folder, keep=keep, files=files, facts=run.fingerprints)
        self.checkpoints = stack.enter_context(checkpoints)
        resumed = self._resume(resume)
        history = read_run(run.folder) if (run.folder / EVENTS).exists() else None
        changes = recipe_changes(run.folder, run.config)
        if resumed.state is None and history and history.finish:
            raise ConfigError(
                f"{run.folder} holds a finished run whose checkpoints were removed, so that it cannot continue: choose "
                f"another -o, or {OVERWRITE}"
            )
        initial = run.initial_state() if resumed.state is None else None
        self.state = initial[0] if initial else resumed.state
        if changes or not (run.folder / RECIPE).exists():
            Disk().write_file(run.folder / RECIPE, [run.config.to_json()])
        self.notes = [*changes, *(initial[1] if initial else ())]
        self.skipped = [*resumed.skipped, *(history.listed_skipped_lines if history else ())]
        if resumed.checkpoint is not None and resumed.checkpoint.facts != run.fingerprints:
            before = resumed.checkpoint.facts
            other = next(name for name, value in run.fingerprints.items() if before.get(name) != value)
            raise ConfigError(f"{run.folder} was trained with another {other}: choose another -o, or pass the same one")
        self.log = stack.enter_context(EventLog(run.folder / EVENTS))
        if removed := self.log.removed_bytes:
            self.skipped.append(f"the last {removed:,} bytes of {EVENTS} are not a complete line and were removed")
        self._restore_best(resumed)
        self.trackers = stack.enter_context(self._open_trackers(trackers)) if trackers else None

    def write(self, kind: str, **facts: Any) -> None:
        """One event with its step, to the log and to trackers."""
        self.log.write(kind, **facts)
        if self.trackers is not None:
            self.trackers.write(kind, facts["step"], facts)

    def save(self, state: TrainingState) -> None:
        step, cost = self.run.best
        best = {"step": step, "cost": cost, "metrics": self.run.best_metrics} if step else None
        self.checkpoints.save(replace(state, progress=state.progress | {"best": to_json(best)}))
        self.write("checkpoint", step=state.step)
        self.log.sync()

    def _open_trackers(self, names: Sequence[str]) -> Any:
        from bertsmith.training.trackers import Trackers  # only when named

        folder, done = self.run.folder, self.state.step if self.state else 0
        return Trackers(names, folder, name=folder.name, recipe=config.to_dict(self.run.config), step=done)

    def _resume(self, how: str) -> Resumed:
        folder, existing = self.run.folder, self.checkpoints.all()
        if how == "auto":
            return self.checkpoints.resume()
        if how == "never":
            if existing:
                raise ConfigError(
                    f"{folder} already holds a run ({existing[-1].name}): choose another -o, or pass --overwrite"
                )
            return Resumed()
        checkpoint = Checkpoint(Path(how))
        state = checkpoint.state()
        newer = [path.name for path in existing if int(path.name.removeprefix("step-")) > state.step]
        if newer:
            raise ConfigError(f"{folder} has a newer checkpoint than {how} ({newer[-1]}): choose another -o")
        return Resumed(state, checkpoint)

    def _restore_best(self, resumed: Resumed) -> None:
        """The best evaluation when the checkpoint was saved; best/ of another run folder is not here."""
        folder = resumed.checkpoint.folder.resolve().parent if resumed.checkpoint else None
        own = folder == self.checkpoints.folder.resolve()
        best = resumed.state.progress.get("best") if own and resumed.state else None
        if best:
            self.run.best, self.run.best_metrics = (best["step"], float(best["cost"])), best["metrics"]
