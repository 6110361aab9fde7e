"""A run folder read into one object: its recipe, its state, its curves.

It only reads, also while the run is in progress. `read_run(folder)` is the entry point; `RunReader` follows a run.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith import config
from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.reports import html
from bertsmith.reports.event_log import NOT_CURVES, Column, Curve, Event, EventReader, Restarts, held_out_curves
from bertsmith.reports.text_charts import Points, smooth, smoothing, thin
from bertsmith.system.durable import read_checksummed_json
from bertsmith.system.progress import format_duration

EVENTS, RECIPE = "events.jsonl", "recipe.json"
CHECKPOINTS, LAST = "checkpoints", "last"
RUNNING, FINISHED, STOPPED, UNFINISHED = "running", "finished", "stopped", "unfinished"
LOSS = "loss"
MAX_SKIPPED_LINES = 3  # of the log that are listed
NOTEBOOK_POINTS = 300  # of a curve
COST = "cost"  # the negated main score, logged for the training loop only
LOCKS = Path("/proc/locks")  # Linux: every lock visible to this process, with device and inode


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step: start, restart, skipped or checkpoint."""

    kind: str
    step: int
    text: str = ""


@dataclass(frozen=True)
class RunHistory:
    """The contents of a run folder, without steps that were abandoned when the run resumed."""

    folder: Path
    name: str
    recipe: dict[str, Any]  # recipe.json; empty if it does not exist yet
    state: str  # running, finished, stopped (saved a checkpoint and exited) or unfinished (killed, or not started)
    steps: int
    planned_steps: int | None  # None if the run is limited by time
    tokens: int
    seconds: float  # spent in training steps
    tokens_per_second: float  # median over the steps; nan without steps
    started: float | None  # Unix time
    updated: float | None  # Unix time of the last event
    curves: dict[str, Curve]  # training metrics by log key: loss, loss/OBJECTIVE, accuracy/OBJECTIVE, ...
    held_out: dict[str, Curve]  # held-out metrics by log key
    checkpoint: int | None  # step of the newest checkpoint
    marks: tuple[Mark, ...]
    facts: dict[str, Any]  # logged by the run: parameters, device, unigram loss, ...
    finish: dict[str, Any]  # the event that ended the run, if any
    skipped_lines: tuple[str, ...]  # one message for each damaged line of the log

    @property
    def recipe_name(self) -> str:
        """The name of the recipe, or of the task of a fine-tuning run."""
        task = self.recipe.get("task")
        if isinstance(task, Mapping):
            return "/".join(str(task[key]) for key in ("kind", "name") if task.get(key))
        return str(self.recipe.get("name", "-"))

    @property
    def main_metric(self) -> str:
        """The metric that selects the best model: the loss, or the score that the run names."""
        return str(self.facts.get("main", LOSS))

    @property
    def last(self) -> tuple[int, float] | None:
        """Step and value of the last `main_metric`."""
        curve = self.held_out.get(self.main_metric)
        return (int(curve.steps[-1]), curve.last) if curve else None

    @property
    def last_if_other(self) -> tuple[int, float] | None:
        """`last`, where its value is not the best one."""
        return self.last if self.best is None or (self.last and self.last[1] != self.best[1]) else None

    def held_out_at(self, step: int) -> dict[str, float]:
        """The metrics of the evaluation after a step; nan where it has none."""
        return {name: curve.at(step) for name, curve in self.held_out.items()}

    @property
    def best_held_out(self) -> dict[str, float]:
        """The metrics of the best evaluation: those of the model in best/; of the last one if none is the best."""
        chosen = self.best or self.last
        return self.held_out_at(chosen[0]) if chosen else {name: curve.last for name, curve in self.held_out.items()}

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and value of the best `main_metric`: lowest loss or highest score."""
        curve = self.held_out.get(self.main_metric)
        if curve is None or not np.isfinite(curve.values).any():
            return None
        costs = curve.values if self.main_metric.startswith(LOSS) else -curve.values
        index = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.nan)))
        return int(curve.steps[index]), float(curve.values[index])

    @property
    def notes(self) -> tuple[str, ...]:
        """Restarts, skipped steps and skipped lines of the log as sentences."""
        verbs = {"start": "started at", "restart": "resumed from"}
        starts = [mark for mark in self.marks if mark.kind in verbs]
        notes = [f"{verbs[mark.kind]} step {mark.step:,}" + (f": {mark.text}" if mark.text else "") for mark in starts]
        if skipped := [mark.step for mark in self.marks if mark.kind == "skipped"]:
            steps = ", ".join(f"{step:,}" for step in skipped[:5]) + (", …" if len(skipped) > 5 else "")
            count = f"{len(skipped):,} update{'s' if len(skipped) > 1 else ''}"
            notes.append(f"skipped {count} because a loss or gradient was not finite: step {steps}")
        return (*notes, *self.listed_skipped_lines)

    @property
    def listed_skipped_lines(self) -> tuple[str, ...]:
        """The first `skipped_lines`, and the number of the others."""
        more = len(self.skipped_lines) - MAX_SKIPPED_LINES
        others = (f"{more:,} more lines of {EVENTS} were skipped",) if more > 0 else ()
        return (*self.skipped_lines[:MAX_SKIPPED_LINES], *others)

    def __repr__(self) -> str:
        best = f", best {self.main_metric} {self.best[1]:.4g} at step {self.best[0]:,}" if self.best else ""
        return f"RunHistory({str(self.folder)!r}, {self.state}, {self.steps:,} steps{best})"

    def _repr_html_(self) -> str:
        """Figures, and the loss and the metric that selects the best model as charts, for notebooks."""
        planned = f" of {self.planned_steps:,}" if self.planned_steps else ""
        figures = {"steps": f"{self.steps:,}{planned}", "tokens": f"{self.tokens:,}"}
        figures["training time"] = format_duration(self.seconds)
        name = self.main_metric.rpartition("/")[2].replace("_", " ")
        if self.best:
            figures[f"best {name}, held out"] = f"{self.best[1]:.4g} at step {self.best[0]:,}"
        titles = dict.fromkeys([LOSS, self.main_metric])
        charts = (html.line_chart(self._notebook_curves(key), title=key.rpartition("/")[2]) for key in titles)
        heading = f"<h4>{escape(self.name)} · {escape(self.state)}</h4><p>{escape(self.recipe_name)}</p>"
        return html.notebook(heading + html.figures(figures) + "".join(charts))

    def _notebook_curves(self, key: str) -> dict[str, Points]:
        curves: dict[str, Points] = {}
        if curve := self.curves.get(key):
            indices = thin(curve.values, NOTEBOOK_POINTS)
            smoothed = smooth(curve.values, smoothing(len(curve)))
            curves["each step"] = curve.steps[indices], curve.values[indices]
            curves["smoothed"] = curve.steps[indices], smoothed[indices]
        if curve := self.held_out.get(key):
            curves["held out"] = curve.steps, curve.values
        return curves


class RunReader:
    """Reads a run that may still be running; every `read` parses only the new events."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise BertsmithError(f"no such folder: {self.folder}")
        if not is_run(self.folder):
            raise BertsmithError(f"{self.folder} is not a run folder: it contains neither {EVENTS} nor {RECIPE}")
        self._events = EventReader(self.folder / EVENTS)

    def read(self) -> RunHistory:
        """The current state of the run."""
        locked = is_locked(self.folder)  # before the log: a run that ends in between must not look killed
        self._events.read()
        return _history(self.folder, self._events, locked=locked)


