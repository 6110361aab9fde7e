"""Named recipes: a file is a family, whose `RECIPES` have one line about each recipe and what makes it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bertsmith import config
from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import FILES, Recipe
from bertsmith.training.start import with_shape


def names() -> list[str]:
    """Every recipe, as `family/recipe`."""
    families = [module.name for module in pkgutil.iter_modules(__path__)]
    return [f"{family}/{name}" for family in families for name in _family(family)]


def find(name: str) -> Recipe:
    """The recipe of that name, or in that JSON or TOML file."""
    if name.endswith(FILES):
        return config.read_file(Recipe, Path(name), complete=with_shape)
    known = names()
    if name not in known:
        raise ConfigError(f"{name} is not a recipe: {', '.join(known)}{did_you_mean(name, known)}")
    family, _, short = name.partition("/")
    return replace(_family(family)[short][1](), name=name)


def about(name: str) -> str:
    """The recipe of that name in one line."""
    family, _, short = name.partition("/")
    return _family(family)[short][0]


def _family(name: str) -> dict[str, tuple[str, Callable[[], Recipe]]]:
    recipes: dict[str, tuple[str, Callable[[], Recipe]]] = importlib.import_module(f"{__name__}.{name}").RECIPES
    return recipes
