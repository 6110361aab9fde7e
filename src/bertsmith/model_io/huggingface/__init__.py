"""transformers folders: one file per model family, named after its encoder; `family.py` is what families share.

`format.py` reads and writes folders with a family.
"""

from __future__ import annotations

import importlib
import pkgutil

from bertsmith.model_io.huggingface.family import Family


def names() -> list[str]:
    """The families: the files of this folder that have a `FAMILY`."""
    found = [module.name for module in pkgutil.iter_modules(__path__)]
    return [name for name in found if hasattr(importlib.import_module(f"{__name__}.{name}"), "FAMILY")]


def find(name: str) -> Family:
    """The family of that name."""
    found: Family = importlib.import_module(f"{__name__}.{name}").FAMILY
    return found


def of_type(model_type: object) -> Family | None:
    """The family of a transformers model type, if there is one."""
    return next((family for family in map(find, names()) if family.model_type == model_type), None)
