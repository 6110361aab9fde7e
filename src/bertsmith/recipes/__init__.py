"""Recipes by name: a file is a family, a public function in it one recipe. Nothing but the command line looks here."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path
from types import ModuleType

from bertsmith.config import did_you_mean
from bertsmith.errors import ConfigError
from bertsmith.training.recipe import Recipe, read_recipe


def names() -> list[str]:
    """Every recipe, as `family/recipe`."""
    families = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return [f"{family.__name__.rsplit('.', 1)[-1]}/{name}" for family in families for name in _functions(family)]


def find(name: str) -> Recipe:
    """The recipe of that name, or in that JSON or TOML file."""
    if name.endswith((".json", ".toml")):
        return read_recipe(Path(name))
    known = names()
    if name not in known:
        raise ConfigError(f"{name} is no recipe: {', '.join(known)}{did_you_mean(name, known)}")
    family, function = name.split("/")
    found: Recipe = getattr(importlib.import_module(f"{__name__}.{family}"), function)()
    return found


def about(name: str) -> str:
    """What the recipe of that name is, in one line."""
    family, function = name.split("/")
    found = getattr(importlib.import_module(f"{__name__}.{family}"), function)
    return (inspect.getdoc(found) or "").partition("\n")[0]


def _functions(family: ModuleType) -> list[str]:
    here = inspect.getmembers(family, inspect.isfunction)
    return [name for name, made in here if made.__module__ == family.__name__ and not name.startswith("_")]
