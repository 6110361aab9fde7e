"""`tasks`: contestants fine-tuned on tasks, several seeds each, by our code or by transformers' own."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.ten_minutes import results
from bertsmith.devices import choose_device
from bertsmith.durable import Disk, read_sealed
from bertsmith.errors import ConfigError, Stopped
from bertsmith.finetuning.tuning import find_task, make_tuning
from bertsmith.finetuning.work import build_task, prepare
from bertsmith.scores.intervals import over_seeds
from bertsmith.studies.ablations import CELL, FRESH, Candidate, Trial, ablate, candidates, trials
from bertsmith.text.tokenizer import load
from bertsmith.weights.foreign_files import read_json

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
GRACE = 20.0  # seconds in which a process may save what it has


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How everybody is fine-tuned."""

    rates: tuple[float, ...] = ()
    seeds: int = 3
    changes: tuple[str, ...] = ()  # [TASK:]SETTING=VALUE, as for `bertsmith ablate`
    own_code: bool = False
    jobs: int = 1
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
    found = []
    for task in tasks:
        trial = _trial(task, data, manner, output)
        for some in _groups(those, manner):
            began = time.monotonic()
            told = (_own if manner.own_code else _ours)(some, task, trial, output, manner)
            for one in told:
                score = one["summary"]
                spread = f" ± {100 * score['deviation']:.1f}" if score["deviation"] is not None else ""
                say(f"{one['name']} on {task}: {one['main']} {100 * score['mean']:.1f}{spread} (rate {one['rate']:g})")
                one["call_seconds"] = time.monotonic() - began
                results.write(results.scores_path(output, one["name"], task), one)
            found += told
    return found


def with_folders(names: Sequence[str], output: Path) -> list[str]:
    """Contestants by name as NAME=FOLDER; those that are given so, and their fresh ones, stay as they are."""
    given = {name.partition("=")[0] for name in names if "=" in name}
    return [
        name
        if "=" in name or name.removesuffix(FRESH) in given
        else f"{name}={output / name.removesuffix(FRESH) / results.MODEL}"
        for name in names
    ]


def _groups(those: Sequence[Candidate], manner: Manner) -> list[list[Candidate]]:
    """All at once where several work at a time; else one by one, so that each is written when it is done."""
    return [list(those)] if manner.jobs > 1 and not manner.own_code else [[one] for one in those]


def _trial(task: str, data: Sequence[str], manner: Manner, output: Path) -> Trial:
    words = [word if "=" in word else _place(Path(word), task) for word in data]
    (trial,) = trials([task], words, manner.changes)
    return _nsmc(trial, output) if task == NSMC else trial


def _place(folder: Path, task: str) -> str:
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


def _ours(those: Sequence[Candidate], task: str, trial: Trial, output: Path, manner: Manner) -> list[dict[str, Any]]:
    """By `bertsmith ablate`."""
    folder = output / TUNED
    how = {"rates": manner.rates, "seeds": manner.seeds, "jobs": manner.jobs, "device": manner.device}
    try:
        ablate(those, [trial], folder, quiet=manner.quiet, **how)
    except Stopped:
        _stop_workers()
        raise
    found = []
    for one in those:
        cell = read_sealed(folder / one.name / trial.task.replace("/", "-") / CELL)["found"]
        found.append(_told(one.name, task, "bertsmith", cell["main"], cell["runs"]))
    return found


def _stop_workers() -> None:
    """Has the processes of several jobs save and end, as this one does."""
    for worker in multiprocessing.active_children():
        worker.terminate()
    for worker in multiprocessing.active_children():
        worker.join(GRACE)
        worker.kill()


def _own(those: Sequence[Candidate], task: str, trial: Trial, output: Path, manner: Manner) -> list[dict[str, Any]]:
    """By transformers' classes in a plain loop; runs that are finished are not done again."""
    from bench.ten_minutes.own_code import Tuner

    (one,) = those
    tuning = make_tuning(trial.task, one.folder, {"data": trial.data}, trial.changes)
    built, tokenizer = build_task(tuning), load(one.folder)
    positions = read_json(one.folder, "config.json")["max_position_embeddings"]
    ready = prepare(tuning, built, tokenizer, positions=positions)
    device = torch.device(choose_device(manner.device))
    tuner = Tuner(one.folder, tuning, ready, tokenizer, device, fresh=one.fresh)
    runs = []
    for rate in manner.rates or (tuning.rate,):
        for seed in range(tuning.seed, tuning.seed + manner.seeds):
            place = output / TUNED / one.name / f"own-{task.replace('/', '-')}" / f"rate-{rate:g}-seed-{seed}.json"
            wanted = json.loads(replace(tuning, rate=rate, seed=seed).to_json())
            known = results.read(place)
            if known is not None and known["settings"] != wanted:
                raise ConfigError(f"{place} was found with other settings: choose another -o, or remove it")
            if known is None:
                known = {"rate": rate, "seed": seed, "scores": tuner.run(rate, seed), "settings": wanted}
                results.write(place, known)
            runs.append({key: known[key] for key in ("rate", "seed", "scores")})
    return [_told(one.name, task, "transformers", built.main, runs)]


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
        "summary": asdict(over_seeds(by_rate[best])),
        "scores": {measure: [run["scores"][measure] for run in kept] for measure in kept[0]["scores"]},
        "runs": [{key: run[key] for key in ("rate", "seed", "scores")} for run in runs],
    }
