"""`tasks`: contestants fine-tuned on tasks, several seeds each, by our code or by transformers' own."""

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
from bertsmith.studies.ablations import CELL, FRESH, Candidate, Cell, Trial, candidates, trials
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
# Folders in which the files of a family may lie below one that holds all.
PLACES = {"glue": ("glue",), "squad": ("squad",), "conll": ("conll2003", "conll"), "codah": ("codah",)}
MEMBER_PLACES = {"korean/nsmc": ("nsmc",), "korean/korsts": ("kornlu", "KorSTS", "korsts")}
NSMC = "korean/nsmc"
TUNED = "tuned"  # folder of the runs


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How everybody is fine-tuned."""

    rates: tuple[float, ...] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE, as for `bertsmith ablate`
    own_code: bool = False
    jobs: int = 1  # fine-tunings at a time
    device: str = "auto"
    quiet: bool = False


def chosen_tasks(words: Sequence[str]) -> list[str]:
    """Tasks by name, groups by theirs."""
    return list(dict.fromkeys(task for word in words for task in GROUPS.get(word, (word,))))


def fine_tune(
    names: Sequence[str],
    tasks: Sequence[str],
    data: Sequence[str],
    output: Path,
    manner: Manner,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Every contestant on every task; scores are written as soon as they are known, and not computed twice."""
    those, code = candidates(with_folders(names, output)), "transformers" if manner.own_code else "bertsmith"
    for one, task in product(those, tasks):
        known = results.read(results.scores_path(output, one.name, task))
        if known is not None and known["code"] != code:
            raise ConfigError(
                f"{one.name} has scores on {task} by the code of {known['code']}: say another name, NAME=FOLDER"
            )
    work = [Work(one, task, _trial(task, data, manner, output), output, manner) for task in tasks for one in those]
    if manner.jobs > 1:
        _beside_each_other(work, manner.jobs)
    found = []
    for unit in work:
        told = _own(unit) if manner.own_code else _ours(unit)
        score = told["summary"]
        spread = f" ± {100 * score['deviation']:.1f}" if score["deviation"] is not None else ""
        say(f"{told['name']} on {unit.task}: {told['main']} {100 * score['mean']:.1f}{spread} (rate {told['rate']:g})")
        results.write(results.scores_path(output, told["name"], unit.task), told)
        found.append(told)
    return found


@dataclass(frozen=True)
class Work:
    """One contestant on one task, in a form that travels to another process."""

    one: Candidate
    task: str
    trial: Trial
    output: Path
    manner: Manner
    only: tuple[float, int] | None = None  # of transformers' code: this rate and seed alone

    @property
    def cell(self) -> Cell:
        """Of our code: as in `bertsmith ablate`."""
        return Cell.planned(self.one, self.trial, self.output / TUNED)

    @property
    def parts(self) -> Sequence[Work | SweepRun]:
        """What can be done at the same time."""
        if self.manner.own_code:
            return [replace(self, only=run) for run in _runs(self)]
        return self.cell.runs(learning_rates=self.manner.rates, seeds=self.manner.seeds, device=self.manner.device)


def _beside_each_other(work: Sequence[Work], jobs: int) -> None:
    """Leaves the runs behind, for those who collect scores. The longest tasks come first in `english`."""
    parts = [part for unit in work for part in unit.parts]
    for _ in ordered_map(_worked, parts, workers=jobs, timeout=RUN_TIMEOUT):
        pass


def _worked(part: Work | SweepRun) -> None:
    if isinstance(part, SweepRun):
        part.run()
    else:
        _own(part)


def with_folders(names: Sequence[str], output: Path) -> list[str]:
    """Contestants by name as NAME=FOLDER; those that are given so, and their fresh ones, stay as they are."""
    given = {name.partition("=")[0] for name in names if "=" in name}
    return [
        name
        if "=" in name or name.removesuffix(FRESH) in given
        else f"{name}={output / name.removesuffix(FRESH) / results.MODEL}"
        for name in names
    ]


