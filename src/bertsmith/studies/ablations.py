"""Ablations of pre-training (P-BERT §5): several model folders, fine-tuned alike on several tasks."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import reduce
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
from bertsmith.studies.stored_results import read_result, write_result
from bertsmith.studies.task_setup import TaskSetup
from bertsmith.system.durable import Disk, checksummed_json
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
            setting = f"; for a setting of fine-tuning write --set {word}" if equals else ""
            raise DataError(f"{path} is not a folder: {name} needs a model folder or a run{setting}")
        chosen[name] = Candidate(name, find_model_folder(path))
    return list(chosen.values())


@advise_removal()
@each_warning_once()
def ablate(
    models: Sequence[Candidate],
    tasks: Sequence[TaskSetup],
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
    cells = [(one.name, Cell.planned(one, setup, output)) for one in models for setup in tasks]  # fails early
    table = scores_for([one.name for one in models], {cell.task.name for _, cell in cells})
    rows: dict[str, dict[str, Any]] = {
        one.name: {"name": one.name, "folder": str(one.folder), "causal": one.causal, "cells": {}} for one in models
    }
    options: dict[str, Any] = {"learning_rates": learning_rates, "seeds": seeds, "jobs": jobs, "device": device}
    results = run_cells(cells, **options, quiet=quiet, report=report)
    for (name, cell), result in zip(cells, results, strict=True):
        published = table.scores.get(name, {}).get(cell.task.name)
        rows[name]["cells"][cell.name] = result | {"published": published}
    baselines = _baseline_row({cell.name: cell for _, cell in cells})
    return _write_table([baselines, *rows.values()], table.source, output)


def run_cells(
    cells: Sequence[tuple[str, Cell]],
    *,
    learning_rates: Sequence[float],
    seeds: int,
    jobs: int,
    device: str,
    quiet: bool,
    report: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """The result of each cell in order; each has the name of its row. Finished runs are reused.

    `jobs` and `report` as in `ablate`.
    """
    options: dict[str, Any] = {"learning_rates": learning_rates, "seeds": seeds, "device": device}
    work = [cell.runs(**options) if jobs > 1 else [] for _, cell in cells]
    with closing(run_parallel([run for runs in work for run in runs], jobs=jobs)) as done:
        for (row, cell), runs in zip(cells, work, strict=True):
            if jobs == 1:
                report(f"{row} on {cell.name}")
            for _ in runs:
                next(done)
            result = cell.run(**options, quiet=quiet or jobs > 1)
            if jobs > 1:
                report(f"{row} on {cell.name}: done")
            yield result


def _baseline_row(planned: Mapping[str, Cell]) -> dict[str, Any]:
    """The row of the baselines without a model."""
    cells: dict[str, Any] = {}
    for name, cell in planned.items():
        scored = baseline(cell.task, dev_examples(cell.settings, cell.task))
        score = asdict(summarize_seeds([scored.scores[cell.metric]]))
        shown = {"metric": cell.metric, "score": score, "baseline": scored.description}
        cells[name] = shown | {"run": None, "published": None}
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

    name: str  # of the task on the command line
    task: Task
    settings: FinetuneConfig
    folder: Path  # of its runs

    @classmethod
    def planned(cls, one: Candidate, setup: TaskSetup, output: Path) -> Self:
        """The cell of a model and a task; a left-to-right model is pooled at the last token."""
        fresh = ["random_init=true"] if one.fresh else []
        settings = make_finetune_config(setup.task, one.folder, setup.files, [*setup.changes, *fresh])
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
        folder = output / one.name / setup.folder
        if one.embeddings:
            head["layers"] = "embeddings"
            if "pooling" in known:  # that of the first token is the same in every text
                head.setdefault("pooling", text_head_settings(str(one.folder)).get("pooling", "mean"))
        settings = replace(settings, head=head)
        return cls(setup.task, task, settings, folder)

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
            write_result(self.folder / CELL, key, result)
        best = max(result["learning_rates"], key=lambda row: row["mean"])["learning_rate"]  # by the main metric
        score = summarize_seeds([run["scores"][self.metric] for run in result["runs"] if run["learning_rate"] == best])
        run, head = result["kept"]["run"], self.settings.head
        return {"metric": self.metric, "score": asdict(score), "learning_rate": best, "run": run, "head": head}
