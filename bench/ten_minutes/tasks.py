"""`tasks`: fine-tunes contestants on tasks with several seeds, with bertsmith or with transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.ten_minutes import results
from bertsmith.errors import ConfigError
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.untrusted_files import read_json
from bertsmith.studies.ablations import CELL, FRESH, Candidate, Cell, candidates
from bertsmith.studies.task_setup import TaskSetup, task_setups
from bertsmith.system.devices import choose_device
from bertsmith.system.durable import Disk, read_checksummed_json
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.tokenizers.tokenizer import load
from bertsmith.training.finetune import build_task, prepare
from bertsmith.training.recipe import FinetuneConfig, find_task, make_finetune_config
from bertsmith.training.sweep import SweepRun

GROUPS = {
    "english": (
        "squad/1.1",
        "glue/sst-2",
        "glue/cola",
        "glue/mrpc",
        "glue/sts-b",
        "glue/rte",
        "conll/conll2003",
        "codah",
    ),
    "korean": ("korean/nsmc", "korean/korsts"),
}
# Subfolders of a common data folder in which the files of a task family may be.
FAMILY_FOLDERS = {"glue": ("glue",), "squad": ("squad",), "conll": ("conll2003", "conll"), "codah": ("codah",)}
TASK_FOLDERS = {"korean/nsmc": ("nsmc",), "korean/korsts": ("kornlu", "KorSTS", "korsts")}
NSMC = "korean/nsmc"
TUNED = "tuned"  # folder of the runs


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """Fine-tuning settings of all contestants."""

    rates: tuple[float, ...] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE, as for `bertsmith ablate`
    use_transformers: bool = False
    jobs: int = 1  # concurrent fine-tuning runs
    device: str = "auto"
    quiet: bool = False


def chosen_tasks(names: Sequence[str]) -> list[str]:
    """Task names, with groups expanded."""
    return list(dict.fromkeys(task for name in names for task in GROUPS.get(name, (name,))))


def fine_tune(
    names: Sequence[str],
    tasks: Sequence[str],
    data: Sequence[str],
    output: Path,
    options: FinetuneOptions,
    report: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Fine-tunes every contestant on every task; scores are written at once and not computed twice."""
    models, code = candidates(with_folders(names, output)), "transformers" if options.use_transformers else "bertsmith"
    for candidate, task in product(models, tasks):
        known = results.read(results.scores_path(output, candidate.name, task))
        if known is not None and known["code"] != code:
            raise ConfigError(
                f"{candidate.name} has scores on {task} by {known['code']}: choose another name with NAME=FOLDER"
            )
    work = [
        Work(candidate, task, _setup(task, data, options, output), output, options)
        for task in tasks
        for candidate in models
    ]
    if options.jobs > 1:
        _run_in_parallel(work, options.jobs)
    scores = []
    for job in work:
        result = _run_transformers(job) if options.use_transformers else _run_bertsmith(job)
        score = result["summary"]
        spread = f" ± {100 * score['deviation']:.1f}" if score["deviation"] is not None else ""
        summary = f"{result['main']} {100 * score['mean']:.1f}{spread} (rate {result['rate']:g})"
        report(f"{result['name']} on {job.task}: {summary}")
        results.write(results.scores_path(output, result["name"], job.task), result)
        scores.append(result)
    return scores


@dataclass(frozen=True)
class Work:
    """One contestant on one task, picklable."""

    candidate: Candidate
    task: str
    setup: TaskSetup
    output: Path
    options: FinetuneOptions
    only: tuple[float, int] | None = None  # with transformers: only this learning rate and seed

    @property
    def cell(self) -> Cell:
        """With bertsmith: the cell of `bertsmith ablate`."""
        return Cell.planned(self.candidate, self.setup, self.output / TUNED)

    @property
    def parts(self) -> Sequence[Work | SweepRun]:
        """Independent runs."""
        if self.options.use_transformers:
            return [replace(self, only=run) for run in _runs(self)]
        return self.cell.runs(learning_rates=self.options.rates, seeds=self.options.seeds, device=self.options.device)


def _run_in_parallel(work: Sequence[Work], jobs: int) -> None:
    """Runs all parts in worker processes; scores are collected later. In `english` the longest tasks come first."""
    parts = [part for job in work for part in job.parts]
    for _ in ordered_map(_run_part, parts, workers=jobs, timeout=RUN_TIMEOUT):
        pass


def _run_part(part: Work | SweepRun) -> None:
    if isinstance(part, SweepRun):
        part.run()
    else:
        _run_transformers(part)


def with_folders(names: Sequence[str], output: Path) -> list[str]:
    """Contestants as NAME=FOLDER; names given that way, and their +fresh variants, are unchanged."""
    given = {name.partition("=")[0] for name in names if "=" in name}
    return [
        name
        if "=" in name or name.removesuffix(FRESH) in given
        else f"{name}={output / name.removesuffix(FRESH) / results.MODEL}"
        for name in names
    ]


