"""The model folder of a run: wherever a command or a function takes a model, it also takes a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bertsmith.errors import ConfigError, DataError
from bertsmith.system.durable import PARTIAL

MODELS = ("best", "last")  # model folders of a run, in order of preference
RECIPE = "recipe.json"
OWN_FILES = ("config.json", "modules.json", "tokenizer.json", "vocab.txt")  # of model and tokenizer folders

DATA = "data"  # folder of a run with its examples, if they were passed in memory
RUN_PARTS = {RECIPE, "events.jsonl", "checkpoints", *MODELS}
OTHER_KINDS = {"config.json": "a model folder", "tokenizer.json": "a tokenizer", "train-*.shard": "a shard set"}


def find_model_folder(path: str | Path) -> Path:
    """The path itself, or for a run folder its best model, else its last one; an error for a run without a model."""
    folder = Path(path)
    if any(os.path.lexists(folder / name) for name in OWN_FILES):
        return folder
    for name in MODELS:
        if (folder / name).is_dir():
            return folder / name
    if (folder / RECIPE).is_file():
        raise DataError(f"{folder} is a run without a model: resume it with the command that started it")
    return folder


def model_name(folder: str | Path) -> str:
    """The name of a model folder; for the model of a run that of the run: `a` for `runs/a/best`."""
    folder = Path(folder)
    return folder.parent.name if folder.name in MODELS and folder.parent.name else folder.name


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """The names of model folders; the path of those with the same name, numbered where a folder occurs again."""
    names = [model_name(folder) for folder in folders]
    names = [str(folder) if names.count(name) > 1 else name for folder, name in zip(folders, names, strict=True)]
    before = [names[:number].count(name) for number, name in enumerate(names)]
    return [f"{name} ({count + 1})" if count else name for name, count in zip(names, before, strict=True)]


def _holds_runs(folder: Path) -> bool:
    return any((one / part).exists() for one in folder.iterdir() for part in RUN_PARTS)


def refuse_other_folders(folder: Path, *, several: bool = False) -> None:
    """An error where a new run, or `several` in folders of their own, would write into another kind of folder."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file, not a folder: choose another -o")
    names = sorted(path.name for path in folder.glob("[!.]*") if path.suffix != PARTIAL and path.name != DATA)
    if not names or (_holds_runs(folder) if several else RUN_PARTS & set(names)):
        return
    for pattern, kind in OTHER_KINDS.items():
        if any(folder.glob(pattern)):
            raise ConfigError(f"{folder} is {kind}, not a run folder: choose another -o")
    raise ConfigError(f"{folder} holds other files, such as {names[0]}: choose another -o")
