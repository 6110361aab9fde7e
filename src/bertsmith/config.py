"""Settings: dataclass <-> dict, strict dotted overrides, and "the folder is the registry".

A setting that is unknown, misspelt or of the wrong type is an error that names the nearest one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import json
import math
import numbers
import os
import pkgutil
import re
import tomllib
import types
import typing
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from bertsmith.errors import ConfigError, DataError
from bertsmith.system.suggestions import (
    OtherNames,
    as_written,
    join_path,
    not_an_override,
    shorten,
    unknown_setting,
    value_at,
    with_paths,
)

T = TypeVar("T")
EXTENSIONS = "BERTSMITH_EXTENSIONS"  # environment variable: folders with encoders/, objectives/, … of users
_extension_paths: set[str] = set()
AUTO = "auto"  # the value of a setting that is chosen for the machine when a run starts
TYPE_NAMES = {bool: "true or false", str: "a string", type(None): "empty"}


@dataclasses.dataclass(frozen=True)
class Registry:
    """Marks a field that holds the `Config` of a file of a folder: `Annotated[Any, Registry("bertsmith.encoders")]`."""

    folder: str


def add_extensions(folder: str | Path) -> None:
    """Adds a folder with encoders/, objectives/, tasks/ or tokenizers/ of your own, for child processes too.

    A file `objectives/NAME.py` in it is found like a file of `bertsmith.objectives`. The environment variable
    BERTSMITH_EXTENSIONS, a list of folders like PATH, does the same for the command line.
    """
    known = [path for path in os.environ.get(EXTENSIONS, "").split(os.pathsep) if path]
    if str(folder) not in known:
        os.environ[EXTENSIONS] = os.pathsep.join([*known, str(folder)])
    importlib.invalidate_caches()


def _package(folder: str) -> ModuleType:
    """A registry package whose search path holds the folders of BERTSMITH_EXTENSIONS."""
    package = importlib.import_module(folder)
    bases = [base for base in os.environ.get(EXTENSIONS, "").split(os.pathsep) if base]
    paths = [os.path.join(os.path.abspath(base), *folder.split(".")[1:]) for base in bases]
    own = [path for path in package.__path__ if path not in _extension_paths]
    _extension_paths.update(paths)
    package.__path__[:] = [*own, *paths]
    return package


def kinds(folder: str) -> list[str]:
    """The names in a registry folder: its modules that have a `Config`, by file name."""
    return sorted(name for name in _names(folder) if hasattr(importlib.import_module(f"{folder}.{name}"), "Config"))


def find_kind(folder: str, name: str) -> ModuleType:
    """The module of a registry folder with that name; the other modules are not imported."""
    module = importlib.import_module(f"{folder}.{name}") if name in _names(folder) else None
    if module is None or not hasattr(module, "Config"):
        what, known = folder.rsplit(".", 1)[-1], kinds(folder)
        raise ConfigError(f"{name!r} is not among the {what}: {', '.join(known)}{did_you_mean(name, known)}")
    return module


def _names(folder: str) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(_package(folder).__path__)}


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """`; did you mean encoder.layers?`, or an empty string if no other known word is similar."""
    others = [name for name in known if name != word]
    if any(unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", word) for name in others):
        return ": it differs only in its Unicode normalization (NFC or NFD): write both in NFC"
    near = difflib.get_close_matches(word, others, n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def to_dict(settings: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values; the `Config` of a registry file gets its name as `kind`."""
    kind = {"kind": _name(type(settings))} if type(settings).__name__ == "Config" else {}
    return kind | {item.name: _to_plain(getattr(settings, item.name)) for item in dataclasses.fields(settings)}


