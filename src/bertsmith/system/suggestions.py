"""Suggestions for a setting that is unknown, misspelt, from another library or of the wrong type."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertsmith.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class OtherNames:
    """Other names of the settings of a class, in its class variable `other_names`."""

    title: str  # of the settings in errors
    same: Mapping[str, str] = dataclasses.field(default_factory=dict)  # accepted names -> dotted settings
    # similar settings of other libraries: what to write instead, from the values of the settings and the value given
    similar: Mapping[str, Callable[[Mapping[str, Any], Any], str]] = dataclasses.field(default_factory=dict)


def unknown_setting(names: OtherNames, data: Mapping[str, Any], path: str, value: Any, equals: str) -> ConfigError:
    """The error for a setting that is not in `data`: what to write instead, or the nearest of all dotted settings."""
    *parents, last = path.split(".")
    above, key = "", last
    for parent in parents:
        if not isinstance(value_at(data, join_path(above, parent)), Mapping):
            key = parent
            break
        above = join_path(above, parent)
    owner = (value_at(data, above).get("kind") or above) if above else names.title
    text = f'{path}={shorten(value)}: {owner} has no setting "{key}"'
    if last in names.similar:
        return ConfigError(f"{text}; {names.similar[last](data, value)}")
    near = _nearest(names.same.get(last, path), list(_dotted(data)))
    return ConfigError(text + (f"; did you mean {near}{equals}?" if near else ""))


def _nearest(path: str, known: Sequence[str]) -> str:
    """The dotted setting that is meant: one with the same name, one with a similar name beside it, or any; or ''."""
    above, _, last = path.rpartition(".")
    by_path, by_name = {name: name for name in known}, {name.rpartition(".")[2]: name for name in reversed(known)}
    beside = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == above}
    tries = ((last, by_name, 1.0), (last, beside, 0.6), (path, by_path, 0.8), (last, by_name, 0.8))
    near = ((difflib.get_close_matches(word, list(names), 1, cutoff), names) for word, names, cutoff in tries)
    return next((names[found[0]] for found, names in near if found), "")


def _dotted(data: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Every dotted setting."""
    for key, value in data.items():
        yield join_path(above, key)
        if isinstance(value, Mapping):
            yield from _dotted(value, join_path(above, key))


def not_an_override(change: str, following: Sequence[str]) -> ConfigError:
    """The error for a word without `setting=value`, which may be one that was written with spaces."""
    key, equals, value = change.partition("=")
    rest = "".join(following[: 1 if equals else 2])
    if key and (equals or rest.startswith("=")) and rest.lstrip("="):
        return ConfigError(f"write {key}={value}{rest.lstrip('=')} without spaces")
    if Path(change).exists():
        found, option = ("a folder", "--data") if Path(change).is_dir() else ("a file", "--train")
        return ConfigError(f"{change} is {found}, not a setting: pass training examples with {option} {change}")
    return ConfigError(f"{change!r} is not a setting: write setting=value, such as encoder.layers=4")


def with_paths(message: str, names: Iterable[str], where: str) -> str:
    """An error of a nested table with the full names of its settings: `encoder.width=130` instead of `width=130`."""
    pattern = rf"(?<![\w.])({'|'.join(map(re.escape, names))})(?==)"
    return re.sub(pattern, rf"{where}.\1", message) if where else message


def as_written(where: str, value: Any, expected: str) -> str:
    """What to write instead of a string that looks like the expected value."""
    if not isinstance(value, str):
        return ""
    if expected == "true or false":
        return f": write {where}={value.lower()}" if value.lower() in ("true", "false") else ""
    if expected not in ("a number", "an integer"):
        return ""
    if _is_number(value):
        return ", not a string: leave out the quotes"
    plain = value.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", value) else value.replace(",", ".")
    return f": write {where}={plain}" if plain != value and _is_number(plain) else ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def value_at(data: Any, path: str) -> Any:
    """The value of a dotted setting; None if there is none."""
    for key in path.split(".") if path else ():
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def join_path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def shorten(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
