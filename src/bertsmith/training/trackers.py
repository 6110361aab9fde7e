"""Experiment trackers: TensorBoard, Weights & Biases and MLflow, on request.

A package is imported when its tracker is opened. A tracker that fails later is reported once, and the run continues
without it: `events.jsonl` has everything.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json

IDENTITIES = "trackers.json"  # in the run folder: the run's id of each tracker
KINDS = ("step", "evaluation")  # of events that are tracked
PROJECT = "bertsmith"
MAX_PARAMETERS = 100  # of one MLflow call
MAX_REASON = 300  # characters of a tracker's error message


class Tracker(Protocol):
    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Metrics of a step."""

    def close(self) -> None:
        """Sends pending metrics."""


class Trackers(AbstractContextManager["Trackers"]):
    """`with Trackers(["tensorboard"], run, ...) as trackers: trackers.write("step", 7, {"loss": 2.5})`."""

    def __init__(
        self, names: Sequence[str], folder: str | Path, *, name: str, recipe: Mapping[str, Any], step: int = 0
    ) -> None:
        """The named trackers for the run in `folder`, resumed after `step` steps. For rank 0 only."""
        check_trackers(names)
        self._opened: dict[str, Tracker] = {}
        for kind in dict.fromkeys(names):
            try:
                with _no_keyboard():
                    self._opened[kind] = TRACKERS[kind](Path(folder), name, recipe, step)
            except Exception as error:  # no log-in or no network: the run does not need them
                _report(kind, error)

    def write(self, kind: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Metrics of a step as `kind/name`, without values that are not finite numbers and without other kinds."""
        if kind not in KINDS:
            return
        plain = {name: float(value) for name, value in numbers.items() if isinstance(value, int | float)}
        points = {f"{kind}/{name}": value for name, value in plain.items() if math.isfinite(value) and name != "step"}
        if points:
            self._each(lambda tracker: tracker.write(step, points))

    def close(self) -> None:
        """Sends pending metrics; nothing can be written after that."""
        self._each(lambda tracker: tracker.close())
        self._opened = {}

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._opened.items()):
            try:
                act(tracker)
            except Exception as error:  # third-party code may raise anything, which must not end a run
                del self._opened[name]
                _report(name, error)

    def __exit__(self, *exception: object) -> None:
        self.close()


def check_trackers(names: Sequence[str]) -> None:
    """Raises where a name is not a tracker or its package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"{name!r} is not a tracker: {', '.join(TRACKERS)}{did_you_mean(name, TRACKERS)}")
        if name not in sys.modules and find_spec(name) is None:
            raise ConfigError(f"the tracker {name} is not installed: pip install bertsmith[track]")


class TensorBoard:
    """Event files in RUN/tensorboard; metrics after the step that a run resumes from are purged."""

    def __init__(self, folder: Path, name: str, recipe: Mapping[str, Any], step: int) -> None:
        module = importlib.import_module("torch.utils.tensorboard")
        self.writer = module.SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
        if not step:
            rows = [f"| {key} | {value} |" for key, value in flat(recipe).items()]
            self.writer.add_text("recipe", "\n".join([f"| {name} | |", "|---|---|", *rows]))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A run of Weights & Biases below RUN/wandb; offline unless WANDB_MODE is set (`wandb sync` uploads it)."""

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
        # their own step cannot go back, as it must when a run resumes
        self.run.define_metric("*", step_metric="at_step")

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log({"at_step": step, **numbers})

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI; MLFLOW_EXPERIMENT_NAME defaults to `bertsmith`."""

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
        for first in range(0, len(parameters), MAX_PARAMETERS):
            self.mlflow.log_params(dict(parameters[first : first + MAX_PARAMETERS]))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(numbers), step=step, synchronous=False)

    def close(self) -> None:
        self.mlflow.end_run()


Open = Callable[[Path, str, Mapping[str, Any], int], Tracker]
TRACKERS: dict[str, Open] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def flat(recipe: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in recipe.items():
        settings |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return settings


def _identity(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    """The tracker's id of the run in a folder; a new one is stored there."""
    path = folder / IDENTITIES
    known = read_checksummed_json(path) if path.exists() else {}
    known.pop("seal", None)
    if tracker not in known:
        known[tracker] = new()
        Disk().write_file(path, [checksummed_json(known)])
    return str(known[tracker])


@contextmanager
def _no_keyboard() -> Iterator[None]:
    """Prevents prompts for a log-in: a run may wait in a queue."""
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before


def _report(name: str, error: Exception) -> None:
    reason = textwrap.shorten(str(error), MAX_REASON, placeholder="…") or type(error).__name__
    line = f"bertsmith: {name} failed, and the run continues without it: {reason}"
    print(line, file=sys.stderr, flush=True)
