"""The tasks of a fine-tuning run and their files as the command line names them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertsmith.errors import ConfigError, DataError
from bertsmith.training.recipe import FILES


def named_tasks(tasks: Sequence[str]) -> str | dict[str, str]:
    """The task of the command line, or several by name: `mood=classification`, or the last part of their own name."""
    split = [
        (name, task) if task else (name.partition("/")[0] if "." in name else name.rpartition("/")[2], name)
        for name, _, task in (one.partition("=") for one in tasks)
    ]
    if len(tasks) == 1:
        return tasks[0] if tasks[0].endswith(FILES) else split[0][1]
    named = dict(split)
    if wrong := [name for name in named if not re.fullmatch(r"\w[\w-]*", name)]:
        raise ConfigError(f"--task {wrong[0]}: the name of one of several tasks has letters, digits, _ and - only")
    if len(named) < len(split):
        name, task = next(pair for number, pair in enumerate(split) if pair[0] in dict(split[:number]))
        raise ConfigError(f"two tasks are called {name}: name them, such as --task first={task} --task second={task}")
    return named


def named_files(tasks: str | Mapping[str, str], paths: Mapping[str, Sequence[str] | None]) -> dict[str, str]:
    """The files by split, those of one of several tasks as `NAME.split`; for a single task the last ones count."""
    files: dict[str, str] = {}
    for option, values in paths.items():
        for value in values or ():
            name, _, path = value.partition("=")
            own = not isinstance(tasks, str) and name in tasks
            key = f"{name}.{option}" if own else option
            if key in files and not isinstance(tasks, str):
                found = f"--{option} {value}: there is already --{option} {files[key]}"
                raise ConfigError(f"{found}: with several tasks, write --{option} NAME={value}")
            files[key] = path if own else value
    return files


def check_recipe_files(recipe: str, files: Mapping[str, str]) -> None:
    """Raises where a file that a recipe names does not exist, such as a relative path seen from another folder."""
    for name, path in files.items():
        task, _, option = name.rpartition(".")
        if option in ("train", "dev", "data") and not Path(path).exists():
            value = f"{task}={'DIR' if option == 'data' else 'FILE'}".lstrip("=")
            raise DataError(
                f"{path}, files.{name} of {recipe}, does not exist here: pass --{option} {value}, or run this command "
                "in the folder where its paths start"
            )
