"""The tasks of a study: their files and settings, and what studies require of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith import config
from bertsmith.errors import ConfigError
from bertsmith.tasks.task import Example, Task
from bertsmith.training.recipe import FinetuneConfig


@dataclass(frozen=True)
class TaskSetup:
    """A task with its files, such as `{"data": FOLDER}`, and settings."""

    task: str
    files: Mapping[str, Path]
    changes: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the folder of its runs."""
        return self.task.replace("/", "-")


def task_setups(tasks: Sequence[str], data: Sequence[str], changes: Sequence[str]) -> list[TaskSetup]:
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
        setups.append(TaskSetup(task, {"data": Path(folder)}, own))
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


def labelled_test(task: Task) -> list[Example]:
    """The test examples; empty if they have no labels."""
    examples = task.examples("test") if task.has_split("test") else []
    return [] if any(example.gold is None for example in examples) else examples


def refuse_distributed(settings: FinetuneConfig, study: str) -> None:
    """Raises if the study runs in several processes of one run."""
    if settings.compute.fsdp or int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(f"a study of {study} trains each model on one device: do not use torchrun or compute.fsdp")
