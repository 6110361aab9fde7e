"""Named recipes. A file is a family.

`RECIPES` maps the names of its pre-training recipes to a one-line description and a function that builds it, and
`FINETUNING` those of its fine-tuning recipes.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith import config
from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import FILES, FinetuneConfig, Recipe
from bertsmith.training.start import with_shape

RUN_RECIPE = "recipe.json"  # of a run folder
RECIPES, FINETUNING = "RECIPES", "FINETUNING"  # of a family


def names() -> list[str]:
    """Every pre-training recipe, as `family/recipe`."""
    return _names(RECIPES)


def finetuning_names() -> list[str]:
    """Every fine-tuning recipe, as `family/recipe`."""
    return _names(FINETUNING)


def find(name: str) -> Recipe:
    """The pre-training recipe of that name, or in that JSON or TOML file."""
    if name.endswith(FILES):
        return config.read_file(Recipe, Path(name), complete=partial(_complete, name))
    if name in finetuning_names():
        raise _for_finetuning(name)
    known = names()
    if name not in known:
        raise _unknown(name, [*known, *finetuning_names()])
    recipe: Recipe = _entry(RECIPES, name)[1]()
    return replace(recipe, name=name)


def find_finetuning(name: str) -> FinetuneConfig | None:
    """The fine-tuning recipe of that name; None for the name of a task or a file."""
    known = finetuning_names()
    if name in known:
        recipe: FinetuneConfig = _entry(FINETUNING, name)[1]()
        return recipe
    family = name.partition("/")[0]
    if name.endswith(FILES) or family not in {one.partition("/")[0] for one in known}:
        return None
    raise _unknown(name, known)


def about(name: str) -> str:
    """The recipe of that name in one line."""
    kind = FINETUNING if name in finetuning_names() else RECIPES
    return str(_entry(kind, name)[0])


def _complete(path: str, data: Any) -> Any:
    if isinstance(data, dict) and "task" in data and "objectives" not in data:
        raise _for_finetuning(path)
    return with_shape(data)


def _for_finetuning(name: str) -> ConfigError:
    return ConfigError(f"{name} is a fine-tuning recipe: use it with bertsmith finetune MODEL -t {name}")


def _unknown(name: str, known: list[str]) -> ConfigError:
    """The error for a name that is not a recipe: the file or the recipe that was probably meant."""
    if Path(name, RUN_RECIPE).is_file():
        return ConfigError(f"{name} is a run folder, not a recipe: pass its recipe, {Path(name, RUN_RECIPE)}")
    near = did_you_mean(f"{name}/base" if f"{name}/base" in known else name, known)
    return ConfigError(f"{name} is not a recipe: `bertsmith init` lists all recipes{near}")


def _names(kind: str) -> list[str]:
    families = [module.name for module in pkgutil.iter_modules(__path__)]
    return [f"{family}/{name}" for family in families for name in _family(family, kind)]


def _entry(kind: str, name: str) -> tuple[str, Callable[[], Any]]:
    family, _, short = name.partition("/")
    return _family(family, kind)[short]


def _family(name: str, kind: str) -> dict[str, tuple[str, Callable[[], Any]]]:
    recipes: dict[str, tuple[str, Callable[[], Any]]] = getattr(importlib.import_module(f"{__name__}.{name}"), kind, {})
    return recipes
