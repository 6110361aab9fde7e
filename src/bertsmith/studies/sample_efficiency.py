"""Sample efficiency: the score against the number of labelled training examples, from several starting points.

The low-shot figures of ELMo (P-ELMO §5.4) and ULMFiT (P-ULMFIT §5), for any model folders and any task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.evaluation.evaluator import make_evaluation_config, open_evaluator
from bertsmith.evaluation.tables import baseline
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.model_io.run_folder import find_model_folder
from bertsmith.reports.run_history import is_finished, read_run
from bertsmith.studies.ablations import candidates
from bertsmith.studies.sample_efficiency_report import markdown, write_page
from bertsmith.studies.stored_results import read_result, write_result
from bertsmith.studies.subset_sizes import Size, resolve_sizes
from bertsmith.studies.task_setup import labelled_test, refuse_distributed
from bertsmith.system.durable import Disk, checksummed_json
from bertsmith.tasks.own_metrics import named_metrics
from bertsmith.tasks.task import Example, Task
from bertsmith.tokenizers.unknown_words import each_warning_once
from bertsmith.training.finetune_data import build_task, train_and_dev
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.run import advise_removal, remove_run
from bertsmith.training.start import encoder_kind, finetuning_settings
from bertsmith.training.sweep import BEST, SweepRun, best_scores, remove_run_files, warn_of_unknown_words

SIZES: tuple[Size, ...] = (100, 200, 500, 1000, "all")
MIN_STEPS = 200  # of a run: three passes over a hundred examples would be ten steps
FROM_SCRATCH = "from-scratch"
DEFAULTS = ("evals_per_epoch=0",)  # scored once, at the end: nothing is selected on the examples that are reported
STUDY_OPTIONS = {"limit": "--sizes", "subset": "--sizes", "random_init": "--from-scratch"}  # settings of the study
SHARED = ("task", "files", "dev_fraction", "metrics", "main_metric", "seed")  # settings of all models
SCORES, TABLE, PAGE, MARKDOWN = (
    "scores.json",
    "sample_efficiency.json",
    "sample_efficiency.html",
    "sample_efficiency.md",
)


@dataclass(frozen=True)
class Start:
    """A starting point: a model folder with its weights, or with random ones."""

    name: str
    settings: FinetuneConfig  # of a run on all examples


@dataclass(frozen=True)
class SubsetRun:
    """One run: a starting point, a number of labelled examples, a seed."""

    start: Start
    size: int
    seed: int
    settings: FinetuneConfig
    folder: Path

    def __str__(self) -> str:
        return f"{self.start.name}, {self.size:,} labels, seed {self.seed}"


def named_models(words: Sequence[str]) -> dict[str, Path]:
    """Models from the command line: `general=runs/a`, or `runs/a` with the default name `a`."""
    models = candidates(words)
    if variants := [one.name for one in models if one.fresh or one.bilstm]:
        raise ConfigError(f"--model {variants[0]}: pass model folders, and --from-scratch for random initial weights")
    return {one.name: one.folder for one in models}


@advise_removal()
@each_warning_once()
def sample_efficiency(
    models: Mapping[str, str | Path],
    task: Any,
    files: Mapping[str, str | Path],
    output: str | Path,
    *,
    sizes: Sequence[Size] = SIZES,
    from_scratch: bool = False,
    seeds: int = 3,
    min_steps: int = MIN_STEPS,
    changes: Sequence[str] = (),
    device: str = "auto",
    quiet: bool = False,
    report: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Fine-tunes each model on nested subsets of the training examples; returns the table. Finished runs are reused.

    `models`: folders by name; `from_scratch` adds the first one with random initial weights. `sizes`: numbers or
    percentages of training examples, such as `[100, "1%", "all"]`. `changes`: settings of fine-tuning, such as
    `learning_rate=1e-4`, or of one model: `from-scratch:learning_rate=1e-3`. Runs of fewer than `min_steps` get more
    epochs. The subsets are a function of the seed and the same for all models. The scores are those on test if it has
    labels, else on dev. `report` gets a message before each run.
    """
    study = _Study.planned(models, task, files, Path(output), changes, from_scratch=from_scratch)
    counts, rows = resolve_sizes(sizes, study.train), list[dict[str, Any]]()
    for start in study.starts:
        warn_of_unknown_words(start.settings, study.task)
    total = len(counts) * len(study.starts) * seeds
    Disk().make_folder(study.output)
    for size in counts:
        for start, number in product(study.starts, range(seeds)):
            run = study.subset_run(start, size, study.seed + number, min_steps)
            report(f"{len(rows) + 1} of {total}: {run}")
            rows.append(_row(run, study.scores(run, device=device, quiet=quiet)))
        table = study.table(rows, counts, seeds=seeds, min_steps=min_steps)
        _write(table, study.output)
    return table | {"page": str(study.output / PAGE), "markdown": str(study.output / MARKDOWN)}


