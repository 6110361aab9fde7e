"""A model in a task: its fine-tuning runs, their scores, and its predictions for a few examples."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertsmith import config, recipes
from bertsmith.errors import (
    BertsmithError,
    ConfigError,
    DataError,
    PeerLostError,
    StoppedError,
    StorageError,
    UnknownWordsWarning,
)
from bertsmith.evaluation.evaluator import make_evaluation_config, open_evaluator
from bertsmith.evaluation.tables import baseline
from bertsmith.metrics.confidence import summarize_seeds
from bertsmith.objectives.objective import objective_class
from bertsmith.reports.run_history import is_finished, read_run
from bertsmith.studies.lineage.models import STAGES, LineageModel
from bertsmith.studies.lineage.pretraining import model_of, weights_fingerprint
from bertsmith.studies.lineage.settings import PRETRAIN, TASKS, LineageConfig, is_part_finished
from bertsmith.studies.stored_results import plain, read_result, write_result
from bertsmith.studies.task_setup import TaskSetup
from bertsmith.system.durable import Disk, checksummed_json, read_checksummed_json
from bertsmith.tasks.task import Example
from bertsmith.training.finetune import finetune
from bertsmith.training.finetune_data import build_task, dev_examples
from bertsmith.training.recipe import FinetuneConfig, make_finetune_config
from bertsmith.training.run import recipe_changes, remove_run, with_saved_precision
from bertsmith.training.sweep import BEST, best_scores, remove_run_files

SCORES, REASON = "scores.json", "reason.json"
SHOWN = 5  # examples whose predictions are shown
LONGEST = 300  # characters of a text that is shown
NOT_A_REASON = (StoppedError, StorageError, PeerLostError)  # errors that end the study


@dataclass(frozen=True)
class TaskFacts:
    """A task of the study: what the table says about it."""

    name: str
    metric: str
    train_examples: int
    dev_examples: int
    baseline: dict[str, Any]  # without a model
    shown: list[dict[str, Any]]  # the first dev examples
    digest: str  # of the training and dev examples
    tags: bool  # whether it tags words


def task_facts(setup: TaskSetup, of_rows: Sequence[str] = ()) -> TaskFacts:
    """Reads the examples of a task, so that errors in its name, files or settings are raised before any training.

    `of_rows`: changes of single models; it is checked that they name settings.
    """
    for change in _of_the_task(of_rows):
        make_finetune_config(setup.task, "", setup.files, [change])
    settings = make_finetune_config(setup.task, "", setup.files, _of_the_task(setup.changes))
    task = build_task(settings)
    if len(task.heads) > 1:
        raise ConfigError(f"{setup.task} has several tasks: name them one by one")
    if not (task.has_split("dev") or settings.dev_fraction):
        raise ConfigError(f"{setup.task} has no dev examples: pass --set {setup.task}:dev_fraction=0.1")
    train = task.examples("train")
    dev = dev_examples(settings, task)
    if not train or not dev:
        raise DataError(f"{setup.task} has {len(train)} training and {len(dev)} dev examples: it needs both")
    without = baseline(task, dev)
    facts = {"description": without.description, "score": without.scores.get(task.main_metric)}
    shown = [{"text": _shown_texts(example), "gold": shown_value(example.gold, example)} for example in dev[:SHOWN]]
    tags = objective_class(task.objective).pipeline == "token-classification"
    digest = hashlib.sha256(repr([(one.texts, one.gold) for one in (*train, *dev)]).encode("utf-8", "replace"))
    return TaskFacts(setup.task, task.main_metric, len(train), len(dev), facts, shown, digest.hexdigest()[:16], tags)


def _of_the_task(changes: Sequence[str]) -> list[str]:
    """Without settings of the head and of the encoder, which depend on the model."""
    return [change for change in changes if not change.startswith(("head.", "encoder."))]


@dataclass(frozen=True)
class TaskRun:
    """One fine-tuning run; can be pickled."""

    settings: FinetuneConfig
    folder: Path
    fingerprints: str  # of the data and of the weights that it starts from
    device: str = "auto"
    keep: bool = False

    def __str__(self) -> str:
        return f"learning rate {self.settings.learning_rate:g}, seed {self.settings.seed}"

    @property
    def key(self) -> dict[str, Any]:
        """What its result depends on; folders are not in it, so that studies and data may be moved."""
        settings = config.to_dict(self.settings)
        settings["encoder"] = {name: value for name, value in settings["encoder"].items() if name != "features"}
        kept = {name: value for name, value in settings.items() if name not in ("model", "files")}
        found: dict[str, Any] = plain({"settings": kept, "fingerprints": self.fingerprints})
        return found

    def result(self) -> dict[str, Any] | None:
        """The stored result; None if the run is not finished."""
        return read_result(self.folder / SCORES, self.key)

    def reason(self) -> str:
        """Why the last attempt failed; empty if it did not."""
        path = self.folder / REASON
        return str(read_checksummed_json(path)["reason"]) if path.is_file() else ""

    def run(self, *, quiet: bool = True) -> dict[str, Any]:
        """Scores, predictions and costs; a reason instead if the model cannot do the task. Its model is removed."""
        found = self.result()
        if found is None:
            self._refuse_other_settings()
            try:
                found = self._train(quiet=quiet)
            except NOT_A_REASON:
                raise
            except BertsmithError as error:
                Disk().make_folder(self.folder)
                Disk().write_file(self.folder / REASON, [checksummed_json({"reason": str(error)})])
                return {"reason": str(error)}
            write_result(self.folder / SCORES, self.key, found)
        if not self.keep:
            remove_run_files(self.folder, BEST)
        return found

    def _refuse_other_settings(self) -> None:
        """Raises if a finished run has other settings; an error in `_train` would be stored instead of a score."""
        changes = recipe_changes(self.folder, with_saved_precision(self.settings, self.folder))
        if changes and read_run(self.folder).finish:
            raise ConfigError(
                f"{self.folder} holds a finished run with other settings: choose another -o, or remove that folder"
            )

    def _train(self, *, quiet: bool) -> dict[str, Any]:
        outdated = not (self.folder / BEST).is_dir() or (self.folder / SCORES).is_file()
        if is_finished(self.folder, self.settings) and outdated:
            remove_run(self.folder, self.settings)  # without its model, or from other weights
        torch.compiler.reset()  # graphs of the run before are not needed any more
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnknownWordsWarning)
            finetune(self.settings, self.folder, device=self.device, quiet=quiet, lean=True)
            run = read_run(self.folder)
            scores = best_scores(run, run.main_metric.removeprefix("score/"))
            shown = self._predictions()
        facts = {"steps": run.steps, "seconds": run.finish["seconds"], "tokens": run.finish["tokens"]}
        return {"scores": scores, "main": run.main_metric.removeprefix("score/"), "shown": shown, **facts}

    def _predictions(self) -> list[str]:
        """Those for the first dev examples."""
        files = {split: Path(path) for split, path in self.settings.files.items()}
        opened = open_evaluator(
            make_evaluation_config(self.settings, ""), self.folder / BEST, files, device=self.device
        )
        task = build_task(self.settings)
        examples = dev_examples(self.settings, task)[:SHOWN]
        predictions = opened.chunk(examples).predictions
        return [shown_value(one.value, example) for one, example in zip(predictions, examples, strict=True)]


@dataclass(frozen=True)
class Cell:
    """A model on a task: a cell of the table."""

    row: str
    setup: TaskSetup
    runs: tuple[TaskRun, ...]
    reason: str = ""  # why there are no runs

    def summary(self) -> dict[str, Any] | None:
        """The scores of the best learning rate over the seeds, or why there are none; None until all runs are over."""
        results = [run.result() for run in self.runs]
        done = [result for result in results if result is not None]
        if self.reason or not done or len(done) < len(results):
            reason = self.reason or next((text for run in self.runs if (text := run.reason())), "")
            return {"reason": reason} if reason else None
        main = done[0]["main"]
        rates = dict.fromkeys(run.settings.learning_rate for run in self.runs)
        by_rate = {
            rate: [one for run, one in zip(self.runs, done, strict=True) if run.settings.learning_rate == rate]
            for rate in rates
        }
        means = {rate: summarize_seeds([one["scores"][main] for one in some]) for rate, some in by_rate.items()}
        best = max(means, key=lambda rate: means[rate].mean)
        chosen = by_rate[best]
        return {
            "metric": main,
            "score": asdict(means[best]),
            "learning_rate": best,
            "scores": [one["scores"] for one in chosen],
            "seconds": sum(one["seconds"] for one in chosen) / len(chosen),
            "steps": chosen[0]["steps"],
            "shown": chosen[0]["shown"],
            **self.runs[0].key,
        }


def cell_of(study: LineageConfig, row: str, model: LineageModel, setup: TaskSetup, facts: TaskFacts) -> Cell:
    """The runs of a model on a task."""
    folder = study.folder(TASKS, row) / setup.folder
    stages = [model.stage, *model.features]
    if not all(is_part_finished(study.folder(PRETRAIN, stage)) for stage in stages):
        return Cell(row, setup, ())
    try:
        settings = _settings(study, row, model, setup, tags=facts.tags)
    except NOT_A_REASON:
        raise
    except BertsmithError as error:
        return Cell(row, setup, (), str(error))
    weights = [weights_fingerprint(model_of(study, stage)) for stage in stages]
    runs = [
        TaskRun(
            replace(settings, learning_rate=rate, seed=study.seed + number),
            folder / f"lr-{rate:g}-seed-{study.seed + number}",
            " ".join([facts.digest, *weights]),
            study.device,
            study.keep,
        )
        for rate in study.learning_rates or (settings.learning_rate,)
        for number in range(study.seeds)
    ]
    return Cell(row, setup, tuple(runs))


def _settings(study: LineageConfig, row: str, model: LineageModel, setup: TaskSetup, *, tags: bool) -> FinetuneConfig:
    """The model's settings, then those of the user for this task and for this model."""
    changes = [*model.tuning]
    if model.features:
        changes.append(f"encoder.features={json.dumps([str(model_of(study, one)) for one in model.features])}")
    changes += model.tagging if tags else ()
    changes += [f"learning_rate={model.learning_rate[study.size]:g}"] if model.learning_rate else []
    changes += [*setup.changes, *study.tuning(row)]
    encoder = config.to_dict(recipes.find(STAGES[study.size][model.stage].recipe))["encoder"]["kind"]
    folder = model_of(study, model.stage)
    return make_finetune_config(setup.task, folder, setup.files, changes, encoder=encoder)


def _shown_texts(example: Example) -> str:
    text = " | ".join(example.texts)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def shown_value(value: Any, example: Example) -> str:
    """A label or prediction as text; of tagged words only those that are in an entity."""
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, list | tuple) and example.spans and len(value) == len(example.spans):
        words = (example.texts[0][start:end] for start, end in example.spans)
        tagged = [f"{word}/{tag}" for word, tag in zip(words, value, strict=True) if tag != "O"]
        return " ".join(tagged) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return str(value)
