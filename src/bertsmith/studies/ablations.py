"""What each part of pre-training is worth (P-BERT §5): several folders, fine-tuned alike on several tasks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

from bertsmith import config
from bertsmith.errors import ConfigError, DataError
from bertsmith.evaluation.tables import baseline
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.model_folder import CONFIG
from bertsmith.model_io.untrusted_files import read_json
from bertsmith.reports.report_page import write_report
from bertsmith.studies.published import scores_for
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.tasks.task import Task
from bertsmith.training.finetune import OBJECTIVES
from bertsmith.training.finetune_data import build_task, dev_examples
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.sweep import SweepRun, run_parallel, sweep, sweep_runs

BILSTM, FRESH = "+bilstm", "+fresh"  # in the name of a folder that is tuned with one on top; without what it learned
NOTHING = "no model"  # the row of what needs none
CELL, TABLE, PAGE = "ablation.json", "ablations.json", "ablations.html"


@dataclass(frozen=True)
class Candidate:
    """A pre-trained folder as it is put into the table."""

    name: str
    folder: Path

    @property
    def bilstm(self) -> bool:
        return BILSTM in self.name

    @property
    def fresh(self) -> bool:
        return FRESH in self.name

    @property
    def causal(self) -> bool:
        """Whether a place sees only what stands before it."""
        return read_json(self.folder, CONFIG).get("is_decoder") is True


def candidates(words: Sequence[str]) -> list[Candidate]:
    """`base=runs/a/best base+fresh ltr=runs/b/best ltr+bilstm`: a name that was given before, with a mark.

    `+bilstm` has a BiLSTM on top; `+fresh` begins with random weights, in the shape of the folder's.
    """
    found: dict[str, Candidate] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals:
            plain = word.replace(BILSTM, "").replace(FRESH, "")
            known = found.get(plain) if plain != word else None
            name, path = (word, str(known.folder)) if known else (_called(Path(word)), word)
        if not name or name in found or name == NOTHING:
            raise ConfigError(f"{word}: every folder needs a name of its own: write name=FOLDER")
        if not re.fullmatch(r"[\w.+-]+", name):
            raise ConfigError(f"{name!r} becomes the name of a folder: letters, digits and . _ + - only")
        if not Path(path).is_dir():
            raise DataError(f"{path} is no folder: {name} needs a model folder, such as a run's best")
        found[name] = Candidate(name, Path(path))
    return list(found.values())


def _called(folder: Path) -> str:
    """`runs/a/best` is called a."""
    return folder.parent.name if folder.name in ("best", "last") and folder.parent.name else folder.name


@dataclass(frozen=True)
class Trial:
    """How a task is tried: where its data lie and which settings are its own."""

    task: str
    data: Path
    changes: tuple[str, ...] = ()


def trials(tasks: Sequence[str], data: Sequence[str], changes: Sequence[str]) -> list[Trial]:
    """Data are a folder for all tasks or `task=DIR`, a family counting as its members; settings `[task:]name=value`."""
    found = []
    for task in dict.fromkeys(tasks):
        places = {name: path for name, path in (_of_task(word, "=") for word in data) if _is_of(task, name)}
        place = places.get(task) or places.get(task.partition("/")[0]) or places.get("")
        if place is None:
            raise ConfigError(f"{task}: where are its files? pass --data {task}=DIR")
        named = [_of_task(change, ":") for change in changes]
        own = tuple(change for name, change in named if _is_of(task, name))
        found.append(Trial(task, Path(place), own))
    return found


def _of_task(word: str, mark: str) -> tuple[str, str]:
    """The task that a word is for, nothing where it is for all, and the rest of it."""
    name, found, rest = word.partition(mark)
    is_task = found and name.partition("/")[0] in config.kinds("bertsmith.tasks")
    return (name, rest) if is_task else ("", word)


def _is_of(task: str, name: str) -> bool:
    return name in ("", task, task.partition("/")[0])


def ablate(
    those: Sequence[Candidate],
    tried: Sequence[Trial],
    output: str | Path,
    *,
    rates: Sequence[float] = (),
    seeds: int = 1,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Fine-tunes every folder on every task, and returns the table; what is finished is not done again.

    `jobs` runs at a time, each in a process of its own, which then tell nothing of their progress. `say` is told,
    in words, what is about to be done, or with several jobs what was.
    """
    output = Path(output)
    Disk().make_folder(output)
    planned = [Cell.planned(one, trial, output) for one in those for trial in tried]  # mistakes show now
    table = scores_for([one.name for one in those], {cell.task.name for cell in planned})
    how: dict[str, Any] = {"rates": rates, "seeds": seeds, "device": device}
    work = [cell.parts(**how) if jobs > 1 else [] for cell in planned]
    rows: dict[str, dict[str, Any]] = {}
    with closing(run_parallel([part for runs in work for part in runs], jobs=jobs)) as done:
        for (one, _), cell, runs in zip(product(those, tried), planned, work, strict=True):
            name = cell.task.name
            if jobs == 1:
                say(f"{one.name} on {name}")
            for _ in runs:
                next(done)
            found = cell.run(table.measures, **how, quiet=quiet or jobs > 1)
            if jobs > 1:
                say(f"{one.name} on {name}: done")
            row = rows.setdefault(
                one.name, {"name": one.name, "folder": str(one.folder), "causal": one.causal, "cells": {}}
            )
            row["cells"][cell.trial] = found | {"published": table.scores.get(one.name, {}).get(name)}
    asked = {cell.trial: cell for cell in planned}
    return _written([_without_model(asked, table.measures), *rows.values()], table.source, output)


