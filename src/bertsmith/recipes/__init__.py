"""Named recipes. A file is a family: `RECIPES` maps a name to a one-line description and a function that builds it."""

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
from bertsmith.training.recipe import FILES, Recipe
from bertsmith.training.start import with_shape

RUN_RECIPE = "recipe.json"  # of a run folder


def names() -> list[str]:
    """Every recipe, as `family/recipe`."""
    families = [module.name for module in pkgutil.iter_modules(__path__)]
    return [f"{family}/{name}" for family in families for name in _family(family)]


def find(name: str) -> Recipe:
    """The recipe of that name, or in that JSON or TOML file."""
    if name.endswith(FILES):
        return config.read_file(Recipe, Path(name), complete=partial(_complete, name))
    known = names()
    if name not in known:
        raise _unknown(name, known)
    family, _, short = name.partition("/")
    return replace(_family(family)[short][1](), name=name)


def _complete(path: str, data: Any) -> Any:
    if isinstance(data, dict) and "task" in data and "objectives" not in data:
        raise ConfigError(f"{path} is a fine-tuning recipe: use it with bertsmith finetune MODEL -t {path}")
    return with_shape(data)


def _unknown(name: str, known: list[str]) -> ConfigError:
    """The error for a name that is not a recipe: the file or the recipe that was probably meant."""
    if Path(name, RUN_RECIPE).is_file():
        return ConfigError(f"{name} is a run folder, not a recipe: pass its recipe, {Path(name, RUN_RECIPE)}")
    near = did_you_mean(f"{name}/base" if f"{name}/base" in known else name, known)
    return ConfigError(f"{name} is not a recipe: `bertsmith init` lists all recipes{near}")


def about(name: str) -> str:
    """The recipe of that name in one line."""
    family, _, short = name.partition("/")
    return _family(family)[short][0]


def _family(name: str) -> dict[str, tuple[str, Callable[[], Recipe]]]:
    recipes: dict[str, tuple[str, Callable[[], Recipe]]] = importlib.import_module(f"{__name__}.{name}").RECIPES
    return recipes
