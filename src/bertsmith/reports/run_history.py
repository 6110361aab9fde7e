"""A run folder as one object: what was trained, how far it came, how the losses fell.

Reads only, at any moment of a run's life; knows no objective by name. `read_run(folder)` is the way in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith import config
from bertsmith.errors import BertsmithError, DataError, StorageError
from bertsmith.reports.event_log import Column, EventReader
from bertsmith.reports.presence import is_held
from bertsmith.reports.standing import NO_CURVE, Curve, Restarts, held_out_curves, speeds, times, wall
from bertsmith.system.durable import read_sealed

EVENTS, RECIPE = "events.jsonl", "recipe.json"
CHECKPOINTS, LAST = "checkpoints", "last"
RUNNING, FINISHED, STOPPED, UNFINISHED = "running", "finished", "stopped", "unfinished"
TOTAL = "loss"
COST = "cost"  # a score with its sign turned, for the loop alone


@dataclass(frozen=True)
class Mark:
    """Something that happened at a step: restart, skipped or checkpoint."""

    kind: str
    step: int
    text: str = ""


@dataclass(frozen=True)
class History:
    """What a run folder tells. Abandoned steps, which a resumed run took again, are not in it."""

    folder: Path
    name: str
    recipe: dict[str, Any]  # as in recipe.json; empty where there is none yet
    state: str  # running, finished, stopped (in order, saved) or unfinished (killed, or not begun)
    steps: int
    planned: int | None  # steps; None where the clock drives the run
    tokens: int
    seconds: float  # spent on steps
    wall: float  # from the first event to the last one, without the time between restarts
    speed: float  # tokens a second, the median over steps; nan where there is none
    began: float | None  # seconds since 1970
    ended: float | None  # the last event so far
    curves: dict[str, Curve]  # by name as logged: loss, loss/PART, accuracy/PART, rate, gradient_norm, ...
    held_out: dict[str, Curve]  # the same names, on rows that were not trained on
    best: tuple[int, float] | None  # step and value of `main`: the lowest loss, or the highest score
    checkpoint: int | None  # step of the newest one
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]  # restarts and skipped steps in words
    facts: dict[str, Any] = field(default_factory=dict)  # what the run says of itself: parameters, device, unigram, ...
    finish: dict[str, Any] = field(default_factory=dict)  # the event that ended it, where there is one

    @property
    def recipe_name(self) -> str:
        """The recipe's own name, or that of the task that is learned."""
        task = self.recipe.get("task")
        if isinstance(task, Mapping):
            return "/".join(str(task[key]) for key in ("kind", "name") if task.get(key))
        return str(self.recipe.get("name", "-"))

    @property
    def main(self) -> str:
        """What decides which model is the best one: the loss, or the score that the run names."""
        return str(self.facts.get("main", TOTAL))

    @property
    def result(self) -> float:
        """The last value of `main` on held-out rows, else nan."""
        return self.held_out[self.main].last if self.main in self.held_out else float("nan")


def is_finished(folder: Path, recipe: Any) -> bool:
    """Whether the folder holds a run of exactly these settings, to its end; anything else is for its verb to judge."""
    if not (folder / RECIPE).exists():
        return False
    run = read_run(folder)
    return run.state == FINISHED and not config.changes(run.recipe, config.to_dict(recipe))


