"""The study: its parts in order, each skipped once it is finished, and the table of what is finished so far."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from bertsmith.errors import ConfigError, UnknownWordsWarning
from bertsmith.inference.predictor import Predictor
from bertsmith.inference.word_contexts import parse_marked
from bertsmith.reports.run_history import LAST
from bertsmith.studies.lineage.models import STAGES, recipe_of
from bertsmith.studies.lineage.page import write_page
from bertsmith.studies.lineage.pretraining import check_weights, model_of, pretrain_stage
from bertsmith.studies.lineage.samples import samples
from bertsmith.studies.lineage.settings import (
    EVALUATE,
    PRETRAIN,
    TASKS,
    TEXT,
    LineageConfig,
    Report,
    chosen_parts,
    is_part_finished,
    read_part,
    write_part,
)
from bertsmith.studies.lineage.table import collect, evaluated_stage, markdown
from bertsmith.studies.lineage.tasks import Cell, TaskFacts, TaskRun, cell_of, task_facts
from bertsmith.studies.lineage.text import fingerprint, held_out_texts, prepare_text
from bertsmith.studies.lineage.text_loss import text_loss
from bertsmith.studies.task_setup import TaskSetup
from bertsmith.system.durable import Disk, checksummed_json
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.training.clock import stop_after
from bertsmith.training.run import advise_removal

TABLE, PAGE, MARKDOWN = "lineage.json", "lineage.html", "lineage.md"


@advise_removal()
def lineage(
    study: LineageConfig,
    *,
    only: Sequence[str] = (),
    stop_seconds: float = 0.0,
    quiet: bool = False,
    report: Report = lambda text: None,
) -> dict[str, Any]:
    """Trains what is not finished yet and returns the table, which is also written to the folder of the study.

    `only`: parts, such as `pretrain/bert` or `tasks`. `stop_seconds`: after so many seconds the work is saved and the
    call ends with a `StoppedError`; the same call resumes. `report` gets a line before each part.
    """
    work = _Work.planned(study, only, quiet=quiet, report=report)
    Disk().make_folder(study.output)
    try:
        with stop_after(stop_seconds):
            work.run()
    finally:
        table = work.write_table()
    return table


def part_names(study: LineageConfig) -> list[str]:
    """All parts in order: texts, pre-training, evaluation on held-out texts, then the tasks of each row."""
    stages = study.stages()
    kinds = dict.fromkeys(STAGES[study.size][stage].tokenizer for stage in stages)
    tasks = [task_part(row, setup) for row, setup in product(study.rows(), study.tasks)]
    return [
        *(f"{TEXT}/{kind}" for kind in kinds),
        *(f"{PRETRAIN}/{stage}" for stage in stages),
        *(f"{EVALUATE}/{stage}" for stage in dict.fromkeys(map(evaluated_stage, study.rows().values()))),
        *tasks,
    ]


def task_part(row: str, setup: TaskSetup) -> str:
    """The name of the fine-tuning runs of a row on a task."""
    return f"{TASKS}/{row}/{setup.folder}"


@dataclass
class _Work:
    study: LineageConfig
    facts: Mapping[str, TaskFacts]  # by task
    chosen: list[str]  # parts
    quiet: bool
    report: Report
    seconds: list[float] = field(default_factory=list)  # of the fine-tuning runs of this call
    built: dict[str, Cell] = field(default_factory=dict)  # cells whose pre-training is finished, by part

    @classmethod
    def planned(cls, study: LineageConfig, only: Sequence[str], *, quiet: bool, report: Report) -> _Work:
        """Raises where a setting, a task or its data is wrong, before anything is trained."""
        chosen = chosen_parts(part_names(study), only)
        for name in study.stages():
            recipe_of(STAGES[study.size][name], minutes=study.minutes, seed=study.seed, start="", more=())
        tasks = [setup.task for setup in study.tasks]
        if len(set(tasks)) < len(tasks):
            raise ConfigError(f"a task is named twice: {', '.join(tasks)}")
        for sentence in study.sentences:
            parse_marked(sentence)
        facts = {setup.task: task_facts(setup, study.changes_of_rows()) for setup in study.tasks}
        for row, reason in study.left_out().items():
            report(f"{row} is left out: it {reason}")
        return cls(study, facts, chosen, quiet, report)

    def run(self) -> None:
        """All chosen parts in order; with several jobs all fine-tuning runs together."""
        steps: dict[str, Callable[[str], Any]] = {TEXT: self._text, PRETRAIN: self._pretrain, EVALUATE: self._evaluate}
        for name in self.chosen:
            kind, _, rest = name.partition("/")
            if kind in steps and not is_part_finished(self.study.folder(kind, rest)):
                self._announce(name)
            if kind in steps:
                steps[kind](rest)
        self._tasks([name for name in self.chosen if name.startswith(f"{TASKS}/")])

    def _text(self, kind: str) -> None:
        held_out_texts(self.study)  # an error if there are too few
        prepare_text(self.study, kind, quiet=self.quiet)

    def _pretrain(self, stage: str) -> None:
        pretrain_stage(self.study, stage, quiet=self.quiet)

    def _evaluate(self, stage: str) -> None:
        """Nats per byte of the held-out texts, and example predictions."""
        self._check_trained(stage)
        texts, folder = held_out_texts(self.study), self.study.folder(EVALUATE, stage)
        trained = read_part(self.study.folder(PRETRAIN, stage), {}) or {}
        key = {
            "settings": {"sentences": list(self.study.sentences)},
            "fingerprints": {"texts": fingerprint(texts), "model": trained["model"]},
        }
        if read_part(folder, key, replace=True) is not None:
            return
        check_weights(self.study, stage)
        generator = self.study.folder(PRETRAIN, stage) / "generator" / LAST
        with (
            warnings.catch_warnings(),
            Predictor.open(model_of(self.study, stage), device=self.study.device) as predictor,
        ):
            warnings.simplefilter("ignore", UnknownWordsWarning)  # the figure says how many there are
            loss = text_loss(predictor, texts) if trained["minutes"] else None
            shown = samples(predictor, self.study.sentences, generator=generator if generator.is_dir() else None)
        write_part(folder, key, {"text_loss": loss, "samples": shown if trained["minutes"] else {}})

    def _tasks(self, names: Sequence[str]) -> None:
        cells = [(name, cell) for name, cell in self._cells() if name in names]
        for _, cell in cells:
            self._check_trained(*self._stages_of(cell))
            if any(run.result() is None for run in cell.runs):
                for stage in self._stages_of(cell):
                    check_weights(self.study, stage)
        if self.study.jobs > 1:
            self._run_parallel([run for _, cell in cells for run in cell.runs if run.result() is None])
            return
        for name, cell in cells:
            for run in cell.runs:
                if run.result() is not None:
                    run.run()  # removes a model that an interrupted call left
                    continue
                self._announce(f"{name}, {run}")
                began = time.monotonic()
                if "reason" in run.run(quiet=self.quiet):
                    self.report(f"{name} is left empty: {run.reason()}")
                    break
                self.seconds.append(time.monotonic() - began)
                self.write_table()

    def _run_parallel(self, runs: Sequence[TaskRun]) -> None:
        """Runs in parallel, each in a silent process."""
        workers = min(self.study.jobs, len(runs) or 1)
        with closing(ordered_map(TaskRun.run, runs, workers=workers, timeout=RUN_TIMEOUT)) as results:
            for number, (run, result) in enumerate(zip(runs, results, strict=True), start=1):
                about = f": {result['reason']}" if "reason" in result else ""
                self.report(f"{number} of {len(runs)} done: {run.folder.relative_to(self.study.output)}{about}")

    def _check_trained(self, *stages: str) -> None:
        for stage in stages:
            if not is_part_finished(self.study.folder(PRETRAIN, stage)):
                part = f"{PRETRAIN}/{stage}"
                raise ConfigError(f"{part} is not finished: run the same command with --only {part} first")

    def _stages_of(self, cell: Cell) -> list[str]:
        model = self.study.rows()[cell.row]
        return [model.stage, *model.features]

    def _cells(self) -> list[tuple[str, Cell]]:
        """The cells of the table, with the names of their parts."""
        cells = []
        for (row, model), setup in product(self.study.rows().items(), self.study.tasks):
            name = task_part(row, setup)
            cell = self.built.get(name) or cell_of(self.study, row, model, setup, self.facts[setup.task])
            if cell.runs or cell.reason:
                self.built[name] = cell
            cells.append((name, cell))
        return cells

    def _announce(self, name: str) -> None:
        self.report(f"{name}{self._time_left()}")

    def _time_left(self) -> str:
        """Of pre-training, then of fine-tuning, where each run takes as long as those so far."""
        stages = [name.partition("/")[2] for name in self.chosen if name.startswith(f"{PRETRAIN}/")]
        left = [name for name in stages if not is_part_finished(self.study.folder(PRETRAIN, name))]
        if left:
            seconds = 60 * self.study.minutes * sum(STAGES[self.study.size][name].share for name in left)
            return f" · {_clock(seconds)} of pre-training left"
        named = {name for name in self.chosen if name.startswith(f"{TASKS}/")}
        if not self.seconds:
            return ""
        runs = [run for name, cell in self._cells() if name in named for run in cell.runs if run.result() is None]
        return f" · about {_clock(len(runs) * sum(self.seconds) / len(self.seconds))} left"

    def write_table(self) -> dict[str, Any]:
        """Everything that is finished, as JSON, Markdown and a page."""
        cells = {(cell.row, cell.setup.task): cell for _, cell in self._cells()}
        table = collect(self.study, self.facts, cells)
        output = self.study.output
        Disk().write_file(output / TABLE, [checksummed_json(table)])
        Disk().write_file(output / MARKDOWN, [markdown(table).encode()])
        write_page(table, output / PAGE)
        return table | {"page": str(output / PAGE), "markdown": str(output / MARKDOWN)}


def _clock(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
