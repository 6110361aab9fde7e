"""The directive `fields`: a table of the fields of a dataclass with their types, defaults and comments in the code."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any, ClassVar

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from bertsmith import config
from bertsmith.training import recipe_toml
from bertsmith.training.recipe import TASKS


def table(cls: type) -> str:
    """Markdown."""
    comments, settings = recipe_toml.comments(cls), [item for item in dataclasses.fields(cls) if item.init]
    with_defaults = any(_default(item) is not dataclasses.MISSING for item in settings)
    columns = ("setting", "type", "default", "meaning") if with_defaults else ("field", "type", "meaning")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for item in settings:
        default = [_shown(_default(item))] if with_defaults else []
        cells = [f"`{item.name}`", _type(item.type), *default, comments[item.name]]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _type(annotation: str) -> str:
    """An annotation as it is written, or the names that a registry has for the `kind` of a table."""
    registries = re.findall(r'Registry\(("[a-z.]+"|TASKS)\)', annotation)
    if not registries:
        return f"`{annotation}`"
    folder = TASKS if registries[0] == "TASKS" else registries[0].strip('"')
    what = "dict of tables by" if annotation.startswith("dict") else "table with the"
    return f"{what} `kind`: {', '.join(f'`{kind}`' for kind in config.kinds(folder))}"


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def _shown(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return "below"
    return "" if value in ("", (), None) or value == {} else f"`{value}`"


class Fields(SphinxDirective):
    """A table of the dataclass that the argument names."""

    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        return self.parse_text_to_nodes(table(getattr(importlib.import_module(module), name)))