class RunReader:
    """A run that may still be under way: every `read` costs only what is new in its log."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise BertsmithError(f"no such folder: {self.folder}")
        if not is_run(self.folder):
            raise BertsmithError(f"{self.folder} holds no run: neither {EVENTS} nor {RECIPE} is there")
        self._events = EventReader(self.folder / EVENTS)

    def read(self) -> History:
        """The run as it is now."""
        held = is_held(self.folder)  # before the log, or a run that ends just now would seem to be killed
        self._events.read()
        return _history(self.folder, self._events, held=held)


def read_run(folder: str | Path) -> History:
    """What a run folder tells, whether the run is under way, over, or was killed."""
    return RunReader(folder).read()


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / EVENTS).is_file() or ((folder / RECIPE).is_file() and (folder / CHECKPOINTS).is_dir())


def find_runs(folder: str | Path, *, depth: int = 4) -> list[Path]:
    """Run folders at and below `folder`, by name; what lies inside a run is not searched."""
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


def _history(folder: Path, reader: EventReader, *, held: bool) -> History:
    others, restarts = reader.others, Restarts(reader.others)
    starts, steps = restarts.starts, restarts.steps(reader.steps())
    numbers = steps["step"].astype(np.int64) if steps else np.zeros(0, dtype=np.int64)
    curves = {name: Curve(numbers, values) for name, values in steps.items() if name not in NO_CURVE}
    held_out = held_out_curves(restarts.others(others, "evaluation"))
    held_out.pop(COST, None)
    saved = [event["step"] for event in restarts.others(others, "checkpoint")]
    finish = _finish(others, starts)
    recipe = _recipe(folder / RECIPE)
    reached = max([int(numbers[-1]) if len(numbers) else 0, *(event["step"] for event in starts[-1:]), *saved[-1:]])
    seconds, tokens = _sum(steps, "seconds"), int(_sum(steps, "tokens"))
    fast = speeds(steps)
    if fast is not None:
        curves["tokens_per_second"] = Curve(numbers, fast)
    moments = times(reader)
    marks, facts = _marks(starts, saved, steps, numbers), _facts(folder, others)
    return History(
        folder=folder,
        name=folder.resolve().name,
        recipe=recipe,
        state=_state(folder, held=held, finish=finish, reached=reached, saved=saved),
        steps=reached,
        planned=_planned(recipe),
        tokens=_whole(finish.get("tokens"), tokens),
        seconds=seconds,
        wall=wall(moments, starts),
        speed=float(np.nanmedian(fast)) if fast is not None and np.isfinite(fast).any() else float("nan"),
        began=moments[0][0] if moments else None,
        ended=max(moment for moment, _ in moments) if moments else None,
        curves=curves,
        held_out=held_out,
        best=_best(held_out, str(facts.get("main", TOTAL))),
        checkpoint=_newest_checkpoint(folder),
        marks=marks,
        notes=_notes(marks),
        facts=facts,
        finish=finish,
    )


def _finish(others: Sequence[dict[str, Any]], starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    since = starts[-1]["line"] if starts else 0
    return next((event for event in reversed(others) if event["kind"] == "finish" and event["line"] > since), {})


def _recipe(path: Path) -> dict[str, Any]:
    try:
        recipe = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{error.strerror}: reading {path}") from error
    except (ValueError, RecursionError) as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"{path}{where} is no recipe: {error}") from error
    if not isinstance(recipe, dict):
        raise DataError(f"{path} is no recipe: it holds no settings by name")
    return recipe


def _planned(recipe: Mapping[str, Any]) -> int | None:
    if recipe.get("minutes") or not isinstance(recipe.get("steps"), int):
        return None
    return int(recipe["steps"])


def _state(folder: Path, *, held: bool, finish: Mapping[str, Any], reached: int, saved: Sequence[int]) -> str:
    if held:
        return RUNNING
    if finish or (folder / LAST).is_dir():  # the last model is written once the plan is fulfilled
        return FINISHED
    return STOPPED if saved and saved[-1] >= reached else UNFINISHED


def _sum(steps: Mapping[str, Column], name: str) -> float:
    return float(np.nansum(steps[name])) if name in steps else 0.0


def _whole(value: Any, otherwise: int) -> int:
    return int(value) if isinstance(value, int | float) and np.isfinite(value) else otherwise


def _best(held_out: Mapping[str, Curve], main: str) -> tuple[int, float] | None:
    curve = held_out.get(main)
    if curve is None or not np.isfinite(curve.values).any():
        return None
    costs = curve.values if main.startswith(TOTAL) else -curve.values
    place = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.nan)))
    return int(curve.steps[place]), float(curve.values[place])


def _newest_checkpoint(folder: Path) -> int | None:
    try:
        names = [path.name for path in (folder / CHECKPOINTS).iterdir()]
    except OSError:
        return None
    return max((int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-\d{8,}", name)), default=None)


def _marks(
    starts: Sequence[Mapping[str, Any]], saved: Sequence[int], steps: Mapping[str, Column], numbers: NDArray[np.int64]
) -> tuple[Mark, ...]:
    found = [Mark("checkpoint", step) for step in saved]
    for place, start in enumerate(starts):
        notes = start.get("notes") or []
        said = "; ".join(map(str, notes)) if isinstance(notes, list) else str(notes)
        if place or said:
            found.append(Mark("restart" if place else "start", start["step"], said))
    if "skipped" in steps:
        found += [Mark("skipped", step) for step in numbers[steps["skipped"] > 0].tolist()]
    return tuple(sorted(found, key=lambda mark: mark.step))


def _notes(marks: Sequence[Mark]) -> tuple[str, ...]:
    notes = []
    for mark in marks:
        if mark.kind in ("start", "restart"):
            verb = "gone on from" if mark.kind == "restart" else "begun at"
            notes.append(f"{verb} step {mark.step:,}" + (f": {mark.text}" if mark.text else ""))
    skipped = [mark.step for mark in marks if mark.kind == "skipped"]
    if skipped:
        shown = ", ".join(f"{step:,}" for step in skipped[:5]) + (", …" if len(skipped) > 5 else "")
        count = f"{len(skipped):,} step{'s' if len(skipped) > 1 else ''}"
        notes.append(f"{count} without an update, because a loss or a gradient was not finite: {shown}")
    return tuple(notes)


def _facts(folder: Path, others: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `facts` events say, later ones over earlier ones, and the data that the newest checkpoint names."""
    found: dict[str, Any] = {}
    step = _newest_checkpoint(folder)
    if step is not None:
        try:
            manifest = read_sealed(folder / CHECKPOINTS / f"step-{step:08}" / "manifest.json", limit=1 << 24)
            found |= manifest.get("facts") or {}
        except BertsmithError:
            pass  # being replaced just now, or damaged, which is for the trainer to say
    for event in others:
        if event["kind"] == "facts":
            found |= {name: value for name, value in event.items() if name not in NO_CURVE}
    return found