def _to_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_dict(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """A dataclass from plain values; unknown keys and wrong types are errors, absent keys take their defaults."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or cls.__name__} must be a table of settings, not {shorten(data)}")
    hints = _type_hints(cls)  # type: ignore[arg-type]
    fields = {item.name: item for item in dataclasses.fields(cls) if item.init}  # type: ignore[arg-type]
    given = {key: value for key, value in data.items() if key != "kind" or "kind" in fields}
    if not where and any(key in _other_names(cls).same for key in given):
        return from_dict(cls, _with_usual_names(cls, given))
    for key in given:
        if key not in fields:
            raise _unknown_key(cls, given, key, where)
    values = {key: _convert(hints[key], value, join_path(where, key)) for key, value in given.items()}
    required = {name for name, item in fields.items() if item.default is item.default_factory is dataclasses.MISSING}
    missing = [name for name in fields if name in required - values.keys()]
    if missing:
        raise ConfigError(f"{join_path(where, missing[0])} is missing: {_other_names(cls).title} requires it")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(with_paths(str(error), fields, where)) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where or _name(cls)}: {error}") from error


def _unknown_key(cls: Any, given: Mapping[str, Any], key: str, where: str) -> ConfigError:
    """The error for a key of a file or of a nested table."""
    fields = [item.name for item in dataclasses.fields(cls) if item.init]
    if where:
        text = f'{join_path(where, key)}={shorten(given[key])}: {_name(cls)} has no setting "{key}"'
        return ConfigError(text + did_you_mean(key, fields, f"{where}."))
    data: Mapping[str, Any] = dict.fromkeys(fields)
    with contextlib.suppress(ConfigError):  # with the settings of nested tables, if the rest of the file is right
        data = to_dict(from_dict(cls, {name: given[name] for name in fields if name in given}))
    return unknown_setting(_other_names(cls), data, key, given[key], "")


def override(settings: T, changes: Iterable[str]) -> T:
    """The settings with dotted overrides such as `encoder.layers=4`; values are TOML, bare words are strings."""
    return from_dict(type(settings), _overridden(settings, list(changes)))


def update(settings: T, changes: Mapping[str, Any], *, first: Iterable[str] = ()) -> T:
    """The settings with Python values by name: `{"encoder": {"layers": 4}, "optimizer.weight_decay": 0.1, "lr": 1e-4}`.

    A nested mapping changes only the settings that it names; one of complete objectives, each with its kind, replaces
    them. `first`: overrides that are applied before these changes.
    """
    cls = type(settings)
    return from_dict(cls, _merge(cls, _overridden(settings, list(first)), changes, "", set()))


def _overridden(settings: Any, changes: Sequence[str]) -> dict[str, Any]:
    data = to_dict(settings)
    for index, change in enumerate(changes):
        path, equals, text = (part.strip() for part in change.partition("="))
        if not equals or not path or (not text and index + 1 < len(changes) and "=" not in changes[index + 1]):
            raise not_an_override(change, changes[index + 1 :])
        data = _set(type(settings), data, path, parse_value(text))
    return data


def parse_value(text: str) -> Any:
    """A TOML value (`3e-5`, `true`, `[1, 2]`, `"text"`) or a number such as `.5`; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, a number of thousands of digits, or endlessly nested
        return float(text) if re.fullmatch(r"[+-]?(\d+\.|\.\d+)(e[+-]?\d+)?", text) else text


def _merge(cls: Any, data: dict[str, Any], changes: Mapping[str, Any], above: str, given: set[str]) -> dict[str, Any]:
    """`data` with the changes; a table's kind is set before its other settings. `given`: settings that were set."""
    names = _other_names(cls).same
    for key in sorted(changes, key=lambda key: (key.count("."), key != "kind")):
        path, value = names.get(join_path(above, key), join_path(above, key)), _to_plain(changes[key])
        whole = path in _free_tables(cls) or (path in _kind_tables(cls) and _have_kinds(value))
        if isinstance(value, dict) and not whole and isinstance(value_at(data, path), dict):
            data = _merge(cls, data, value, path, given)
            continue
        if path in given:
            raise ConfigError(f"{path} is given twice, here as {join_path(above, key)}={shorten(value)}: leave one out")
        given.add(path)
        data = _set(cls, data, path, value)
    return data


def _set(cls: Any, data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`data` with one setting changed. A string for a table is its kind; another kind starts from its defaults."""
    path = _other_names(cls).same.get(path, path)
    above, _, last = path.rpartition(".")
    table, (root, _, inner) = value_at(data, above), above.partition(".")
    if above in _free_tables(cls):
        return data | {above: table | {last: value}}
    if root in _free_tables(cls) and isinstance(table, dict):  # a table in such a table
        return data | {root: data[root] | {inner: table | {last: value}}}
    if not isinstance(table, dict) or last not in table:
        equals = "" if isinstance(value, dict) else f"={shorten(value)}"
        raise unknown_setting(_other_names(cls), data, path, value, equals)
    if isinstance(value, str) and isinstance(table[last], dict) and "kind" in table[last]:
        table, last = table[last], "kind"
    if last == "kind":
        if value != table["kind"]:
            table.clear()
        table["kind"] = value
        return to_dict(from_dict(cls, data))  # the next change may be of a setting of the new kind
    table[last] = value
    return data


@functools.cache  # resolving the annotations of a class takes milliseconds
def _type_hints(cls: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _free_tables(cls: Any) -> set[str]:
    """The settings of a class that are tables with keys of the user's choice."""
    return _tables(cls) - _kind_tables(cls)


def _kind_tables(cls: Any) -> set[str]:
    """The settings of a class that are tables of configs with a kind."""
    return {key for key in _tables(cls) if get_origin(get_args(_type_hints(cls)[key])[1]) is Annotated}


def _tables(cls: Any) -> set[str]:
    return {key for key, hint in _type_hints(cls).items() if get_origin(hint) is dict}


def _have_kinds(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, dict) and "kind" in one for one in value.values())


def _with_usual_names(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a file in which settings may have their other names."""
    data: dict[str, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in given.items()}
    for key, name in _other_names(cls).same.items():
        if key in data:
            above, _, last = name.rpartition(".")
            table = data.setdefault(above, {}) if above else data
            if last in table:
                raise ConfigError(f"{key} is another name of {name}, which is set too: leave one out")
            table[last] = data.pop(key)
    return data


def _other_names(cls: Any) -> OtherNames:
    return getattr(cls, "other_names", None) or OtherNames(_name(cls))


def _name(cls: Any) -> str:
    return str(cls.__module__.rsplit(".", 1)[-1] if cls.__name__ == "Config" else cls.__name__.lower())


def _convert(hint: Any, value: Any, where: str) -> Any:
    """The value as the annotated type, or a ConfigError that names the expected type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        registries = [mark for mark in inner[1:] if isinstance(mark, Registry)]
        return _convert_kind(registries[0], value, where) if registries else _convert(inner[0], value, where)
    if origin in (Union, types.UnionType):
        return _convert_union(inner, value, where)
    if origin is Literal:
        if value in inner and type(value) in {type(choice) for choice in inner}:
            return value
        if isinstance(value, float) and str(value) in inner:  # version=2.0 is a number in TOML
            return str(value)
        near = did_you_mean(str(value), map(str, inner))
        raise ConfigError(f"{where}={shorten(value)} must be one of {', '.join(map(str, inner))}{near}")
    if origin in (tuple, list):
        return _convert_sequence(origin, inner, value, where)
    if origin in (dict, Mapping):
        _expect(isinstance(value, Mapping), where, value, "a table")
        return {
            _convert(inner[0], key, where): _convert(inner[1], item, join_path(where, key))
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else from_dict(typing.cast(type, hint), value, where)
    return _convert_scalar(hint, value, where)


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        return value
    if hint is float:
        _expect(isinstance(value, numbers.Real) and not isinstance(value, bool), where, value, "a number")
        _expect(math.isfinite(value), where, value, "a finite number")
        return float(value)
    if hint is int:
        integral = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
        _expect(integral and not isinstance(value, bool), where, value, "an integer")
        return int(value)
    if hint is Path:
        _expect(isinstance(value, str | Path), where, value, "a path")
        return Path(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # a column or a folder with a number as its name, which TOML reads as a number
    _expect(isinstance(value, hint), where, value, _type_name(hint))
    return value


def _convert_kind(registry: Registry, value: Any, where: str) -> Any:
    if type(value).__name__ == "Config":
        return value
    name = value if isinstance(value, str) else value.get("kind") if isinstance(value, Mapping) else None
    _expect(isinstance(name, str), where, value, f"a table with a kind: {', '.join(kinds(registry.folder))}")
    config = find_kind(registry.folder, typing.cast(str, name)).Config
    return from_dict(config, value if isinstance(value, Mapping) else {}, where)


def _convert_union(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    errors = []
    for choice in choices:
        try:
            return _convert(choice, value, where)
        except ConfigError as error:
            errors.append((choice, error))
    relevant = [error for choice, error in errors if choice is not type(None)]
    if len(relevant) == 1:
        raise relevant[0]
    raise ConfigError(f"{where}={shorten(value)} must be {' or '.join(map(_type_name, choices))}")


def _convert_sequence(origin: Any, inner: tuple[Any, ...], value: Any, where: str) -> Any:
    _expect(isinstance(value, list | tuple), where, value, "a list")
    if origin is tuple and not (len(inner) == 2 and inner[1] is Ellipsis):
        _expect(len(value) == len(inner), where, value, f"a list of {len(inner)}")
    else:
        inner = (inner[0],) * len(value)
    items = enumerate(zip(inner, value, strict=True))
    return origin(_convert(hint, item, f"{where}[{index}]") for index, (hint, item) in items)


def _type_name(hint: Any) -> str:
    return TYPE_NAMES.get(hint) or str(getattr(hint, "__name__", hint))


def _expect(condition: bool, where: str, value: Any, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{where}={shorten(value)} must be {expected}{as_written(where, value, expected)}")


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """One line per changed setting: its dotted name, the old value, the new one."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            yield from differences(before.get(key), now.get(key), join_path(where, key))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from differences(old, new, f"{where}[{index}]")
    elif before != now:
        old, new = (text if len(text) <= 80 else text[:77] + "..." for text in map(json.dumps, (before, now)))
        yield f"{where} was {old} and is now {new}"


def resume_differences(before: Any, now: Any) -> list[str]:
    """As `differences`, except for settings that are now "auto": these were chosen when the run started."""
    return [line for line in differences(before, now) if not line.endswith(f'is now "{AUTO}"')]


def read_file(cls: type[T], path: Path, *, complete: Callable[[Any], Any] = lambda data: data) -> T:
    """Settings from a JSON or TOML file; `complete` adds what its values imply."""
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a {_other_names(cls).title}: {error}") from error
    data = complete(data)
    try:
        return from_dict(cls, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
