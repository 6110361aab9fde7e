"""Ablations of pre-training (P-BERT §5): several model folders, fine-tuned alike on several tasks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any, Self

from bertsmith import config
from bertsmith.errors import ConfigError, DataError
from bertsmith.evaluation.tables import baseline
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.model_folder import CONFIG
from bertsmith.model_io.run_folder import find_model_folder, model_name
from bertsmith.model_io.untrusted_files import read_json
from bertsmith.reports.report_page import write_report
from bertsmith.studies.published import METRICS, scores_for
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.tasks.task import Task
from bertsmith.tokenizers.unknown_words import each_warning_once
from bertsmith.training.finetune import OBJECTIVES
from bertsmith.training.finetune_data import build_task, dev_examples
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.run import advise_removal
from bertsmith.training.start import text_head_settings
from bertsmith.training.sweep import SweepRun, run_parallel, sweep, sweep_runs, warn_of_unknown_words

# suffixes of a name: a BiLSTM on top; random instead of pre-trained weights; the head reads only the embeddings
SUFFIXES = BILSTM, FRESH, EMBEDDINGS = "+bilstm", "+fresh", "+embeddings"
NO_MODEL = "no model"  # the row of the baselines
CELL, TABLE, PAGE = "ablation.json", "ablations.json", "ablations.html"


@dataclass(frozen=True)
class Candidate:
    """A pre-trained model folder: one row of the table."""

    name: str
    folder: Path

    @property
    def bilstm(self) -> bool:
        return BILSTM in self.name

    @property
    def fresh(self) -> bool:
        return FRESH in self.name

    @property
    def embeddings(self) -> bool:
        return EMBEDDINGS in self.name

    @property
    def causal(self) -> bool:
        """Whether attention is left to right."""
        return read_json(self.folder, CONFIG).get("is_decoder") is True


def candidates(words: Sequence[str]) -> list[Candidate]:
    """Candidates from the command line: `base=runs/a base+fresh ltr=runs/b ltr+bilstm`.

    A known name with `+bilstm` gets a BiLSTM on top; with `+fresh` it starts from random weights of the same shape;
    with `+embeddings` its head reads only the embeddings.
    """
    chosen: dict[str, Candidate] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals:
            plain = reduce(lambda name, suffix: name.replace(suffix, ""), SUFFIXES, word)
            known = chosen.get(plain) if plain != word else None
            name, path = (word, str(known.folder)) if known else (model_name(word), word)
        if not name or name in chosen or name == NO_MODEL:
            raise ConfigError(f"{word}: the name must be unique: write name=FOLDER")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(f"{name!r} is not a valid folder name: use letters, digits and . _ + -")
        if not Path(path).is_dir():
            raise DataError(f"{path} is not a folder: {name} needs a model folder or a run")
        chosen[name] = Candidate(name, find_model_folder(path))
    return list(chosen.values())


@dataclass(frozen=True)
class Trial:
    """A task with its data folder and settings."""

    task: str
    data: Path
    changes: tuple[str, ...] = ()


def trials(tasks: Sequence[str], data: Sequence[str], changes: Sequence[str]) -> list[Trial]:
    """Tasks from the command line. Data: a folder for all, `TASK=DIR` or `FAMILY=DIR`. Set: `[TASK:]NAME=VALUE`."""
    setups = []
    for change in changes:
        check_owner(change)
    for task in dict.fromkeys(tasks):
        folders = {name: path for name, path in (_task_prefix(word, "=") for word in data) if _applies(task, name)}
        folder = folders.get(task) or folders.get(task.partition("/")[0]) or folders.get("")
        if folder is None:
            raise ConfigError(f"{task} has no data folder: pass --data {task}=DIR")
        named = [_task_prefix(change, ":") for change in changes]
        own = tuple(change for name, change in named if _applies(task, name))
        setups.append(Trial(task, Path(folder), own))
    return setups


def check_owner(change: str, models: Sequence[str] = ()) -> None:
    """Raises where a setting, `OWNER:NAME=VALUE`, is neither of a task nor of one of the models."""
    owner, colon, _ = change.partition("=")[0].partition(":")
    known = [*models, *config.kinds("bertsmith.tasks")]
    if colon and owner.partition("/")[0] not in known:
        what = "a model or a task" if models else "a task"
        raise ConfigError(f"--set {change}: {owner} is not {what}{config.did_you_mean(owner, known)}")


def _task_prefix(word: str, separator: str) -> tuple[str, str]:
    """The task before the separator, "" for all tasks, and the rest."""
    name, separated, rest = word.partition(separator)
    is_task = separated and name.partition("/")[0] in config.kinds("bertsmith.tasks")
    return (name, rest) if is_task else ("", word)


def _applies(task: str, name: str) -> bool:
    return name in ("", task, task.partition("/")[0])


@advise_removal()
@each_warning_once()
def ablate(
    models: Sequence[Candidate],
    tasks: Sequence[Trial],
    output: str | Path,
    *,
    learning_rates: Sequence[float] = (),
    seeds: int = 1,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Fine-tunes each model on each task and returns the table; finished runs are reused.

    `jobs`: runs in parallel, each in its own process without a progress bar. `report` gets a message before each cell,
    or with several jobs after it.
    """
    output = Path(output)
    Disk().make_folder(output)
    planned = [Cell.planned(one, trial, output) for one in models for trial in tasks]  # fails early
    table = scores_for([one.name for one in models], {cell.task.name for cell in planned})
    options: dict[str, Any] = {"learning_rates": learning_rates, "seeds": seeds, "device": device}
    work = [cell.runs(**options) if jobs > 1 else [] for cell in planned]
    rows: dict[str, dict[str, Any]] = {}
    with closing(run_parallel([run for runs in work for run in runs], jobs=jobs)) as done:
        for (one, _), cell, runs in zip(product(models, tasks), planned, work, strict=True):
            name = cell.task.name
            if jobs == 1:
                report(f"{one.name} on {name}")
            for _ in runs:
                next(done)
            result = cell.run(**options, quiet=quiet or jobs > 1)
            if jobs > 1:
                report(f"{one.name} on {name}: done")
            empty = {"name": one.name, "folder": str(one.folder), "causal": one.causal, "cells": {}}
            rows.setdefault(one.name, empty)["cells"][cell.trial] = result | {
                "published": table.scores.get(one.name, {}).get(name)
            }
    baselines = _baseline_row({cell.trial: cell for cell in planned})
    return _write_table([baselines, *rows.values()], table.source, output)


