"""`pretrain` and `finetune`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from bertsmith.api.corpus import ArrowData
from bertsmith.api.settings import FinetuneSettings, PathLike, RecipeSettings, python_errors

if TYPE_CHECKING:
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports.run import Run
    from bertsmith.training.recipe import FinetuneConfig, Recipe

Examples = PathLike | Iterable[Any] | ArrowData
WRITING_SECONDS = 600  # how long other ranks wait for the models of rank 0


@python_errors
def pretrain(
    recipe: str | Path | Recipe,
    data: PathLike,
    output: PathLike,
    *,
    device: str = "auto",
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    quiet: bool = False,
    **settings: Unpack[RecipeSettings],
) -> Run:
    """Pre-trains a model. The same call resumes an interrupted run exactly.

    Args:
        recipe: A name such as `"bert/base"` (see `list_recipes`), the path of a recipe.json or .toml file, or a recipe.
        data: Shards, or their folder.
        output: The run folder.
        device: `auto`, `cpu`, `cuda` or `mps`.
        overwrite: Replace a run in the folder instead of resuming it.
        trackers: Also log to `tensorboard`, `wandb` or `mlflow`.
        quiet: Do not show progress.
        **settings: Any setting of the recipe; nested ones as dicts, such as `encoder={"layers": 4}`. `start` is the
            model folder or run whose weights the run starts from.

    Example:
        >>> import bertsmith as bs
        >>> encoder = {"layers": 1, "width": 32, "heads": 2}
        >>> run = bs.pretrain("bert/tiny", "shards", "run", steps=20, batch_size=8, encoder=encoder, quiet=True)
        >>> run.state, run.steps
        ('finished', 20)
        >>> run.best
        PosixPath('run/best')
    """
    from bertsmith import recipes
    from bertsmith.reports.run import Run
    from bertsmith.training import pretrain as training
    from bertsmith.training.pretrain_data import PretrainData
    from bertsmith.training.recipe import FILES, Recipe, with_overrides
    from bertsmith.training.trackers import check_trackers

    named = recipe if isinstance(recipe, Recipe) else recipes.find(str(recipe))
    from_file = not isinstance(recipe, Recipe) and str(recipe).endswith(FILES)
    rows_per_epoch = partial(PretrainData.rows_per_epoch, Path(data))
    chosen = with_overrides(named, _plain(settings), from_file=from_file, rows_per_epoch=rows_per_epoch)
    check_trackers(trackers)
    how: dict[str, Any] = {"device": device, "overwrite": overwrite, "quiet": quiet, "trackers": tuple(trackers)}
    training.pretrain(chosen, Path(data), Path(output), **how)
    return Run(output)


@python_errors
def finetune(
    model: PathLike | Predictor,
    task: str | Mapping[str, str],
    *,
    output: PathLike,
    train: Examples | Mapping[str, Examples] | None = None,
    dev: Examples | Mapping[str, Examples] | float | None = None,
    data: PathLike | Mapping[str, PathLike] | None = None,
    learning_rates: Sequence[float] = (),
    seeds: int = 1,
    device: str = "auto",
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    quiet: bool = False,
    **settings: Unpack[FinetuneSettings],
) -> Predictor:
    """Fine-tunes a model and returns it. The same call resumes an interrupted run exactly.

    Args:
        model: A model folder, a run or a predictor, whose encoder is fine-tuned.
        task: `classification`, `multi_label`, `pairs`, `regression`, `tagging`, `qa`, `choice`, or a benchmark such as
            `glue/cola` (see `list_tasks`); or a fine-tuning recipe: a name such as `taglm/ner` (see `list_recipes`), or
            the path of a recipe.json or .toml file. Several tasks are a dict, such as
            `{"mood": "classification", "cola": "glue/cola"}`; then `train`, `dev` and `data` may be dicts too, and the
            heads are `classify-mood` and `classify-cola`.
        output: The run folder.
        train: Training examples: a file, or rows in memory: dicts, tuples such as `(text, label)`, a pandas DataFrame,
            an Arrow table, a dataset, or a dict of columns. Rows in memory are saved in the run folder.
        dev: Examples that select the best model, likewise; or the fraction of `train` to use for that, such as 0.1.
        data: The folder of a benchmark, or one with files called train, dev and test.
        learning_rates: Learning rates to try; the best on dev is kept.
        seeds: Runs with different seeds per learning rate.
        device: `auto`, `cpu`, `cuda` or `mps`.
        overwrite: Replace a run in the folder instead of resuming it.
        trackers: Also log to `tensorboard`, `wandb` or `mlflow`.
        quiet: Do not show progress.
        **settings: Any setting of fine-tuning, such as `epochs=3`; those of the task as a dict, such as
            `task_settings={"text": "review"}`.

    Returns:
        The best model, or the last one without dev examples; its `run` has scores and history.

    Example:
        >>> import bertsmith as bs
        >>> rows = [("good iron", "positive"), ("bad iron", "negative")] * 20
        >>> examples = {"train": rows, "dev": rows[:2]}
        >>> model = bs.finetune("run", "classification", **examples, output="reviews", epochs=1, quiet=True)
        >>> [one["label"] in ("positive", "negative") for one in model.predict(["good iron"])]
        [True]
        >>> sorted(model.run.scores)
        ['accuracy', 'f1', 'macro_f1', 'matthews']
    """
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports.run import Run
    from bertsmith.training.finetune import finetune as train_once
    from bertsmith.training.sweep import sweep
    from bertsmith.training.trackers import check_trackers

    check_trackers(trackers)
    examples = {"train": train, "dev": dev, "data": data}
    several = bool(learning_rates) or seeds > 1
    config = _finetune_config(model, task, examples, Path(output), settings, overwrite=overwrite, several=several)
    how: dict[str, Any] = {"device": device, "overwrite": overwrite, "quiet": quiet, "trackers": tuple(trackers)}
    run = Path(output)
    if several:
        rates = [*learning_rates] or [config.learning_rate]
        run = Path(sweep(config, run, learning_rates=rates, seeds=seeds, **how)["kept"]["run"])
    else:
        train_once(config, run, **how)
    _wait_for_first_rank(run)
    opened = Run(run)
    return Predictor.open(opened.best, device=device, run=opened)


def _wait_for_first_rank(run: Path) -> None:
    """In a distributed run, waits until rank 0 has written the models."""
    until = time.monotonic() + WRITING_SECONDS
    while os.environ.get("RANK", "0") != "0" and not (run / "last").is_dir() and time.monotonic() < until:
        time.sleep(0.1)


def _finetune_config(
    model: PathLike | Predictor,
    task: str | Mapping[str, str],
    data: dict[str, Any],
    output: Path,
    settings: FinetuneSettings,
    *,
    overwrite: bool,
    several: bool,
) -> FinetuneConfig:
    from bertsmith import recipes
    from bertsmith.model_io.run_folder import DATA, refuse_other_folders
    from bertsmith.training.recipe import make_finetune_config

    changes, folder = _plain(settings), model_folder(model)
    changes["task"] = changes.pop("task_settings", {})
    if isinstance(data["dev"], int | float):
        changes["dev_fraction"] = float(data.pop("dev"))
    kind = (recipes.find_finetuning(task) if isinstance(task, str) else None) or task
    chosen = make_finetune_config(kind, folder, {}, changes).task
    refuse_other_folders(output, several=several)
    given = {name: (value, chosen) for name, value in data.items() if value is not None}
    names = set() if isinstance(task, str) else set(task)
    for split, (value, _) in list(given.items()):
        if names and isinstance(value, Mapping) and value.keys() <= names:
            del given[split]
            given |= {f"{name}.{split}": (own, chosen.tasks[name]) for name, own in value.items()}
    files = {
        name: save_examples(value, own, name, output / DATA, overwrite=overwrite)
        for name, (value, own) in given.items()
    }
    return make_finetune_config(kind, folder, files, changes)


def save_examples(data: Any, task: Any, split: str, folder: Path, *, overwrite: bool = False) -> Path:
    """The path of a file, or of the rows in memory written as JSON lines to `folder`/`split`.jsonl."""
    from bertsmith.data.in_memory import json_rows
    from bertsmith.errors import ConfigError
    from bertsmith.model_io.run_folder import RECIPE
    from bertsmith.system.durable import Disk
    from bertsmith.training.recipe import task_name

    if isinstance(data, str | os.PathLike):
        return Path(data)
    columns = {len(names): names for names in getattr(task, "tuple_columns", ())}
    if not columns:
        raise ConfigError(f"{task_name(task)} reads the files of its benchmark: pass data=FOLDER")
    path, rows = folder / f"{split}.jsonl", list(json_rows(data, columns, split))
    if not overwrite and (folder.parent / RECIPE).exists() and path.exists() and path.read_bytes() != b"".join(rows):
        raise ConfigError(
            f"{folder.parent} holds a run on other {split} examples: choose another output, or pass overwrite=True"
        )
    Disk().make_folder(folder)
    Disk().write_file(path, rows)
    return path


def model_folder(model: PathLike | Predictor) -> Path:
    """The folder of a model: the path, that of a run, or the one that a predictor was loaded from."""
    from bertsmith.errors import BertsmithError
    from bertsmith.model_io.run_folder import find_model_folder

    if isinstance(model, str | os.PathLike):
        return find_model_folder(Path(model))
    if model.facts is None:
        raise BertsmithError("the predictor was not loaded from a folder: save it first, and pass the folder")
    return model.facts.folder


def _plain(settings: Any) -> dict[str, Any]:
    """Keyword settings; models and paths become strings."""
    folders = {name: str(model_folder(settings[name])) for name in ("start", "tokenizer") if name in settings}
    files = {"vectors": os.fspath(settings["vectors"])} if "vectors" in settings else {}
    return {**settings, **folders, **files}
