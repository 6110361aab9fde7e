"""Named recipes: a file is a family; each of its `SIZES` and each public function is a recipe."""

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
    families = [module.name for module in pkgutil.iter_modules(__path__)]
    return [
        f"{family}/{name}" for family in families for name in (*_family(family).SIZES, *_functions(_family(family)))
    ]


def find(name: str) -> Recipe:
    """The recipe of that name, or in that JSON or TOML file."""
    if name.endswith((".json", ".toml")):
        return read_recipe(Path(name))
    known = names()
    if name not in known:
        raise ConfigError(f"{name} is not a recipe: {', '.join(known)}{did_you_mean(name, known)}")
    family, _, short = name.partition("/")
    module = _family(family)
    recipe: Recipe = module.sized(short) if short in module.SIZES else getattr(module, short)()
    return recipe


def about(name: str) -> str:
    """The recipe of that name in one line."""
    family, _, short = name.partition("/")
    module = _family(family)
    if short in module.SIZES:
        return f"{module.SIZES[short]}."
    return (inspect.getdoc(getattr(module, short)) or "").partition("\n")[0]


def _family(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")


def _functions(family: ModuleType) -> list[str]:
    own = [name for name, made in inspect.getmembers(family, inspect.isfunction) if made.__module__ == family.__name__]
    return [name for name in own if not name.startswith("_") and name != "sized"]
