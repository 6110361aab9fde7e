"""Examples at the end of the help are valid commands, and the shell completes names quickly."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import call
from typer.models import OptionInfo

import bertsmith.cli.options as opt
from bertsmith import cli, config, recipes
from bertsmith.evaluation.evaluator import EvaluationConfig
from bertsmith.tasks.task import SPLITS, task_names
from bertsmith.training.recipe import find_task, make_finetune_config, with_overrides
from bertsmith.training.task_arguments import named_tasks

MAIN = "init train prepare check pretrain finetune evaluate predict embed fill-mask"
COMMANDS = [(name, example) for name, examples in cli.EXAMPLES.items() for example in examples]


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a command's arguments and options; the command does not run."""
    command, context = cli.command(), None
    while hasattr(command, "resolve_command"):
        context = command.make_context("bertsmith", words, parent=context, resilient_parsing=False)
        _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    values: dict[str, Any] = command.make_context("", words, parent=context).params
    return values


@pytest.mark.parametrize(("name", "example"), COMMANDS, ids=[example for _, example in COMMANDS])
def test_examples_of_the_help_are_valid_commands(name: str, example: str) -> None:
    program, *words = shlex.split(example)
    values = parsed(words)
    assert program == "bertsmith"
    assert name in ("", *words[:2])
    assert len(example) <= 77
    changes = values.get("overrides") or []
    if recipe := values.get("recipe"):
        with_overrides(recipes.find("bert/base" if recipe.endswith(".toml") else recipe), changes)
    elif name in ("evaluate", "predict"):
        settings = [change for change in changes if "=" in change]  # the others are further models
        config.override(EvaluationConfig(task=find_task("classification")), settings)
    elif given := values.get("task"):
        task = named_tasks([given] if isinstance(given, str) else given)
        own_recipe = isinstance(task, str) and task.endswith(".toml")
        make_finetune_config("classification" if own_recipe else task, "m", {}, changes)


def test_the_main_commands_have_examples() -> None:
    assert set(MAIN.split()) <= cli.EXAMPLES.keys()
    for words in (["finetune"], ["tokenizer", "train"], []):
        shown = call(*words, "--help").stdout
        for example in cli.EXAMPLES["".join(words[-1:])]:
            assert f"\n    {example}\n" in shown


@pytest.mark.parametrize("group", ["", "tokenizer", "runs"])
def test_no_command_of_a_list_is_cut_at_80_columns(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command = cli.command().get_command(None, group) if group else cli.command()  # type: ignore[arg-type]
    shown = command.get_help(command.context_class(command, info_name="bertsmith"))
    listed = shown.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == list(command.commands)
    assert not [line for line in listed if not line.endswith(".") or line.endswith("...")]


@pytest.mark.parametrize("app", [cli.app, *(one.typer_instance for one in cli.app.registered_groups)])
def test_options_whose_metavar_is_their_name_declare_it(app: typer.Typer) -> None:
    """Otherwise, typer 0.27 makes --KIND of an option `kind` with the metavar KIND."""
    for one in app.registered_commands:
        for name, parameter in inspect.signature(one.callback, eval_str=True).parameters.items():
            for option in getattr(parameter.annotation, "__metadata__", ()):
                if isinstance(option, OptionInfo) and option.metavar == name.upper():
                    declared = option.default, *(option.param_decls or ())  # typer takes the first one for the default
                    assert f"--{name}" in declared, f"{one.callback.__name__}: {name}"


def test_completion_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert opt.complete_recipe("") == recipes.names()
    assert opt.complete_any_recipe("") == [*recipes.names(), *recipes.finetuning_names()]
    assert opt.complete_task("") == task_names()
    assert opt.complete_task_or_recipe("") == [*task_names(), *recipes.finetuning_names()]
    assert {"classification", "glue/cola", "squad/2.0", "korean/nsmc", "conll/conll2003"} < set(task_names())
    assert opt.complete_kind("") == config.kinds("bertsmith.tokenizers")
    assert opt.complete_split("") == list(SPLITS)
    assert opt.complete_recipe("bert/ba") == ["bert/base"]
    assert opt.complete_task("class") == ["classification"]
    assert opt.complete_kind("w") == ["wordpiece", "words"]
    assert opt.complete_device("c") == ["cpu", "cuda"]
    (tmp_path / "class.toml").touch()
    (tmp_path / "class.csv").touch()
    (tmp_path / "classes").mkdir()
    assert opt.complete_task("class") == ["classification", "class.toml", "classes/"]


def test_completion_does_not_import_torch() -> None:
    lines = ["import sys", "import bertsmith.cli.options as opt", "opt.complete_recipe(''); opt.complete_task('')"]
    lines += ["opt.complete_kind('')", "print('torch' in sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_shell_completes_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"COMP_WORDS": "bertsmith finetune m --task glue/co", "COMP_CWORD": "4"}
    for name, value in {"_BERTSMITH_COMPLETE": "complete_bash", **words}.items():
        monkeypatch.setenv(name, value)
    assert call().stdout.split() == ["glue/cola"]
