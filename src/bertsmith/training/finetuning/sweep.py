"""Several rates and seeds of one fine-tuning: run after run or several at a time, a table of all, and the best model on
dev kept.

What is finished is not done again, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import ConfigError
from bertsmith.metrics.intervals import over_seeds
from bertsmith.reports.run_history import CHECKPOINTS, LAST, RunHistory, is_finished, read_run
from bertsmith.system.durable import Disk, partial_path
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.tasks.task import Task
from bertsmith.training.finetuning.tuning import FinetuneConfig
from bertsmith.training.finetuning.work import TaskData, build_task, finetune, open_with_head, prepare

BEST = "best"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep, in a form that travels to another process."""

    tuning: FinetuneConfig
    folder: Path
    device: str = "auto"
    lean: bool = False
    trackers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"learning rate {self.tuning.learning_rate:g}, seed {self.tuning.seed}"

    def run(self, prepared: TaskData | None = None, *, quiet: bool = True) -> None:
        """Trains, if that is not done yet."""
        if not is_finished(self.folder, self.tuning):
            torch.compiler.reset()  # graphs of the model before would only be in the way
            how: dict[str, Any] = {"device": self.device, "trackers": self.trackers, "lean": self.lean, "quiet": quiet}
            finetune(self.tuning, self.folder, prepared=prepared, **how)


def sweep_runs(
    tuning: FinetuneConfig, output: Path, *, learning_rates: Sequence[float], seeds: int, **how: Any
) -> list[SweepRun]:
    """Every rate with every seed."""
    wanted = [(rate, tuning.seed + number) for rate in learning_rates for number in range(seeds)]
    return [
        SweepRun(
            tuning=replace(tuning, learning_rate=rate, seed=seed), folder=output / f"lr-{rate:g}-seed-{seed}", **how
        )
        for rate, seed in wanted
    ]


def run_parallel(wanted: Sequence[SweepRun], *, jobs: int) -> Generator[None, None, None]:
    """So many at a time, in processes that tell nothing; yields for each of them, in order, when it is done."""
    return ordered_map(SweepRun.run, wanted, workers=jobs, patience=RUN_TIMEOUT)


def sweep(
    tuning: FinetuneConfig,
    output: str | Path,
    *,
    learning_rates: Sequence[float],
    seeds: int,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    lean: bool = False,
    trackers: Sequence[str] = (),
) -> dict[str, Any]:
    """Every rate with every seed, `jobs` of them at a time; scores by rate, and which run was kept in `best/`.

    `lean`: of finished runs stay the history and, of the best one so far, the model.
    """
    output = Path(output)
    task = build_task(tuning)
    if not (task.has_split("dev") or tuning.dev_fraction):
        raise ConfigError(
            f"{tuning.name}: rates and seeds are chosen on dev examples: pass --dev FILE, or set some of train "
            "aside: dev_fraction=0.1"
        )
    how: dict[str, Any] = {"device": device, "lean": lean, "trackers": tuple(trackers)}
    wanted = sweep_runs(tuning, output, learning_rates=learning_rates, seeds=seeds, **how)
    ready: TaskData | None = None  # once for all runs, if one of them is to be trained here
    runs: list[dict[str, Any]] = []
    with closing(run_parallel(wanted if jobs > 1 else [], jobs=jobs)) as elsewhere:
        for number, part in enumerate(wanted, start=1):
            if jobs > 1:
                next(elsewhere)
            if not quiet:
                done = ": done" if jobs > 1 else ""
                print(f"{number} of {len(wanted)}: {part}{done}", file=sys.stderr, flush=True)
            if not is_finished(part.folder, part.tuning):
                ready = ready or _prepared(tuning, task)
                part.run(ready, quiet=quiet)
            scores = best_scores(read_run(part.folder), task.main_metric)
            runs.append(
                {
                    "learning_rate": part.tuning.learning_rate,
                    "seed": part.tuning.seed,
                    "run": str(part.folder),
                    "scores": scores,
                }
            )
            if lean:
                _shed(runs, task.main_metric)
    return _told(tuning, task.main_metric, runs, output)


def parse_learning_rates(words: str) -> list[float]:
    """`2e-5,3e-5` as numbers; none of nothing."""
    try:
        return [float(word) for word in words.split(",") if word]
    except ValueError as error:
        raise ConfigError(f"--learning-rates {words}: expected comma-separated numbers, e.g. 2e-5,3e-5") from error


def best_scores(run: RunHistory, main: str) -> dict[str, float]:
    """All scores of the evaluation at which `main` was highest: those of the model in best/."""
    place = int(run.held_out[f"score/{main}"].values.argmax())
    names = [name for name in run.held_out if name.startswith("score/")]
    return {name.removeprefix("score/"): float(run.held_out[name].values[place]) for name in names}


def _prepared(tuning: FinetuneConfig, task: Task) -> TaskData:
    model, tokenizer, _ = open_with_head(tuning, task)
    return prepare(tuning, task, tokenizer, positions=model.encoder.max_positions)


def _told(tuning: FinetuneConfig, main: str, runs: list[dict[str, Any]], output: Path) -> dict[str, Any]:
    rows = []
    for rate in dict.fromkeys(run["learning_rate"] for run in runs):
        found = over_seeds([run["scores"][main] for run in runs if run["learning_rate"] == rate])
        rows.append({"learning_rate": rate, **asdict(found)})
    kept = _best(runs, main)
    copy_model(Path(kept["run"]) / BEST, output / BEST)
    return {
        "task": tuning.name,
        "main": main,
        "learning_rates": rows,
        "runs": runs,
        "kept": kept,
        "model": str(output / BEST),
    }


def _best(runs: Sequence[dict[str, Any]], main: str) -> dict[str, Any]:
    """The first one of those with the highest score."""
    return max(runs, key=lambda run: run["scores"][main])


def _shed(runs: Sequence[dict[str, Any]], main: str) -> None:
    best = _best(runs, main)
    for run in runs:
        remove_run_files(Path(run["run"]), *([] if run is best else [BEST]))


def remove_run_files(folder: Path, *models: str) -> None:
    """Removes checkpoints, the last model and these ones of a finished run; what it learned, and how, stays to read."""
    for name in (CHECKPOINTS, LAST, *models):
        if (folder / name).exists():
            Disk().remove_folder(folder / name)


def copy_model(source: Path, final: Path) -> None:
    """Copies a model folder to its place, written aside first."""
    disk, aside = Disk(), partial_path(final)
    for old in (aside, final):
        if old.exists():
            disk.remove_folder(old)
    disk.make_folder(aside)
    for path in sorted(source.iterdir()):
        disk.write_file(aside / path.name, [path.read_bytes()], atomic=False)
    disk.commit_folder(aside, final)