def _without_model(asked: Mapping[str, Cell], measures: Mapping[str, str]) -> dict[str, Any]:
    """The row of what is said without looking at a text."""
    cells: dict[str, Any] = {}
    for trial, cell in asked.items():
        task = cell.task
        found = baseline(task, dev_examples(cell.tuning, task))
        measure = measures.get(task.name, task.main_metric)
        score = asdict(summarize_seeds([found.scores[measure]]))
        cells[trial] = {"measure": measure, "score": score, "says": found.description, "kept": None, "published": None}
    return {"name": NOTHING, "folder": None, "causal": False, "cells": cells}


def _written(rows: list[dict[str, Any]], source: str, output: Path) -> dict[str, Any]:
    told = {"source": source, "tasks": list(rows[0]["cells"]), "rows": rows}
    Disk().write_file(output / TABLE, [checksummed_json(told)])
    kept = [cell["kept"] for row in rows for cell in row["cells"].values() if cell["kept"]]
    page = str(write_report(kept, output / PAGE)) if kept else None
    return told | {"page": page}


@dataclass(frozen=True)
class Cell:
    """One folder on one task."""

    trial: str  # the task as it was asked for
    task: Task
    tuning: FinetuneConfig
    folder: Path  # of its runs

    @classmethod
    def planned(cls, one: Candidate, trial: Trial, output: Path) -> Self:
        """A left-to-right model is read where it has seen the whole text: at the last token."""
        tuning = make_finetune_config(trial.task, one.folder, {"data": trial.data}, trial.changes)
        task = build_task(tuning)
        known = {item.name for item in dataclasses.fields(config.find_kind(OBJECTIVES, task.objective).Config)}
        head = dict(tuning.head)
        # differs from the paper: it does not say what its left-to-right model reads
        if one.causal and "pooling" in known:
            head.setdefault("pooling", "last")
        if one.bilstm:
            head["recurrent"] = "bilstm"
            if "pooling" in known:  # the pooler knows nothing of a BiLSTM
                head.setdefault("pooling", "cls")
        folder = output / one.name / trial.task.replace("/", "-")
        tuning = replace(tuning, head=head, random_init=tuning.random_init or one.fresh)
        return cls(trial.task, task, tuning, folder)

    def parts(self, *, rates: Sequence[float], seeds: int, device: str) -> list[SweepRun]:
        """The runs that `run` would have to train, for those who do them at the same time."""
        if _known(self.folder / CELL, self._wanted(rates, seeds)) is not None:
            return []
        how: dict[str, Any] = {"learning_rates": self._rates(rates), "seeds": seeds, "device": device, "lean": True}
        return sweep_runs(self.tuning, self.folder, **how)

    def _rates(self, rates: Sequence[float]) -> list[float]:
        return list(rates) or [self.tuning.learning_rate]

    def _wanted(self, rates: Sequence[float], seeds: int) -> dict[str, Any]:
        return {"settings": config.to_dict(self.tuning), "rates": self._rates(rates), "seeds": seeds}

    def run(
        self, measures: Mapping[str, str], *, rates: Sequence[float], seeds: int, device: str, quiet: bool
    ) -> dict[str, Any]:
        """The scores of the best rate over the seeds, by the task's measure in the paper or its own."""
        chosen, wanted = self._rates(rates), self._wanted(rates, seeds)
        found = _known(self.folder / CELL, wanted)
        if found is None:
            found = sweep(
                self.tuning, self.folder, learning_rates=chosen, seeds=seeds, device=device, quiet=quiet, lean=True
            )
            Disk().write_file(self.folder / CELL, [checksummed_json(wanted | {"found": found})])
        best = max(found["learning_rates"], key=lambda row: row["mean"])[
            "learning_rate"
        ]  # by the score that decides in this task
        measure = measures.get(self.task.name, self.task.main_metric)
        score = summarize_seeds([run["scores"][measure] for run in found["runs"] if run["learning_rate"] == best])
        kept, head = found["kept"]["run"], self.tuning.head
        return {"measure": measure, "score": asdict(score), "rate": best, "kept": kept, "head": head}


def _known(path: Path, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a sweep with just these settings found, if it was done."""
    try:
        note = read_checksummed_json(path)
    except DataError:  # not there, or damaged: the runs themselves tell
        return None
    found: dict[str, Any] = note["found"]
    return found if {key: note.get(key) for key in wanted} == wanted else None