def _baseline_row(planned: Mapping[str, Cell]) -> dict[str, Any]:
    """The row of the baselines without a model."""
    cells: dict[str, Any] = {}
    for trial, cell in planned.items():
        scored = baseline(cell.task, dev_examples(cell.settings, cell.task))
        score = asdict(summarize_seeds([scored.scores[cell.metric]]))
        shown = {"metric": cell.metric, "score": score, "baseline": scored.description}
        cells[trial] = shown | {"run": None, "published": None}
    return {"name": NO_MODEL, "folder": None, "causal": False, "cells": cells}


def _write_table(rows: list[dict[str, Any]], source: str, output: Path) -> dict[str, Any]:
    table = {"source": source, "tasks": list(rows[0]["cells"]), "rows": rows}
    Disk().write_file(output / TABLE, [checksummed_json(table)])
    runs = [cell["run"] for row in rows for cell in row["cells"].values() if cell["run"]]
    page = str(write_report(runs, output / PAGE)) if runs else None
    return table | {"page": page}


@dataclass(frozen=True)
class Cell:
    """One model on one task."""

    trial: str  # name of the task on the command line
    task: Task
    settings: FinetuneConfig
    folder: Path  # of its runs

    @classmethod
    def planned(cls, one: Candidate, trial: Trial, output: Path) -> Self:
        """The cell of a model and a task; a left-to-right model is pooled at the last token."""
        settings = make_finetune_config(trial.task, one.folder, {"data": trial.data}, trial.changes)
        task = build_task(settings)
        known = {item.name for item in dataclasses.fields(config.find_kind(OBJECTIVES, task.objective).Config)}
        head = dict(settings.head)
        # the paper does not say which token its left-to-right model reads
        if one.causal and "pooling" in known:
            head.setdefault("pooling", "last")
        if one.bilstm:
            head["recurrent"] = "bilstm"
            if "pooling" in known:  # the pooler was trained without a BiLSTM
                head.setdefault("pooling", "cls")
        folder = output / one.name / trial.task.replace("/", "-")
        if one.embeddings:
            head["layers"] = "embeddings"
            if "pooling" in known:  # that of the first token is the same in every text
                head.setdefault("pooling", text_head_settings(str(one.folder)).get("pooling", "mean"))
        settings = replace(settings, head=head, random_init=settings.random_init or one.fresh)
        return cls(trial.task, task, settings, folder)

    @property
    def metric(self) -> str:
        """The paper's metric, or the task's main metric."""
        return METRICS.get(self.task.name, self.task.main_metric)

    def runs(self, *, learning_rates: Sequence[float], seeds: int, device: str) -> list[SweepRun]:
        """The unfinished runs of the cell, to be trained in parallel."""
        if read_result(self.folder / CELL, self._key(learning_rates, seeds)) is not None:
            return []
        rates = self._learning_rates(learning_rates)
        how: dict[str, Any] = {"learning_rates": rates, "seeds": seeds, "device": device, "lean": True}
        planned = sweep_runs(self.settings, self.folder, **how)
        if not any(run.folder.exists() for run in planned):
            warn_of_unknown_words(self.settings, self.task)
        return planned

    def _learning_rates(self, given: Sequence[float]) -> list[float]:
        return list(given) or [self.settings.learning_rate]

    def _key(self, learning_rates: Sequence[float], seeds: int) -> dict[str, Any]:
        rates = self._learning_rates(learning_rates)
        return {"settings": config.to_dict(self.settings), "learning_rates": rates, "seeds": seeds}

    def run(self, *, learning_rates: Sequence[float], seeds: int, device: str, quiet: bool) -> dict[str, Any]:
        """The scores of the best learning rate over the seeds."""
        rates, key = self._learning_rates(learning_rates), self._key(learning_rates, seeds)
        result = read_result(self.folder / CELL, key)
        if result is None:
            options: dict[str, Any] = {"seeds": seeds, "device": device, "quiet": quiet, "lean": True}
            result = sweep(self.settings, self.folder, learning_rates=rates, **options)
            Disk().write_file(self.folder / CELL, [checksummed_json(key | {"result": result})])
        best = max(result["learning_rates"], key=lambda row: row["mean"])["learning_rate"]  # by the main metric
        score = summarize_seeds([run["scores"][self.metric] for run in result["runs"] if run["learning_rate"] == best])
        run, head = result["kept"]["run"], self.settings.head
        return {"metric": self.metric, "score": asdict(score), "learning_rate": best, "run": run, "head": head}


def read_result(path: Path, key: Mapping[str, Any]) -> dict[str, Any] | None:
    """The stored result of a run with these settings; None if it is missing, damaged or of other settings."""
    try:
        stored = read_checksummed_json(path)
    except DataError:
        return None
    result: dict[str, Any] = stored["result"]
    return result if {name: stored.get(name) for name in key} == key else None
