"""`compare`: pre-trains several recipes on the same data and writes one page about all of them."""

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
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretrain_data import PretrainData, check_model
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
    """Pre-trains each recipe in a folder of its name and returns the folders; finished runs are not repeated.

    All recipes are checked before the first run starts. `jobs` of them run at a time, each in a silent process of its
    own: one compiles while another one trains. `say` gets a line for each run when it starts, or with several jobs when
    it is done.
    """
    output, opened = Path(output), PretrainData.open(data)
    folders = {name: output / folder_name(name) for name in recipes}
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"two of these have the same folder name: {', '.join(recipes)}: give one of them a name=…")
    if jobs > 1:
        _check_minutes(recipes)
    _check_models(recipes)
    pending: dict[str, RecipeRun] = {}
    for name, recipe in recipes.items():
        if is_finished(folders[name], opened.with_vocabulary(recipe)):
            say(f"{_position(name, recipes)} is finished")
        else:
            pending[name] = RecipeRun(recipe, Path(data), folders[name], device, quiet or jobs > 1)
    with closing(
        ordered_map(_pretrain, pending.values(), workers=min(jobs, len(pending) or 1), timeout=RUN_TIMEOUT)
    ) as done:
        for name in pending:
            if jobs == 1:
                say(_position(name, recipes))
            next(done)
            if jobs > 1:
                say(f"{_position(name, recipes)}: done")
    write_report(list(folders.values()), output / PAGE)
    return list(folders.values())


@dataclass(frozen=True)
class RecipeRun:
    """One run; can be pickled."""

    recipe: Recipe
    data: Path
    folder: Path
    device: str
    quiet: bool


def _pretrain(run: RecipeRun) -> None:
    torch.compiler.reset()  # graphs of the previous model are not needed any more
    pretrain(run.recipe, run.data, run.folder, device=run.device, quiet=run.quiet)


def _position(name: str, recipes: Mapping[str, Recipe]) -> str:
    return f"{list(recipes).index(name) + 1} of {len(recipes)}: {name}"


def _check_minutes(recipes: Mapping[str, Recipe]) -> None:
    """Parallel runs slow each other down: minutes would not be comparable."""
    timed = next((name for name, recipe in recipes.items() if recipe.minutes), None)
    if timed is not None:
        raise ConfigError(
            f"{timed} sets minutes, and parallel jobs would share that time: set minutes=0 and steps, or --jobs 1"
        )


def _check_models(recipes: Mapping[str, Recipe]) -> None:
    """Raises before the first run starts where encoder and objectives cannot be combined."""
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
    chosen: dict[str, Recipe] = {}
    for word in named:
        name, *changes = _split_overrides(word)
        chosen[word] = with_overrides(find(name), [*shared, *changes])
    return chosen


def folder_name(word: str) -> str:
    """`bert/mini,learning_rate=1e-3` -> `bert-mini-learning_rate=1e-3`, or its own `name=…`."""
    names = [change.partition("=")[2] for change in _split_overrides(word)[1:] if change.startswith("name=")]
    candidates = (re.sub(r"[^\w.=+-]+", "-", name).strip("-.") for name in (*names[::-1], word))
    return next(filter(None, candidates), "")


def _split_overrides(word: str) -> list[str]:
    return re.split(r",(?=[\w.]+=)", word)
