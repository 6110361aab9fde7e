"""A sweep over learning rates and seeds of one fine-tuning; finished runs are not repeated, so that it resumes."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bertsmith.errors import ConfigError, UnknownWordsWarning
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.run_folder import refuse_other_folders
from bertsmith.reports.run_history import CHECKPOINTS, LAST, RunHistory, is_finished, read_run
from bertsmith.system.durable import Disk, partial_path
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.tasks.task import Task
from bertsmith.training.finetune import finetune, open_with_head
from bertsmith.training.finetune_data import TaskData, build_task, check_examples, prepare, train_and_dev
from bertsmith.training.recipe import FinetuneConfig
from bertsmith.training.run import remove_run

BEST = "best"


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One run of a sweep; can be pickled."""

    config: FinetuneConfig
    folder: Path
    device: str = "auto"
    lean: bool = False
    trackers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"learning rate {self.config.learning_rate:g}, seed {self.config.seed}"

    def run(self, data: TaskData | None = None, *, quiet: bool = True) -> None:
        if not is_finished(self.folder, self.config):
            torch.compiler.reset()  # graphs of the previous model are not needed any more
            how: dict[str, Any] = {"device": self.device, "trackers": self.trackers, "lean": self.lean, "quiet": quiet}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnknownWordsWarning)  # the sweep warns once
                finetune(self.config, self.folder, data=data, **how)


def sweep_runs(
    settings: FinetuneConfig, output: Path, *, learning_rates: Sequence[float], seeds: int, **how: Any
) -> list[SweepRun]:
    every = product(learning_rates, range(settings.seed, settings.seed + seeds))
    named = [(f"lr-{rate:g}-seed-{seed}", replace(settings, learning_rate=rate, seed=seed)) for rate, seed in every]
    return [SweepRun(config=config, folder=output / name, **how) for name, config in named]


def run_parallel(runs: Sequence[SweepRun], *, jobs: int) -> Generator[None, None, None]:
    """Trains `jobs` runs at a time in silent processes; yields for each of them, in order, when it is finished."""
    return ordered_map(SweepRun.run, runs, workers=jobs, timeout=RUN_TIMEOUT)


def sweep(
    settings: FinetuneConfig,
    output: str | Path,
    *,
    learning_rates: Sequence[float],
    seeds: int,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    lean: bool = False,
    trackers: Sequence[str] = (),
    overwrite: bool = False,
) -> dict[str, Any]:
    """Every learning rate with every seed, `jobs` at a time; scores by learning rate, and the run kept in `best/`.

    `lean`: finished runs keep their history, and the best one its model. `overwrite`: removes these runs first.
    """
    output, task = Path(output), build_task(settings)
    if not (task.has_split("dev") or settings.dev_fraction):
        raise ConfigError(
            f"{settings.name}: a sweep needs dev examples: pass --dev FILE, or use some of the training examples: "
            "dev_fraction=0.1"
        )
    refuse_other_folders(output, several=True)
    how: dict[str, Any] = {"device": device, "lean": lean, "trackers": tuple(trackers)}
    planned = sweep_runs(settings, output, learning_rates=learning_rates, seeds=seeds, **how)
    for run in planned if overwrite else ():
        remove_run(run.folder, run.config)
    if jobs > 1 and not any(run.folder.exists() for run in planned):  # the processes are silent
        warn_of_unknown_words(settings, task)
    data: TaskData | None = None  # shared by all runs that are trained in this process
    results: list[dict[str, Any]] = []
    with closing(run_parallel(planned if jobs > 1 else [], jobs=jobs)) as parallel:
        for number, run in enumerate(planned, start=1):
            if jobs > 1:
                next(parallel)
            if not quiet:
                done = ": done" if jobs > 1 else ""
                print(f"{number} of {len(planned)}: {run}{done}", file=sys.stderr, flush=True)
            if not is_finished(run.folder, run.config):
                if data is None:
                    model, tokenizer, _ = open_with_head(settings, task)
                    data = prepare(settings, task, tokenizer, positions=model.encoder.max_positions)
                run.run(data, quiet=quiet)
            history = read_run(run.folder)
            main = history.main_metric.removeprefix("score/")  # some tasks detect it in their files
            scores = best_scores(history, main)
            setting = {"learning_rate": run.config.learning_rate, "seed": run.config.seed}
            results.append({**setting, "run": str(run.folder), "scores": scores})
            if lean:
                _remove_all_but_best(results, main)
    return _summary(settings, main, results, output)


def warn_of_unknown_words(settings: FinetuneConfig, task: Task) -> None:
    """For runs that do not warn themselves."""
    check_examples(open_with_head(settings, task)[1], train_and_dev(settings, task)[0])


def parse_learning_rates(text: str) -> list[float]:
    """`2e-5,3e-5` as numbers; empty for an empty text."""
    try:
        rates = [float(word) for word in text.split(",") if word]
    except ValueError:
        rates = [math.nan]
    if not all(0 < rate < math.inf for rate in rates):
        raise ConfigError(f"--learning-rates {text[:40]}: expected positive numbers, such as 2e-5,3e-5,5e-5")
    return rates


def best_scores(run: RunHistory, main: str) -> dict[str, float]:
    """All scores of the evaluation with the highest `main`: those of the model in best/."""
    index = int(run.held_out[f"score/{main}"].values.argmax())
    names = [name for name in run.held_out if name.startswith("score/")]
    return {name.removeprefix("score/"): float(run.held_out[name].values[index]) for name in names}


def _summary(settings: FinetuneConfig, main: str, results: list[dict[str, Any]], output: Path) -> dict[str, Any]:
    rows = []
    for rate in dict.fromkeys(result["learning_rate"] for result in results):
        scores = summarize_seeds([result["scores"][main] for result in results if result["learning_rate"] == rate])
        rows.append({"learning_rate": rate, **asdict(scores)})
    kept = _best(results, main)
    copy_model(Path(kept["run"]) / BEST, output / BEST)
    found = {"task": settings.name, "main": main, "learning_rates": rows, "runs": results}
    rate = read_run(Path(kept["run"])).facts.get("unknown_word_rate", 0.0)
    return {**found, "unknown_word_rate": rate, "kept": kept, "model": str(output / BEST)}


def _best(results: Sequence[dict[str, Any]], main: str) -> dict[str, Any]:
    """The first of the runs with the highest score."""
    return max(results, key=lambda result: result["scores"][main])


def _remove_all_but_best(results: Sequence[dict[str, Any]], main: str) -> None:
    for result in results:
        remove_run_files(Path(result["run"]), *([] if result is _best(results, main) else [BEST]))


def remove_run_files(folder: Path, *models: str) -> None:
    """Removes checkpoints, the last model and the named models of a finished run; its history stays."""
    for name in (CHECKPOINTS, LAST, *models):
        if (folder / name).exists():
            Disk().remove_folder(folder / name)


def copy_model(source: Path, final: Path) -> None:
    """Copies a model folder: first to a temporary folder, then renamed."""
    disk, temporary = Disk(), partial_path(final)
    for old in (temporary, final):
        if old.exists():
            disk.remove_folder(old)
    disk.make_folder(temporary)
    for path in sorted(source.rglob("*")):  # a folder before what is in it
        target = temporary / path.relative_to(source)
        if path.is_dir():
            disk.make_folder(target)
        else:
            disk.write_file(target, [path.read_bytes()], atomic=False)
    disk.commit_folder(temporary, final)
