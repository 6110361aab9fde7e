"""Several rates and seeds of one fine-tuning: run after run, a table of all, and the best model on dev kept.

What is finished is not done again, so a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith.durable import Disk, partial
from bertsmith.errors import ConfigError
from bertsmith.finetuning.tuning import Tuning
from bertsmith.finetuning.work import Prepared, build_task, finetune, open_with_head, prepare
from bertsmith.runs.history import CHECKPOINTS, LAST, History, is_finished, read_run
from bertsmith.scores.intervals import over_seeds

BEST = "best"


def sweep(
    tuning: Tuning,
    output: str | Path,
    *,
    rates: Sequence[float],
    seeds: int,
    device: str = "auto",
    quiet: bool = False,
    lean: bool = False,
    trackers: Sequence[str] = (),
) -> dict[str, Any]:
    """Every rate with every seed; scores by rate, and which run was kept in `best/`.

    `lean`: of finished runs stay the history and, of the best one so far, the model.
    """
    output = Path(output)
    task = build_task(tuning)
    if not (task.has("dev") or tuning.dev_share):
        raise ConfigError(
            f"{tuning.name}: rates and seeds are chosen on dev examples: pass --dev FILE, or set some of train "
            "aside: dev_share=0.1"
        )
    model, tokenizer, _ = open_with_head(tuning, task)
    ready = prepare(tuning, task, tokenizer, positions=model.encoder.positions)
    runs: list[dict[str, Any]] = []
    wanted = [(rate, tuning.seed + number) for rate in rates for number in range(seeds)]
    for number, (rate, seed) in enumerate(wanted, start=1):
        one, folder = replace(tuning, rate=rate, seed=seed), output / f"rate-{rate:g}-seed-{seed}"
        if not quiet:
            print(f"{number} of {len(wanted)}: rate {rate:g}, seed {seed}", file=sys.stderr, flush=True)
        scores = _run(one, folder, ready, device=device, quiet=quiet, trackers=trackers, lean=lean)
        runs.append({"rate": rate, "seed": seed, "run": str(folder), "scores": scores})
        if lean:
            _shed(runs, ready.task.main)
    return _told(tuning, ready, runs, output)


def numbers(words: str) -> list[float]:
    """`2e-5,3e-5` as numbers; none of nothing."""
    try:
        return [float(word) for word in words.split(",") if word]
    except ValueError as error:
        raise ConfigError(f"--rates {words}: numbers with commas between them, such as 2e-5,3e-5,5e-5") from error


def _run(tuning: Tuning, folder: Path, ready: Prepared, **how: Any) -> dict[str, float]:
    """The best dev scores of one run, which is trained if it is not finished."""
    if not is_finished(folder, tuning):
        torch.compiler.reset()  # graphs of the model before would only be in the way
        finetune(tuning, folder, prepared=ready, **how)
    return best_scores(read_run(folder), ready.task.main)


def best_scores(run: History, main: str) -> dict[str, float]:
    """All scores of the evaluation at which `main` was highest: those of the model in best/."""
    place = int(run.held_out[f"score/{main}"].values.argmax())
    names = [name for name in run.held_out if name.startswith("score/")]
    return {name.removeprefix("score/"): float(run.held_out[name].values[place]) for name in names}


def _told(tuning: Tuning, ready: Prepared, runs: list[dict[str, Any]], output: Path) -> dict[str, Any]:
    main = ready.task.main
    rows = []
    for rate in dict.fromkeys(run["rate"] for run in runs):
        found = over_seeds([run["scores"][main] for run in runs if run["rate"] == rate])
        rows.append({"rate": rate, **asdict(found)})
    kept = _best(runs, main)
    copy_model(Path(kept["run"]) / BEST, output / BEST)
    return {"task": tuning.name, "main": main, "rates": rows, "runs": runs, "kept": kept, "model": str(output / BEST)}


def _best(runs: Sequence[dict[str, Any]], main: str) -> dict[str, Any]:
    """The first one of those with the highest score."""
    return max(runs, key=lambda run: run["scores"][main])


def _shed(runs: Sequence[dict[str, Any]], main: str) -> None:
    best = _best(runs, main)
    for run in runs:
        shed(Path(run["run"]), *([] if run is best else [BEST]))


def shed(folder: Path, *models: str) -> None:
    """Removes checkpoints, the last model and these ones of a finished run; what it learned, and how, stays to read."""
    for name in (CHECKPOINTS, LAST, *models):
        if (folder / name).exists():
            Disk().remove_folder(folder / name)


def copy_model(source: Path, final: Path) -> None:
    """Copies a model folder to its place, written aside first."""
    disk, aside = Disk(), partial(final)
    for old in (aside, final):
        if old.exists():
            disk.remove_folder(old)
    disk.make_folder(aside)
    for path in sorted(source.iterdir()):
        disk.write_file(aside / path.name, [path.read_bytes()], atomic=False)
    disk.commit_folder(aside, final)
