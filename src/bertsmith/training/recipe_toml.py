"""A recipe as TOML with every setting and its explanation: the comments and docstrings beside it in the code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import io
import json
import re
import textwrap
import tokenize
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from bertsmith import config
from bertsmith.config import Registry
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.system.durable import Disk
from bertsmith.training.recipe import FinetuneConfig, Recipe

WIDTH = 120
COLUMN = 36  # of comments, at most
HEAD = """\
# A recipe with every setting: what it does, and in parentheses its type and default.
#   bertsmith check FILE.toml --data SHARDS            check that it runs, its speed and its memory
#   bertsmith pretrain FILE.toml --data SHARDS -o RUN  settings can be overridden: encoder.layers=4
"""
FINETUNE_HEAD = """\
# A fine-tuning recipe with every setting: what it does, and in parentheses its type and default.
#   bertsmith finetune MODEL -t FILE.toml --train FILE --dev FILE -o RUN  settings can be overridden: epochs=4
# Instead of --train and --dev, files = {train = "train.csv", dev = "dev.csv"} names them here.
"""
PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(recipe: Recipe | FinetuneConfig) -> str:
    """The recipe as TOML; reading it gives an equal one, where a fine-tuning recipe gets its model."""
    finetuning = isinstance(recipe, FinetuneConfig)
    lines = _table("", recipe, [], leave_out=("model",) if finetuning else ())
    return (FINETUNE_HEAD if finetuning else HEAD) + "\n" + "\n".join(lines) + "\n"


def write_toml(recipe: Recipe | FinetuneConfig, path: Path, *, force: bool = False) -> None:
    if path.suffix != ".toml":
        raise BertsmithError(f"{path} must end in .toml")
    if path.exists() and not force:
        raise BertsmithError(f"{path} already exists: choose another -o, or pass --force to replace it")
    Disk().write_file(path, [to_toml(recipe).encode()])


class _Line(NamedTuple):
    key: str
    value: str | None  # as TOML; None: absent
    about: str


def _table(path: str, settings: Any, lines: list[_Line], leave_out: Sequence[str] = ()) -> Iterator[str]:
    """`lines` and the settings of a dataclass, then its nested dataclasses, in the order that TOML needs."""
    cls: type = type(settings)
    hints, remarks = typing.get_type_hints(cls, include_extras=True), comments(cls)
    below: list[str] = []
    for item in dataclasses.fields(settings):
        if not item.init or item.name in leave_out:
            continue
        here, value, hint = f"{path}.{item.name}".lstrip("."), getattr(settings, item.name), hints[item.name]
        if _is_settings(value):
            below += _section(here, value, remarks[item.name], hint, _default(item))
        elif isinstance(value, Mapping) and _registry(get_args(hint)[1]):
            below += [] if value else ["", f"[{here}]"]
            for key, one in value.items():
                below += _section(f"{here}.{_key(key)}", one, remarks[item.name], get_args(hint)[1])
        else:
            lines.append(_line(here, value, remarks[item.name], hint, _default(item)))
    yield from _laid_out(lines)
    yield from below


def _section(path: str, settings: Any, comment: str, hint: Any, default: Any = dataclasses.MISSING) -> Iterator[str]:
    """A table with its heading; that of a registry file begins with its kind."""
    cls, registry = type(settings), _registry(hint)
    texts = [comment, *_paragraphs(cls.__doc__ or "")]
    lines: list[_Line] = []
    if registry:
        about = inspect.cleandoc(importlib.import_module(cls.__module__).__doc__ or "")
        texts.insert(1, " ".join(about.partition("\n\n")[0].split()))
        kinds = f"one of {', '.join(config.kinds(registry.folder))}"
        kind = "" if default is dataclasses.MISSING else f"; default {config.to_dict(default)['kind']}"
        lines.append(_Line("kind", toml_value(config.to_dict(settings)["kind"]), kinds + kind))
    yield from ("", f"[{path}]")
    for text in texts:
        yield from _comment(text)
    yield from _table(path, settings, lines)


def _line(path: str, value: Any, comment: str, hint: Any, default: Any) -> _Line:
    if value is None and default is not None:
        raise ConfigError(
            f"{path} is null, which TOML cannot express and which is not its default: keep this recipe as JSON"
        )
    if default is dataclasses.MISSING:
        usual = "required"
    else:
        usual = "absent by default" if default is None else f"default {toml_value(default)}"
    about = f"{comment} ({_words(hint)}; {usual})".strip()
    return _Line(path.rpartition(".")[2], None if value is None else toml_value(value), about)


def _laid_out(lines: list[_Line]) -> Iterator[str]:
    """Settings with comments in one column, or above them where they are too long."""
    heads = [f"# {line.key} =" if line.value is None else f"{line.key} = {line.value}" for line in lines]
    column = max((len(head) for head in heads if len(head) <= COLUMN), default=0)
    for head, line in zip(heads, lines, strict=True):
        beside = f"{head:<{column}}  # {line.about}"
        if len(beside) <= WIDTH:
            yield beside
            continue
        yield from _comment(line.about)
        items = tomllib.loads(f"value = {line.value}")["value"] if len(head) > WIDTH else None
        if isinstance(items, list):
            yield from (f"{line.key} = [", *(f"    {toml_value(item)}," for item in items), "]")
        else:
            yield head


def _paragraphs(docstring: str) -> list[str]:
    """The paragraphs and list items of a docstring, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=- )", inspect.cleandoc(docstring))]


