"""`compare`: several recipes on the same data, one after the other, then one table and one page of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from bertsmith.errors import ConfigError
from bertsmith.pretraining import pretrain
from bertsmith.pretraining.parts import Data
from bertsmith.recipe import Recipe, with_overrides
from bertsmith.runs.history import is_finished
from bertsmith.runs.report import write_report

PAGE = "compare.html"


def compare(
    recipes: Mapping[str, Recipe],
    data: str | Path,
    output: str | Path,
    *,
    device: str = "auto",
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Pre-trains each recipe in a folder of its name and returns the folders; what is finished is not done again.

    `say` is told, in words, what is about to be done.
    """
    output, opened = Path(output), Data.open(data)
    folders = {name: output / folder_name(name) for name in recipes}
    if len(set(folders.values())) < len(folders):
        raise ConfigError(f"two of these come to one folder: {', '.join(recipes)}: give one of them another name=…")
    for number, (name, recipe) in enumerate(recipes.items(), start=1):
        folder = folders[name]
        if is_finished(folder, opened.complete(recipe)):
            say(f"{number} of {len(recipes)}: {name} is finished")
            continue
        say(f"{number} of {len(recipes)}: {name}")
        torch.compiler.reset()  # graphs of the model before would only be in the way
        pretrain(recipe, data, folder, device=device, quiet=quiet)
    write_report(list(folders.values()), output / PAGE)
    return list(folders.values())


def chosen_recipes(words: Sequence[str], find: Callable[[str], Recipe]) -> dict[str, Recipe]:
    """Recipes by what they were called: `bert/mini bert/mini,plan.rate=1e-3 rows.full=64`, the last for all of them."""
    named = [word for word in words if "=" not in word.partition(",")[0]]
    shared = [word for word in words if word not in named]
    if not named:
        raise ConfigError("compare needs at least one recipe, such as bert/mini")
    found: dict[str, Recipe] = {}
    for word in named:
        name, *changes = re.split(r",(?=[\w.]+=)", word)
        found[word] = with_overrides(find(name), [*shared, *changes])
    return found


def folder_name(name: str) -> str:
    """`bert/mini,plan.rate=1e-3` -> `bert-mini-plan.rate=1e-3`."""
    return re.sub(r"[^\w.=+-]+", "-", name).strip("-.")