def read_run(folder: str | Path) -> RunHistory:
    """The history of a run, whether it is running, finished or was killed."""
    return RunReader(folder).read()


def is_run(folder: Path) -> bool:
    """Whether a folder contains a run."""
    return (folder / EVENTS).is_file() or ((folder / RECIPE).is_file() and (folder / CHECKPOINTS).is_dir())


def is_finished(folder: Path, recipe: Any) -> bool:
    """Whether the folder contains a finished run with exactly these settings."""
    if not (folder / RECIPE).exists():
        return False
    run = read_run(folder)
    return run.state == FINISHED and not config.resume_differences(run.recipe, config.to_dict(recipe))


def find_runs(folder: str | Path, *, depth: int = 4) -> list[Path]:
    """Run folders at and below `folder`, sorted; folders inside a run are not searched."""
    folder = Path(folder)
    if not folder.is_dir():
        raise BertsmithError(f"no such folder: {folder}")
    if is_run(folder):
        return [folder]
    if not depth:
        return []
    try:
        below = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {folder}") from error
    return [run for path in below for run in find_runs(path, depth=depth - 1)]


def is_locked(folder: str | Path) -> bool:
    """Whether a process holds the lock of `folder` (`Disk.lock`). Does not take the lock itself.

    Where the system does not list locks, a shared lock is tried without waiting.
    """
    try:
        status = os.stat(folder)
        lines = LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except FileNotFoundError:
        return _lock_is_refused(folder)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in lines:
        fields = line.split()
        if "FLOCK" in fields and "->" not in fields:
            lock_device, _, inode = fields[-3].rpartition(":")
            # overlay file systems report device numbers for folders that /proc/locks does not use
            if inode == str(status.st_ino) and (lock_device == device or os.major(status.st_dev) == 0):
                return True
    return False


