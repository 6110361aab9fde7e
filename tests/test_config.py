"""Strict settings: every invalid override is one line that names the setting and the nearest one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from bertsmith import config
from bertsmith.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    layers: int = 12
    rate: float = 1e-4
    mode: Literal["pre", "post"] = "post"


@dataclass(frozen=True)
class Outer:
    name: str
    encoder: Inner = field(default_factory=Inner)
    steps: int | None = None
    sizes: tuple[int, ...] = (1, 2)
    pair: tuple[float, float] = (0.9, 0.999)
    folder: Path = Path("x")
    fast: bool = True
    table: dict[str, int] = field(default_factory=dict)


def test_round_trip_through_plain_values() -> None:
    outer = Outer("a", Inner(3, 2e-5, "pre"), 7, (5,), (0.8, 0.98), Path("y/z"), False, {"k": 1})
    assert config.from_dict(Outer, config.to_dict(outer)) == outer


def test_overrides_are_toml_and_dotted() -> None:
    changed = config.override(
        Outer("a"), ["encoder.layers=4", "encoder.rate=3e-5", "steps=10", "name=run one", "sizes=[3, 4]"]
    )
    assert changed == Outer("run one", Inner(4, 3e-5), 10, (3, 4))
    assert config.override(Outer("a"), ["fast=false", 'name="7"']) == dataclasses.replace(Outer("7"), fast=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("encoder.layer=4", 'encoder.layer=4: encoder has no setting "layer"; did you mean encoder.layers=4?'),
        ("encodr.layers=4", 'encodr.layers=4: outer has no setting "encodr"; did you mean encoder.layers=4?'),
        ("step=4", 'step=4: outer has no setting "step"; did you mean steps=4?'),
        ("encoder.layers=four", "encoder.layers=four must be an integer"),
        ("encoder.layers=true", "encoder.layers=true must be an integer"),
        ("encoder.mode=pots", "encoder.mode=pots must be one of pre, post; did you mean post?"),
        ("fast=1", "fast=1 must be true or false"),
        ("pair=[1.0]", "pair=[1.0] must be a list of 2"),
        ("sizes=[1, 'x']", "sizes[1]=x must be an integer"),
        ("steps", "'steps' is not a setting: write setting=value, such as encoder.layers=4"),
        ("layers=4", 'layers=4: outer has no setting "layers"; did you mean encoder.layers=4?'),
        ("layer=4", 'layer=4: outer has no setting "layer"; did you mean encoder.layers=4?'),
        ("steps=1,000", "steps=1,000 must be an integer: write steps=1000"),
        ("encoder.rate=0,1", "encoder.rate=0,1 must be a number: write encoder.rate=0.1"),
        ('steps="7"', "steps=7 must be an integer, not a string: leave out the quotes"),
        ("fast=True", "fast=True must be true or false: write fast=true"),
    ],
)
def test_invalid_overrides_name_the_nearest_setting(change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.override(Outer("a"), [change])
    assert str(caught.value) == message


@pytest.mark.parametrize("words", [["steps", "=", "3"], ["steps=", "3"], ["steps", "=3"]])
def test_an_override_with_spaces_says_how_to_write_it(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^write steps=3 without spaces$"):
        config.override(Outer("a"), ["fast=false", *words])
    assert config.override(Outer("a"), ["steps = 3"]).steps == 3  # one quoted word


def test_values_that_toml_does_not_know() -> None:
    changed = config.override(Outer("a"), ["encoder.rate=.5", "pair=[0.8, 1]", "table.x=1"])
    assert (changed.encoder.rate, changed.pair, changed.table) == (0.5, (0.8, 1.0), {"x": 1})


def test_settings_by_keyword() -> None:
    changed = config.update(
        Outer("a"), {"encoder": {"layers": 4}, "encoder.rate": 1, "folder": Path("y"), "sizes": (3,)}
    )
    assert changed == Outer("a", Inner(4, 1.0), sizes=(3,), folder=Path("y"))
    assert config.update(Outer("a"), {"encoder": Inner(5), "steps": np.int64(3), "table": {"k": 2}}) == Outer(
        "a", Inner(5), 3, table={"k": 2}
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": {"layer": 4}}, 'encoder.layer=4: encoder has no setting "layer"; did you mean encoder.layers=4?'),
        ({"layers": 4}, 'layers=4: outer has no setting "layers"; did you mean encoder.layers=4?'),
        ({"steps": "7"}, "steps=7 must be an integer, not a string: leave out the quotes"),
        ({"encoder": 3}, "encoder must be a table of settings, not 3"),
        ({"encoder": {"layers": 4}, "encoder.layers": 5}, "encoder.layers is given twice, here as encoder.layers=5"),
    ],
)
def test_invalid_settings_by_keyword(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.update(Outer("a"), changes)
    assert str(caught.value).startswith(message)


def test_missing_settings_and_invalid_tables() -> None:
    with pytest.raises(ConfigError, match="name is missing"):
        config.from_dict(Outer, {})
    with pytest.raises(ConfigError, match="encoder must be a table of settings, not 3"):
        config.from_dict(Outer, {"name": "a", "encoder": 3})


def test_the_folder_is_the_registry() -> None:
    kinds = config.kinds("bertsmith.tokenizers")
    assert "wordpiece" in kinds
    assert "tokenizer" not in kinds
    with pytest.raises(ConfigError, match=r"'wordpeice' is not among the tokenizers: .*did you mean wordpiece\?"):
        config.find_kind("bertsmith.tokenizers", "wordpeice")


def test_a_new_kind_starts_from_its_defaults() -> None:
    from bertsmith import recipes

    changed = config.override(
        recipes.find("bert/tiny"), ["schedule.kind=cosine", "optimizer.kind=adamw", "optimizer.epsilon=1e-6"]
    )
    assert changed.schedule.kind == "cosine"
    assert changed.optimizer.epsilon == 1e-6
    with pytest.raises(ConfigError, match=r"optimizer\.kind|not among the optimizers"):
        config.override(recipes.find("bert/tiny"), ["optimizer.kind=adamww"])


def test_the_kind_is_stored_with_its_settings() -> None:
    wordpiece = config.find_kind("bertsmith.tokenizers", "wordpiece").Config(lowercase=False)
    plain = config.to_dict(wordpiece)
    assert plain["kind"] == "wordpiece"
    assert config.from_dict(type(wordpiece), plain) == wordpiece


@dataclass(frozen=True)
class Rules:
    version: Literal["1.1", "2.0"] = "1.1"


def test_a_literal_that_is_a_number_in_toml() -> None:
    assert config.override(Rules(), ["version=2.0"]).version == "2.0"
    with pytest.raises(ConfigError, match=r"version=2\.5 must be one of 1\.1, 2\.0"):
        config.override(Rules(), ["version=2.5"])


def test_a_name_is_never_suggested_for_itself() -> None:
    assert config.did_you_mean("gold", ["gold", "iron"]) == ""
    assert config.did_you_mean("gold", ["gold", "golds"]) == "; did you mean golds?"