def _trial(task: str, data: Sequence[str], manner: Manner, output: Path) -> Trial:
    words = [word if "=" in word else place_of(Path(word), task) for word in data]
    (trial,) = trials([task], words, manner.changes)
    return _nsmc(trial, output) if task == NSMC else trial


def place_of(folder: Path, task: str) -> str:
    """The folder of a task below one that holds those of all."""
    for name in MEMBER_PLACES.get(task, PLACES.get(task.partition("/")[0], ())):
        if (folder / name).is_dir():
            return str(folder / name)
    return str(folder)


def _nsmc(trial: Trial, output: Path) -> Trial:
    """NSMC has no dev examples: its test examples are taken for them, as the dev examples of all other tasks are."""
    folder = output / "nsmc"
    if not (folder / "dev.jsonl").exists():
        task = find_task(NSMC).build(files={"data": trial.data})
        Disk().make_folder(folder)
        for name, split in (("train", "train"), ("dev", "test")):
            rows = [{"text": one.texts[0], "label": one.gold} for one in task.examples(split)]
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            Disk().write_file(folder / f"{name}.jsonl", [lines.encode()])
    return Trial("classification", folder, trial.changes)


def _ours(work: Work) -> dict[str, Any]:
    """As `bertsmith ablate` does."""
    manner, cell = work.manner, work.cell
    cell.run(learning_rates=manner.rates, seeds=manner.seeds, device=manner.device, quiet=manner.quiet)
    found = read_checksummed_json(cell.folder / CELL)["result"]
    runs = [{"rate": run["learning_rate"], "seed": run["seed"], "scores": run["scores"]} for run in found["runs"]]
    return _told(work.one.name, work.task, "bertsmith", found["main"], runs)


def _own(work: Work) -> dict[str, Any]:
    """By transformers' classes in a plain loop; runs that are finished are not done again."""
    folder = work.output / TUNED / work.one.name / f"own-{work.task.replace('/', '-')}"
    tuning, tuner, runs = _tuning(work), None, []
    for rate, seed in [work.only] if work.only else _runs(work):
        place = folder / f"rate-{rate:g}-seed-{seed}.json"
        wanted = json.loads(replace(tuning, learning_rate=rate, seed=seed).to_json())
        known = results.read(place)
        if known is not None and known["settings"] != wanted:
            raise ConfigError(f"{place} was found with other settings: choose another -o, or remove it")
        if known is None:
            tuner = tuner or _tuner(work, tuning)
            known = {"rate": rate, "seed": seed, "scores": tuner.run(rate, seed), "settings": wanted}
            results.write(place, known)
        runs.append({key: known[key] for key in ("rate", "seed", "scores")})
    return _told(work.one.name, work.task, "transformers", build_task(tuning).main_metric, runs)


def _tuning(work: Work) -> FinetuneConfig:
    return make_finetune_config(work.trial.task, work.one.folder, {"data": work.trial.data}, work.trial.changes)


def _runs(work: Work) -> list[tuple[float, int]]:
    """Rates with seeds."""
    tuning = _tuning(work)
    seeds = range(tuning.seed, tuning.seed + work.manner.seeds)
    return list(product(work.manner.rates or (tuning.learning_rate,), seeds))


def _tuner(work: Work, tuning: FinetuneConfig) -> Any:
    from bench.ten_minutes.own_code import Tuner

    folder, tokenizer = work.one.folder, load(work.one.folder)
    positions = read_json(folder, "config.json")["max_position_embeddings"]
    ready = prepare(tuning, build_task(tuning), tokenizer, positions=positions)
    device = torch.device(choose_device(work.manner.device))
    return Tuner(folder, tuning, ready, tokenizer, device, fresh=work.one.fresh)


def _told(name: str, task: str, code: str, main: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All runs, and the scores of the rate that is best on dev over its seeds."""
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