def _lock_is_refused(folder: str | Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _history(folder: Path, reader: EventReader, *, locked: bool) -> RunHistory:
    events, restarts = reader.other_events, Restarts(reader.other_events)
    if reader.skipped and not events and not reader.steps():
        found = reader.skipped[0].replace(" and was skipped", "")
        raise DataError(f"{folder / found}; nor is any other line: remove the file to continue without its curves")
    starts, steps = restarts.starts, restarts.steps(reader.steps())
    numbers = steps["step"].astype(np.int64) if steps else np.zeros(0, dtype=np.int64)
    curves = {name: Curve(numbers, values) for name, values in steps.items() if name not in NOT_CURVES}
    held_out = held_out_curves(restarts.events(events, "evaluation"))
    held_out.pop(COST, None)
    saved = [event["step"] for event in restarts.events(events, "checkpoint")]
    last_start = starts[-1]["line"] if starts else 0
    finishes = [event for event in events if event["kind"] == "finish" and event["line"] > last_start]
    finish = finishes[-1] if finishes else {}
    reached = max([int(numbers[-1]) if len(numbers) else 0, *(event["step"] for event in starts[-1:]), *saved[-1:]])
    speed = np.zeros(0)
    if "tokens" in steps and "seconds" in steps:
        speed = steps["tokens"] / np.where(steps["seconds"] > 0, steps["seconds"], np.nan)
        curves["tokens_per_second"] = Curve(numbers, speed)
    recipe, checkpoint = _recipe(folder / RECIPE), _newest_checkpoint(folder)
    planned, tokens, (started, updated) = recipe.get("steps"), finish.get("tokens"), reader.time_span()
    return RunHistory(
        folder=folder,
        name=folder.resolve().name,
        recipe=recipe,
        state=_state(folder, locked=locked, finish=finish, reached=reached, saved=saved),
        steps=reached,
        planned_steps=planned if isinstance(planned, int) and not recipe.get("minutes") else None,
        tokens=int(tokens if isinstance(tokens, int | float) and np.isfinite(tokens) else _sum(steps, "tokens")),
        seconds=_sum(steps, "seconds"),
        tokens_per_second=float(np.nanmedian(speed)) if np.isfinite(speed).any() else np.nan,
        started=started,
        updated=updated,
        curves=curves,
        held_out=held_out,
        checkpoint=checkpoint,
        marks=_marks(starts, saved, steps, numbers),
        facts=_facts(folder, checkpoint, events),
        finish=finish,
        skipped_lines=tuple(reader.skipped),
    )


def _recipe(path: Path) -> dict[str, Any]:
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    except (ValueError, RecursionError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{line} is not a recipe: {error}") from error
    if not isinstance(recipe, dict):
        raise DataError(f"{path} is not a recipe: expected a JSON object")
    return recipe


def _state(folder: Path, *, locked: bool, finish: Event, reached: int, saved: Sequence[int]) -> str:
    if locked:
        return RUNNING
    if finish or (folder / LAST).is_dir():  # `last` is written when training is complete
        return FINISHED
    return STOPPED if saved and saved[-1] >= reached else UNFINISHED


def _sum(steps: Mapping[str, Column], name: str) -> float:
    return float(np.nansum(steps[name])) if name in steps else 0.0


def _newest_checkpoint(folder: Path) -> int | None:
    try:
        names = [path.name for path in (folder / CHECKPOINTS).iterdir()]
    except OSError:
        return None
    return max((int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-\d{8,}", name)), default=None)


def _marks(
    starts: Sequence[Event], saved: Sequence[int], steps: Mapping[str, Column], numbers: NDArray[np.int64]
) -> tuple[Mark, ...]:
    marks = [Mark("checkpoint", step) for step in saved]
    for index, start in enumerate(starts):
        notes = start.get("notes") or []
        text = "; ".join(map(str, notes)) if isinstance(notes, list) else str(notes)
        if index or text:
            marks.append(Mark("restart" if index else "start", start["step"], text))
    if "skipped" in steps:
        marks += [Mark("skipped", step) for step in numbers[steps["skipped"] > 0].tolist()]
    return tuple(sorted(marks, key=lambda mark: mark.step))


def _facts(folder: Path, step: int | None, events: Sequence[Event]) -> dict[str, Any]:
    """The run's `facts` events, later ones over earlier ones, over those of the checkpoint at `step`."""
    facts: dict[str, Any] = {}
    if step is not None:
        with suppress(BertsmithError):  # it is being replaced, or damaged, which the trainer reports
            manifest = read_checksummed_json(folder / CHECKPOINTS / f"step-{step:08}" / "manifest.json", limit=1 << 24)
            facts |= manifest.get("facts") or {}
    for event in events:
        if event["kind"] == "facts":
            facts |= {name: value for name, value in event.items() if name not in NOT_CURVES}
    return facts
