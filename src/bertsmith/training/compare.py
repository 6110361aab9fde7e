"""`compare`: pre-trains several recipes on the same data and writes one page about all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from bertsmith.errors import ConfigError
from bertsmith.model_io.run_folder import refuse_other_folders
from bertsmith.reports.report_page import write_report
from bertsmith.reports.run_history import is_finished
from bertsmith.system.workers import RUN_TIMEOUT, ordered_map
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretrain_data import PretrainData, meta_model
from bertsmith.training.recipe import FILES, Recipe, with_overrides
from bertsmith.training.run import advise_removal

PAGE = "compare.html"


@advise_removal()
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
    _check(recipes, parallel=jobs > 1)
    refuse_other_folders(output, several=True)
    title = {name: f"{number} of {len(recipes)}: {name}" for number, name in enumerate(recipes, start=1)}
    pending: dict[str, tuple[Recipe, Path]] = {}
    for name, recipe in recipes.items():
        if is_finished(folders[name], opened.with_vocabulary(recipe)):
            say(f"{title[name]} is finished")
        else:
            pending[name] = recipe, folders[name]
    train = partial(_pretrain, data=Path(data), device=device, quiet=quiet or jobs > 1)
    workers = min(jobs, len(pending) or 1)
    with closing(ordered_map(train, pending.values(), workers=workers, timeout=RUN_TIMEOUT)) as done:
        for name in pending:
            if jobs == 1:
                say(title[name])
            next(done)
            if jobs > 1:
                say(f"{title[name]}: done")
    write_report(list(folders.values()), output / PAGE)
    return list(folders.values())


def _pretrain(run: tuple[Recipe, Path], *, data: Path, device: str, quiet: bool) -> None:
    torch.compiler.reset()  # graphs of the previous model are not needed any more
    recipe, folder = run
    pretrain(recipe, data, folder, device=device, quiet=quiet)


def _check(recipes: Mapping[str, Recipe], *, parallel: bool) -> None:
    """Raises where minutes would not be comparable, or where encoder and objectives cannot be combined."""
    for name, recipe in recipes.items():
        if parallel and recipe.minutes:
            raise ConfigError(
                f"{name} sets minutes, and parallel jobs would share that time: set steps=10000 instead, or --jobs 1"
            )
    for name, recipe in recipes.items():
        try:
            meta_model(recipe)
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
        chosen[word] = with_overrides(find(name), [*shared, *changes], from_file=name.endswith(FILES))
    return chosen


def folder_name(word: str) -> str:
    """`bert/mini,learning_rate=1e-3` -> `bert-mini-learning_rate=1e-3`, or its own `name=…`."""
    names = [change.removeprefix("name=") for change in _split_overrides(word)[1:] if change.startswith("name=")]
    candidates = (re.sub(r"[^\w.=+-]+", "-", name).strip("-.") for name in (*names[::-1], word))
    return next(filter(None, candidates), "")


def _split_overrides(word: str) -> list[str]:
    return re.split(r",(?=[\w.]+=)", word)
