"""Curves of a run for TensorBoard, Weights & Biases and MLflow: only where one is named, and never in a run's way.

A package is imported when its tracker is opened. What goes wrong with a tracker after that is said once, and the run
goes on without it: `events.jsonl` has everything.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json

IDENTITIES = "trackers.json"  # in the run folder: under which id each tracker knows the run
KINDS = ("step", "evaluation")  # events that make curves
PROJECT = "bertsmith"
MOST_PARAMETERS = 100  # that MLflow takes at once
MOST_REASON = 300  # characters of what a tracker has to say for itself
Say = Callable[[str], None]


class Tracker(Protocol):
    """One place that curves are sent to."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """A point of each curve."""

    def close(self) -> None:
        """Sends what is left."""


class Trackers:
    """`with open_trackers(["tensorboard"], run, ...) as trackers: trackers.write("step", 7, {"loss": 2.5})`."""

    def __init__(self, opened: Mapping[str, Tracker], *, say: Say) -> None:
        self._opened, self._say = dict(opened), say

    def write(self, kind: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Points at a step, on curves `kind/name`; whatever is no finite number is left out, as are other kinds."""
        if kind not in KINDS:
            return
        plain = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        points = {f"{kind}/{name}": value for name, value in plain.items() if math.isfinite(value) and name != "step"}
        if points:
            self._each(lambda tracker: tracker.write(step, points))

    def close(self) -> None:
        """Sends what is left; nothing can be written after that."""
        self._each(lambda tracker: tracker.close())
        self._opened = {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._opened.items()):
            try:
                act(tracker)
            except Exception as error:  # of another's code, of whatever kind: no reason to end a run
                del self._opened[name]
                self._say(_left_out(name, error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_trackers(names: Sequence[str]) -> None:
    """Raises where a name is no tracker's, or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"{name!r} is no tracker: {', '.join(TRACKERS)}{did_you_mean(name, TRACKERS)}")
        if name not in sys.modules and find_spec(name) is None:
            raise ConfigError(f"the tracker {name} is not installed: pip install bertsmith[track]")


def open_trackers(
    names: Sequence[str],
    folder: str | Path,
    *,
    name: str,
    recipe: Mapping[str, Any],
    step: int = 0,
    say: Say | None = None,
) -> Trackers:
    """The named trackers for the run in `folder`, which has `step` steps behind it: they go on where it does.

    For rank 0 alone. `say` takes a line for people; standard error does where it is left out.
    """
    check_trackers(names)
    say = say or _to_standard_error
    opened: dict[str, Tracker] = {}
    for kind in dict.fromkeys(names):
        try:
            with _no_keyboard():
                opened[kind] = TRACKERS[kind](Path(folder), name, recipe, step)
        except Exception as error:  # no log-in, no network: the run can do without
            say(_left_out(kind, error))
    return Trackers(opened, say=say)


class TensorBoard:
    """Event files in RUN/tensorboard; points behind the step that a run goes on from are taken back."""

    def __init__(self, folder: Path, name: str, recipe: Mapping[str, Any], step: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self.writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        if not step:
            rows = [f"| {key} | {value} |" for key, value in flat(recipe).items()]
            self.writer.add_text("recipe", "\n".join([f"| {name} | |", "|---|---|", *rows]))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker`."""
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """See `Tracker`."""
        self.writer.close()


class WandB:
    """A run of Weights & Biases below RUN/wandb; offline unless WANDB_MODE says otherwise (`wandb sync` sends it)."""

    def __init__(self, folder: Path, name: str, recipe: Mapping[str, Any], step: int) -> None:
        wandb = importlib.import_module("wandb")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=_identity(folder, "wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            dir=str(folder),
            config=dict(recipe),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # a curve of its own instead of their step, which may not go back to where a run goes on
        self.run.define_metric("*", step_metric="at_step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker`."""
        self.run.log({"at_step": step, **numbers})

    def close(self) -> None:
        """See `Tracker`."""
        self.run.finish()


class MLflow:
    """A run of MLflow, wherever MLFLOW_TRACKING_URI says; MLFLOW_EXPERIMENT_NAME is `bertsmith` where not said."""

    def __init__(self, folder: Path, name: str, recipe: Mapping[str, Any], step: int) -> None:
        self.mlflow = importlib.import_module("mlflow")
        self.mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        begun: list[Any] = []

        def begin() -> str:
            begun.append(self.mlflow.start_run(run_name=name))
            return str(begun[0].info.run_id)

        known = _identity(folder, "mlflow", begin)
        if not begun:
            self.mlflow.start_run(run_id=known)
            return
        parameters = [(key, str(value)) for key, value in flat(recipe).items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            self.mlflow.log_params(dict(parameters[first : first + MOST_PARAMETERS]))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """See `Tracker`; a server's answer is not waited for."""
        self.mlflow.log_metrics(dict(numbers), step=step, synchronous=False)

    def close(self) -> None:
        """See `Tracker`."""
        self.mlflow.end_run()


TRACKERS: dict[str, Callable[[Path, str, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted names."""
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _identity(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    """Under which id a tracker knows the run in a folder: the one that it has, or a new one, which is kept."""
    path = folder / IDENTITIES
    known = read_checksummed_json(path) if path.exists() else {}
    known.pop("seal", None)
    if tracker not in known:
        known[tracker] = new()
        Disk().write_file(path, [checksummed_json(known)])
    return str(known[tracker])


@contextmanager
def _no_keyboard() -> Iterator[None]:
    """Nobody can be asked for a log-in: a run may stand in a queue."""
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before


def _left_out(name: str, error: Exception) -> str:
    reason = textwrap.shorten(str(error), MOST_REASON, placeholder="…") or type(error).__name__
    return f"{name} is left out from here on, and the run goes on without it: {reason}"


def _to_standard_error(line: str) -> None:
    print(f"bertsmith: {line}", file=sys.stderr, flush=True)
