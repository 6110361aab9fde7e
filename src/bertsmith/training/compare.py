"""`compare`: several recipes on the same data, some at a time, then one table and one page of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from bertsmith.errors import ConfigError
from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import is_finished
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.training.pretraining import pretrain
from bertsmith.training.pretraining.parts import PretrainData, check_model
from bertsmith.training.recipe import Recipe, with_overrides

PAGE = "compare.html"


def compare(
    recipes: Mapping[str, Recipe],
    data: str | Path,
    output: str | Path,
    *,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Pre-trains each recipe in a folder of its name and returns the folders; what is finished is not done again.

    All recipes are looked at before the first is begun. `jobs` of them at a time, each in a process of its own, which
    then tell nothing of their progress: one compiles while another one learns. `say` is told, in words, what is about
    to be done, or with several jobs what was.
    """
    output, opened = Path(output), PretrainData.open(data)
    folders = {name: output / folder_name(name) for name in recipes}
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"two of these come to one folder: {', '.join(recipes)}: give one of them another name=…")
    if jobs > 1:
        _check_plans(recipes)
    _check_models(recipes)
    left: dict[str, Work] = {}
    for name, recipe in recipes.items():
        if is_finished(folders[name], opened.with_vocabulary(recipe)):
            say(f"{_place(name, recipes)} is finished")
        else:
            left[name] = Work(recipe, Path(data), folders[name], device, quiet or jobs > 1)
    with closing(ordered_map(_worked, left.values(), workers=min(jobs, len(left) or 1), patience=RUN_TIMEOUT)) as done:
        for name in left:
            if jobs == 1:
                say(_place(name, recipes))
            next(done)
            if jobs > 1:
                say(f"{_place(name, recipes)}: done")
    write_report(list(folders.values()), output / PAGE)
    return list(folders.values())


@dataclass(frozen=True)
class Work:
    """One run, in a form that travels to another process."""

    recipe: Recipe
    data: Path
    folder: Path
    device: str
    quiet: bool


def _worked(work: Work) -> None:
    torch.compiler.reset()  # graphs of the model before would only be in the way
    pretrain(work.recipe, work.data, work.folder, device=work.device, quiet=work.quiet)


def _place(name: str, recipes: Mapping[str, Recipe]) -> str:
    return f"{list(recipes).index(name) + 1} of {len(recipes)}: {name}"


def _check_plans(recipes: Mapping[str, Recipe]) -> None:
    """Runs beside each other take time from each other: minutes would not be the same for all."""
    timed = next((name for name, recipe in recipes.items() if recipe.minutes), None)
    if timed is not None:
        raise ConfigError(
            f"{timed} sets minutes, and parallel jobs would share that time: set minutes=0 and steps, or --jobs 1"
        )


def _check_models(recipes: Mapping[str, Recipe]) -> None:
    """What does not go together is said now, not when the runs before it are done."""
    for name, recipe in recipes.items():
        try:
            check_model(recipe)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error


def chosen_recipes(words: Sequence[str], find: Callable[[str], Recipe]) -> dict[str, Recipe]:
    """Recipes by name: `bert/mini bert/mini,learning_rate=1e-3 batch_size=64`, the last for all of them."""
    named = [word for word in words if "=" not in word.partition(",")[0]]
    shared = [word for word in words if word not in named]
    if not named:
        raise ConfigError("compare needs at least one recipe, such as bert/mini")
    found: dict[str, Recipe] = {}
    for word in named:
        name, *changes = _parted(word)
        found[word] = with_overrides(find(name), [*shared, *changes])
    return found


def folder_name(word: str) -> str:
    """`bert/mini,learning_rate=1e-3` -> `bert-mini-learning_rate=1e-3`, or what its own `name=…` says."""
    names = [change.partition("=")[2] for change in _parted(word)[1:] if change.startswith("name=")]
    found = (re.sub(r"[^\w.=+-]+", "-", name).strip("-.") for name in (*names[::-1], word))
    return next(filter(None, found), "")


def _parted(word: str) -> list[str]:
    return re.split(r",(?=[\w.]+=)", word)