def _setup(task: str, data: Sequence[str], options: FinetuneOptions, output: Path) -> TaskSetup:
    folders = [word if "=" in word else task_folder(Path(word), task) for word in data]
    (setup,) = task_setups([task], folders, options.changes)
    return _nsmc(setup, output) if task == NSMC else setup


def task_folder(folder: Path, task: str) -> str:
    """The folder of a task below a common folder."""
    for name in TASK_FOLDERS.get(task, FAMILY_FOLDERS.get(task.partition("/")[0], ())):
        if (folder / name).is_dir():
            return str(folder / name)
    return str(folder)


def _nsmc(setup: TaskSetup, output: Path) -> TaskSetup:
    """NSMC has no dev split: its test split is used as dev."""
    folder = output / "nsmc"
    if not (folder / "dev.jsonl").exists():
        task = find_task(NSMC).build(files=setup.files)
        Disk().make_folder(folder)
        for name, split in (("train", "train"), ("dev", "test")):
            rows = [{"text": example.texts[0], "label": example.gold} for example in task.examples(split)]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            Disk().write_file(folder / f"{name}.jsonl", [lines.encode()])
    return TaskSetup("classification", {"data": folder}, setup.changes)


def _run_bertsmith(work: Work) -> dict[str, Any]:
    """Fine-tunes as `bertsmith ablate` does."""
    options, cell = work.options, work.cell
    cell.run(learning_rates=options.rates, seeds=options.seeds, device=options.device, quiet=options.quiet)
    result = read_checksummed_json(cell.folder / CELL)["result"]
    runs = [{"rate": run["learning_rate"], "seed": run["seed"], "scores": run["scores"]} for run in result["runs"]]
    return _summarize(work.candidate.name, work.task, "bertsmith", result["main"], runs)


def _run_transformers(work: Work) -> dict[str, Any]:
    """Fine-tunes transformers' classes in a plain loop; finished runs are skipped."""
    folder = work.output / TUNED / work.candidate.name / f"own-{work.task.replace('/', '-')}"
    tuning, tuner, runs = _tuning(work), None, []
    for rate, seed in [work.only] if work.only else _runs(work):
        path = folder / f"rate-{rate:g}-seed-{seed}.json"
        settings = json.loads(replace(tuning, learning_rate=rate, seed=seed).to_json())
        known = results.read(path)
        if known is not None and known["settings"] != settings:
            raise ConfigError(f"{path} was computed with other settings: choose another -o, or remove it")
        if known is None:
            tuner = tuner or _tuner(work, tuning)
            known = {"rate": rate, "seed": seed, "scores": tuner.run(rate, seed), "settings": settings}
            results.write(path, known)
        runs.append({key: known[key] for key in ("rate", "seed", "scores")})
    return _summarize(work.candidate.name, work.task, "transformers", build_task(tuning).main_metric, runs)


def _tuning(work: Work) -> FinetuneConfig:
    return make_finetune_config(work.setup.task, work.candidate.folder, work.setup.files, work.setup.changes)


def _runs(work: Work) -> list[tuple[float, int]]:
    """Pairs of learning rate and seed."""
    tuning = _tuning(work)
    seeds = range(tuning.seed, tuning.seed + work.options.seeds)
    return list(product(work.options.rates or (tuning.learning_rate,), seeds))


def _tuner(work: Work, tuning: FinetuneConfig) -> Any:
    from bench.ten_minutes.transformers_finetune import Finetuner

    folder, tokenizer = work.candidate.folder, load(work.candidate.folder)
    positions = read_json(folder, "config.json")["max_position_embeddings"]
    ready = prepare(tuning, build_task(tuning), tokenizer, positions=positions)
    device = torch.device(choose_device(work.options.device))
    return Finetuner(folder, tuning, ready, tokenizer, device, fresh=work.candidate.fresh)


def _summarize(name: str, task: str, code: str, main: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All runs, and the scores of the learning rate with the best dev mean over seeds."""
    rates = list(dict.fromkeys(run["rate"] for run in runs))
    by_rate = {rate: [run["scores"][main] for run in runs if run["rate"] == rate] for rate in rates}
    best = max(rates, key=lambda rate: sum(by_rate[rate]) / len(by_rate[rate]))
    kept = [run for run in runs if run["rate"] == best]
    return {
        "name": name,
        "task": task,
        "code": code,
        "main": main,
        "rate": best,
        "seeds": [run["seed"] for run in kept],
        "summary": asdict(summarize_seeds(by_rate[best])),
        "scores": {measure: [run["scores"][measure] for run in kept] for measure in kept[0]["scores"]},
        "runs": [{key: run[key] for key in ("rate", "seed", "scores")} for run in runs],
    }
