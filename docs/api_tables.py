"""The directive `fields`: a table of the fields of a dataclass with their types, defaults and comments in the code."""

from __future__ import annotations

import dataclasses
import importlib
import re
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from bertsmith import config
from bertsmith.training import recipe_toml
from bertsmith.training.recipe import TASKS


def table(cls: type, *, types: bool) -> str:
    """Markdown; with `types`, for results instead of settings, types take the place of defaults."""
    comments, settings = recipe_toml.comments(cls), [item for item in dataclasses.fields(cls) if item.init]
    lines = ["| field | type | meaning |" if types else "| setting | default | meaning |", "|---|---|---|"]
    for item in settings:
        second = f"`{item.type}`" if types else _shown(_default(item))
        cells = (f"`{item.name}`", second, comments[item.name] + _choices(str(item.type)))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _choices(annotation: str) -> str:
    """The values of a literal, or the kinds of a registry."""
    if found := re.search(r"Registry\(([^)]*)\)", annotation):
        folder = TASKS if found[1] == "TASKS" else found[1].strip("\"'")
        return f"; `kind` is {', '.join(f'`{kind}`' for kind in config.kinds(folder))}"
    if found := re.search(r"Literal\[([^]]*)\]", annotation):
        return f"; {', '.join(f'`{value.strip(chr(39))}`' for value in found[1].split(', '))}"
    return ""


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
    option_spec: ClassVar[dict[str, Any]] = {"types": directives.flag}

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        return self.parse_text_to_nodes(
            table(getattr(importlib.import_module(module), name), types="types" in self.options)
        )
