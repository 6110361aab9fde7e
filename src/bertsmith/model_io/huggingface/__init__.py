"""transformers folders: one file per model family, named after its encoder; `family.py` is what families share.

`format.py` reads and writes folders with a family.
"""

from __future__ import annotations

import importlib
import pkgutil

from bertsmith.model_io.huggingface.family import Family


def families() -> dict[str, Family]:
    """The families by name: the files of this folder that have a `FAMILY`."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module.FAMILY for name, module in modules.items() if hasattr(module, "FAMILY")}