def _row(run: SubsetRun, scores: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": run.start.name, "size": run.size, "seed": run.seed, "run": str(run.folder), **scores}


def _write(table: dict[str, Any], output: Path) -> None:
    Disk().write_file(output / TABLE, [checksummed_json(table)])
    Disk().write_file(output / MARKDOWN, [markdown(table).encode()])
    write_page(table, output / PAGE)


@dataclass
class _Study:
    starts: list[Start]
    output: Path
    task: Task
    train: int  # training examples
    dev: list[Example]
    test: list[Example]  # empty if it has no labels
    main: str  # metric

    @property
    def seed(self) -> int:
        """The first one."""
        return self.starts[0].settings.seed

    @classmethod
    def planned(
        cls,
        models: Mapping[str, str | Path],
        task: Any,
        files: Mapping[str, str | Path],
        output: Path,
        changes: Sequence[str],
        *,
        from_scratch: bool,
    ) -> _Study:
        """Reads the examples and checks the settings of every starting point."""
        if not models:
            raise ConfigError("a study of sample efficiency needs a model: pass --model NAME=FOLDER")
        if FROM_SCRATCH in models:
            raise ConfigError(f"{FROM_SCRATCH} is the name of random initial weights: choose another name")
        folders = {name: find_model_folder(folder) for name, folder in models.items()}
        folders |= {FROM_SCRATCH: next(iter(folders.values()))} if from_scratch else {}
        starts = []
        for name, folder in folders.items():
            own = _own_changes(name, folders, changes)
            fixed = ["subset=stratified", f"random_init={'true' if name == FROM_SCRATCH else 'false'}"]
            settings = make_finetune_config(task, folder, files, [*_defaults(folder, own), *own, *fixed])
            starts.append(Start(name, settings))
        first = starts[0].settings
        for start in starts:
            if any(getattr(start.settings, name) != getattr(first, name) for name in SHARED):
                raise ConfigError(f"{start.name}: all models have the same {', '.join(SHARED[:-1])} and {SHARED[-1]}")
        built = build_task(first)
        _check(first, built)
        train, dev = train_and_dev(first, built)
        test = labelled_test(built)
        main = built.main_metric  # known once the files are read
        return cls(starts, output, built, len(train), dev, test, main)

    def subset_run(self, start: Start, size: int, seed: int, min_steps: int) -> SubsetRun:
        """The run of a starting point on a subset; with all examples there is no limit."""
        settings = start.settings
        epochs = max(settings.epochs, min_steps * settings.batch_size / size)
        limit = 0 if size == self.train else size
        settings = replace(settings, limit=limit, epochs=epochs, seed=seed)
        return SubsetRun(start, size, seed, settings, self.output / start.name / str(size) / f"seed-{seed}")

    def scores(self, run: SubsetRun, *, device: str, quiet: bool) -> dict[str, Any]:
        """The scores of a run, which is trained unless it is finished; its model is removed."""
        key = {"settings": config.to_dict(run.settings), "test": len(self.test)}
        found = read_result(run.folder / SCORES, key)
        if found is None:
            if is_finished(run.folder, run.settings) and not (run.folder / BEST).is_dir():
                remove_run(run.folder, run.settings)  # without scores and without its model
            SweepRun(config=run.settings, folder=run.folder, device=device, lean=True).run(quiet=quiet)
            history = read_run(run.folder)
            scores = best_scores(history, history.main_metric.removeprefix("score/"))
            if self.test:
                scores = self._test_scores(run, device)
            found = {"score": scores[self.main], "scores": scores, "steps": history.steps}
            write_result(run.folder / SCORES, key, found)
        remove_run_files(run.folder, BEST)
        return found

    def _test_scores(self, run: SubsetRun, device: str) -> dict[str, float]:
        settings = make_evaluation_config(run.settings, "")
        files = {split: Path(path) for split, path in run.settings.files.items()}
        opened = open_evaluator(settings, run.folder / BEST, files, device=device)
        opened.task.use_metrics(named_metrics(settings.metrics), settings.main_metric)
        chunks = opened.predict(self.test, title="test", quiet=True)
        predictions = [prediction for chunk in chunks for prediction in chunk.predictions]
        return opened.task.scores(self.test, predictions)

    def table(
        self, rows: Sequence[Mapping[str, Any]], sizes: Mapping[int, str | None], *, seeds: int, min_steps: int
    ) -> dict[str, Any]:
        """The results so far: a cell is None until all of its runs are finished."""
        cells: dict[str, list[dict[str, Any] | None]] = {start.name: [] for start in self.starts}
        for name, own in cells.items():
            for size in sizes:
                runs = [row for row in rows if (row["model"], row["size"]) == (name, size)]
                summary = asdict(summarize_seeds([run["score"] for run in runs])) if len(runs) == seeds else None
                own.append(summary)
        reported = self.test or self.dev
        constant = baseline(self.task, reported)
        return {
            "task": self.task.name,
            "metric": self.main,
            "split": "test" if self.test else "dev",
            "examples": len(reported),
            "train_examples": self.train,
            "sizes": list(sizes),
            "percentages": list(sizes.values()),
            "seeds": seeds,
            "min_steps": min_steps,
            "baseline": {"description": constant.description, "score": constant.scores.get(self.main)},
            "models": [
                {
                    "name": start.name,
                    "folder": start.settings.model,
                    "random_init": start.settings.random_init,
                    "scores": cells[start.name],
                    "labels_from_scratch": _labels_from_scratch(cells, start.name, list(sizes)),
                }
                for start in self.starts
            ],
            "settings": config.to_dict(self.starts[0].settings),
            "runs": list(rows),
        }


def _defaults(folder: Path, changes: Sequence[str]) -> tuple[str, ...]:
    """Settings of all runs; without evaluations, a learning rate that reacts to them becomes a linear one."""
    paper = finetuning_settings(str(folder), encoder_kind(changes))
    reacts = paper.get("schedule", {}).get("kind") == "reduce_on_plateau"
    return ("schedule.kind=linear", "patience=0", *DEFAULTS) if reacts else DEFAULTS


def _own_changes(name: str, names: Collection[str], changes: Sequence[str]) -> list[str]:
    """The settings of all models, and those of this one without its name."""
    own = []
    for change in changes:
        owner, _, rest = change.partition(":")
        if owner not in names:
            own.append(change)
        elif owner == name:
            own.append(rest)
    for setting, option in STUDY_OPTIONS.items():
        if any(change.partition("=")[0].strip() == setting for change in own):
            raise ConfigError(f"the study sets {setting}: pass {option}")
    return own


def _check(settings: FinetuneConfig, task: Task) -> None:
    if len(task.heads) > 1:
        raise ConfigError("a study of sample efficiency has one task: pass one --task")
    if not (task.has_split("dev") or settings.dev_fraction):
        raise ConfigError(f"{settings.name} has no dev examples: pass --dev FILE, or dev_fraction=0.1")
    refuse_distributed(settings, "sample efficiency")


def _labels_from_scratch(
    cells: Mapping[str, Sequence[Mapping[str, Any] | None]], name: str, sizes: Sequence[int]
) -> list[float | None] | None:
    """The labels that training from scratch needs for the mean score of a model at each size; None without it."""
    if name == FROM_SCRATCH or FROM_SCRATCH not in cells:
        return None
    known = [(size, cell["mean"]) for size, cell in zip(sizes, cells[FROM_SCRATCH], strict=True) if cell]
    return [None if cell is None else labels_needed(cell["mean"], known) for cell in cells[name]]


def labels_needed(score: float, curve: Sequence[tuple[int, float]]) -> float | None:
    """The smallest number of labels at which a curve of (labels, score) reaches a score; None outside its range.

    Between two sizes the score is linear in the logarithm of the number of labels.
    """
    if not curve or score < curve[0][1]:
        return None
    if score == curve[0][1]:
        return float(curve[0][0])
    for (few, low), (many, high) in pairwise(curve):
        if low < score <= high:
            share = (score - low) / (high - low)
            return few * math.exp(share * math.log(many / few))
    return None