def _comment(text: str) -> list[str]:
    indent = "#   " if text.startswith("- ") else "# "
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent=indent, break_on_hyphens=False)


def _is_settings(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _default(item: dataclasses.Field[Any]) -> Any:
    return item.default if item.default_factory is dataclasses.MISSING else item.default_factory()


def toml_value(value: Any) -> str:
    """A setting as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return re.sub(r"e([+-])0*(\d)", r"e\1\2", repr(value)).replace("e+", "e")
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if _is_settings(value):
        return toml_value(config.to_dict(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(toml_value, value))}]"


def command_line_value(value: Any) -> str:
    """A setting as it is written on the command line: as TOML, strings without quotes."""
    return value if isinstance(value, str) else toml_value(value)


def _key(key: str) -> str:
    return key if PLAIN_KEY.fullmatch(key) else toml_value(key)


def _registry(hint: Any) -> Registry | None:
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Registry)), None)


def _words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if registry := _registry(hint):
            return f"table whose kind is one of {', '.join(config.kinds(registry.folder))}"
        return _words(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_words(choice) for choice in inner if choice is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}" if len(inner) > 1 else str(inner[0])
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"list of {len(inner)}, each a {_words(inner[0])}"
    if origin in (tuple, list):
        return f"list, each a {_words(inner[0])}"
    if dataclasses.is_dataclass(hint):
        keys = comments(typing.cast(type, hint)).items()
        return "table of " + ", ".join(f"{key}: {comment}" if comment else key for key, comment in keys)
    plain = {int: "whole number", float: "number", bool: "true or false", str: "text", Path: "path"}
    return plain.get(hint, "table" if origin in (dict, Mapping) else "any value")


@functools.cache
def comments(cls: type) -> dict[str, str]:
    """The comment of each setting of a dataclass in the code: behind it, and in comment lines just above."""
    by_name: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            by_name |= _comments_in(textwrap.dedent(inspect.getsource(base)))
    return {item.name: by_name.get(item.name, "") for item in dataclasses.fields(cls)}


def _comments_in(source: str) -> dict[str, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    remarks = {token.start[0]: token for token in tokens if token.type == tokenize.COMMENT}
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    by_name: dict[str, str] = {}
    for node in body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        first = node.lineno
        while first - 1 in remarks and not remarks[first - 1].line[: remarks[first - 1].start[1]].strip():
            first -= 1
        lines = [remarks[number].string for number in range(first, (node.end_lineno or first) + 1) if number in remarks]
        by_name[node.target.id] = " ".join(line.lstrip("# ").strip() for line in lines)
    return by_name
