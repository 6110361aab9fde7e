"""`init`: written recipes round-trip, and every setting is explained by the comments of the code."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from command_line import call

from bertsmith import config, recipes
from bertsmith.encoders import bert
from bertsmith.errors import ConfigError
from bertsmith.evaluation.evaluator import make_evaluation_config
from bertsmith.reports import terminal
from bertsmith.training.forward_backward import ComputeConfig
from bertsmith.training.plan import BatchSizeWarmup, ScheduleKind, Unfreeze
from bertsmith.training.recipe import Recipe, make_finetune_config, with_overrides
from bertsmith.training.recipe_toml import WIDTH, comments, to_toml

FOLDERS = ("encoders", "objectives", "data.packing", "training.optimizers")
CONFIGS = [
    config.find_kind(f"bertsmith.{folder}", name).Config
    for folder in FOLDERS
    for name in config.kinds(f"bertsmith.{folder}")
]


def names_in(settings: dict[str, Any], above: str = "") -> Iterator[str]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from names_in(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


def names_written(text: str) -> set[str]:
    """Every setting of a file, including commented ones."""
    table, written = "", set()
    for line in text.splitlines():
        key = line.removeprefix("# ").partition(" =")[0]
        if line.startswith("["):
            table = line.strip("[]") + "."
        elif " =" in line and key.isidentifier():
            written.add(table + key)
    return written


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_round_trips_through_toml(name: str, tmp_path: Path) -> None:
    built = recipes.find(name)
    text = to_toml(built)
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    assert config.read_file(Recipe, tmp_path / "recipe.toml") == built
    assert max(map(len, text.splitlines())) <= WIDTH
    assert names_written(text) == set(names_in(config.to_dict(built)))


CHANGES = {
    "numbers": ["learning_rate=1e-300", "encoder.layer_norm_eps=1.5e20", "warmup=0.06", "steps=123456789"],
    "what is absent by default": ["encoder.feed_forward=300", "compute.compile=false"],
    "other kinds": ["packing.kind=stream", "optimizer.kind=muon", "schedule.kind=constant_then_decay"],
    "a table in a list": ["unfreeze=[{after=0, groups=1}, {after=0.5, groups=9}]"],
    "a long list": [f"unfreeze=[{', '.join(f'{{after={after / 30}, groups=1}}' for after in range(30))}]"],
    "choices": ["objectives.masked_lm.units=ngrams", "precision=fp32"],
    "text that must be quoted": ["name='쇠 \"anvil\" \\ \x7f # = [x]'"],
}


@pytest.mark.parametrize("case", CHANGES)
def test_overrides_round_trip_through_toml(case: str) -> None:
    name = "bert/no_nsp" if "packing.kind=stream" in CHANGES[case] else "bert/base"
    built = with_overrides(recipes.find(name), CHANGES[case])
    assert built != recipes.find(name)
    text = to_toml(built)
    assert config.from_dict(Recipe, tomllib.loads(text)) == built
    assert max(map(len, text.splitlines())) <= WIDTH


TASKS = [name for name in config.kinds("bertsmith.tasks") if name not in ("glue", "korean", "conll", "multi_task")]


@pytest.mark.parametrize("task", [*TASKS, "glue/mnli", "korean/nsmc", "conll/conll2003", "squad/2.0"])
def test_fine_tuning_recipes_round_trip_through_toml(task: str, tmp_path: Path) -> None:
    done = call("init", "--task", task, "lr=1e-4", "head.dropout=0.2", "-o", tmp_path / "tuning.toml")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "tuning.toml").read_text(encoding="utf-8")
    built = make_finetune_config(task, "m", {}, {"lr": 1e-4, "head": {"dropout": 0.2}})
    read = make_finetune_config(str(tmp_path / "tuning.toml"), "m", {}, [])
    assert read == built
    assert max(map(len, text.splitlines())) <= WIDTH
    left_out = {"model", "head.dropout"}  # named on the command line; in the value of head
    assert (
        names_written(text) - {"files", "head", "auxiliary", "encoder"}
        == set(names_in(config.to_dict(built))) - left_out
    )


def test_a_fine_tuning_recipe_with_other_files_and_overrides(tmp_path: Path) -> None:
    built = make_finetune_config("classification", "old", {"train": "a.csv", "dev": "b.csv"}, {"epochs": 7})
    (tmp_path / "recipe.json").write_bytes(built.to_json())
    read = make_finetune_config(str(tmp_path / "recipe.json"), "m", {"train": "c.csv"}, ["task.text=review"])
    assert (read.model, read.files, read.epochs) == ("m", {"train": "c.csv", "dev": "b.csv"}, 7)
    assert read.task.text == "review"
    evaluated = make_evaluation_config(None, str(tmp_path / "recipe.json"), ["task.text=review"])
    assert (evaluated.task, evaluated.max_length) == (read.task, read.max_length)
    assert make_finetune_config(str(tmp_path / "recipe.json"), "m", {"data": "d"}, []).files == {"data": "d"}
    (tmp_path / "p.json").write_bytes(recipes.find("bert/tiny").to_json())
    with pytest.raises(ConfigError, match=r"is a pre-training recipe: .* bertsmith init --task TASK"):
        make_finetune_config(str(tmp_path / "p.json"), "m", {}, [])
    with pytest.raises(ConfigError, match=r"is a fine-tuning recipe: use it with bertsmith finetune MODEL -t .*json"):
        recipes.find(str(tmp_path / "recipe.json"))


def test_a_recipe_without_objectives_round_trips_through_toml() -> None:
    built = replace(recipes.find("bert/tiny"), objectives={})
    assert config.from_dict(Recipe, tomllib.loads(to_toml(built))) == built


@pytest.mark.parametrize(
    "cls", [Recipe, Unfreeze, BatchSizeWarmup, ComputeConfig, *CONFIGS], ids=lambda cls: cls.__module__
)
def test_every_setting_is_explained_in_the_code(cls: type) -> None:
    silent = [name for name, output in comments(cls).items() if not output]
    assert not silent, f"{cls.__module__}.{cls.__name__}: put a comment behind {', '.join(silent)}"


def test_comments_have_types_and_defaults() -> None:
    lines = to_toml(recipes.find("bert/tiny")).splitlines()
    written = {line.partition(" =")[0]: line for line in lines}
    assert '(one of tokens, words, ngrams; default "tokens")' in written["units"]
    assert "(whole number; default 12)" in written["layers"]
    above = lines[lines.index(written["# feed_forward"]) - 1] + written["# feed_forward"]
    assert "(whole number; absent by default)" in above
    assert "(list of 2, each a number; default [0.9, 0.999])" in written["betas"]
    assert "(whole number; required)" in written["steps"]
    kinds = [line for line in lines if "one of adagrad, adamw, bert_adam" in line]
    assert len(kinds) == 1
    assert any("(one of linear, bert, product, cosine" in line for line in lines)
    assert "# BERT-base by default." in lines


@dataclass
class Sample:
    """For the test below."""

    first: int = 1  # behind
    second: str = "# no comment"
    # above,
    # in two lines
    third: tuple[int, ...] = (
        1,  # within
    )


@dataclass
class Derived(Sample):
    """Inherits the settings above."""

    second: str = ""  # another


def test_comments_after_and_above_settings_are_read() -> None:
    assert comments(Sample) == {"first": "behind", "second": "", "third": "above, in two lines within"}
    assert comments(Derived) == comments(Sample) | {"second": "another"}


def test_list_items_of_docstrings_have_lines_of_their_own() -> None:
    lines = to_toml(recipes.find("bert/tiny")).splitlines()
    items = {line.partition(":")[0] for line in lines if line.startswith("# - ")}
    assert {f"# - {kind}" for kind in get_args(ScheduleKind)} <= items
    first = next(number for number, line in enumerate(lines) if line.startswith("# - bert: "))
    assert lines[first + 1].startswith("#   ")
    assert not [line for line in lines if line.startswith("#") and line.endswith("-")], "words are not divided"


def test_null_other_than_the_default_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bert.Config.__dataclass_fields__["feed_forward"], "default", 7)
    with pytest.raises(ConfigError, match=r"encoder\.feed_forward is null, which TOML cannot express"):
        to_toml(recipes.find("bert/tiny"))


def test_init_prints_and_writes_the_same(tmp_path: Path) -> None:
    printed = call("init", "bert/mini", "encoder.layers=3")
    path = tmp_path / "mine.toml"
    assert call("init", "bert/mini", "encoder.layers=3", "-o", path).returncode == 0
    assert path.read_text(encoding="utf-8") == printed.stdout
    assert config.read_file(Recipe, path).encoder.layers == 3
    reread = call("init", path, "encoder.layers=5", "--json")
    assert json.loads(reread.stdout)["settings"]["encoder"]["layers"] == 5


def test_init_replaces_a_file_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    refused = call("init", "bert/mini", "-o", path)
    assert refused.returncode == 2
    assert refused.stderr == f"bertsmith: {path} already exists: choose another -o, or pass --force to replace it\n"
    assert path.read_text() == "mine"
    assert call("init", "bert/mini", "-o", path, "--force").returncode == 0
    assert config.read_file(Recipe, path) == recipes.find("bert/mini")


def test_init_alone_lists_the_recipes() -> None:
    facts = json.loads(call("init", "--json").stdout)
    written = facts["recipes"]
    assert [one["recipe"] for one in written] == recipes.names()
    assert [one["recipe"] for one in facts["finetuning"]] == recipes.finetuning_names()
    base = next(one for one in written if one["recipe"] == "bert/base")
    assert base["parameters"] == 110_106_428  # as in transformers' BertForPreTraining, the tied matrix counted once
    assert base["about"] == "12 layers of width 768."
    shown = call("init").stdout
    assert all(name in shown for name in [*recipes.names(), *recipes.finetuning_names()])
    assert "110,106,428" in shown


def test_init_alone_shows_more_columns_in_a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "WIDE", 80)  # the console has 80 or 100 columns, as it was when it was first imported
    heading, *_ = call("init").stdout.splitlines()
    assert heading.split() == ["recipe", "parameters", "max_length", "batch_size", "steps", "about"]


BAD: dict[str, tuple[list[str], int, str]] = {
    "unknown recipe": (["init", "bert/bass"], 78, "did you mean bert/base?"),
    "unknown setting": (["init", "bert/base", "encoder.layer=4"], 78, "did you mean encoder.layers=4?"),
    "no TOML name": (["init", "bert/base", "-o", "{t}/recipe.json"], 2, "must end in .toml"),
    "no folder": (["init", "bert/base", "-o", "{t}/none/recipe.toml"], 74, "No such file"),
    "no recipe file": (["init", "{t}/none.toml"], 65, "none.toml"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_reported_in_one_line(case: str, tmp_path: Path) -> None:
    words, status, part = BAD[case]
    process = call(*[word.format(t=tmp_path) for word in words])
    assert process.returncode == status, process.stderr
    assert part in process.stderr
    assert len(process.stderr.strip().splitlines()) == 1


def test_steps_end_a_run_whose_recipe_has_minutes() -> None:
    assert recipes.find("bert/quick").minutes > 0
    assert with_overrides(recipes.find("bert/quick"), ["steps=20"]).minutes == 0
    assert with_overrides(recipes.find("bert/quick"), {"steps": 20}).minutes == 0
    assert with_overrides(recipes.find("bert/quick"), ["steps=20", "minutes=2"]).minutes == 2
