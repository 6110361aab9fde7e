"""Commands for recipes: init, check."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith.errors import BertsmithError

app = typer.Typer()
NEW_TASK_HELP = "Write a fine-tuning recipe for this task, e.g. classification."


@app.command()
def init(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help=opt.RECIPE_HELP, autocompletion=opt.complete_any_recipe)
    ] = None,
    overrides: opt.Overrides = None,
    task: Annotated[
        str,
        typer.Option("--task", "-t", metavar="TASK", help=NEW_TASK_HELP, autocompletion=opt.complete_task),
    ] = "",
    output: Annotated[Path | None, opt.output("FILE", "TOML file to write; default: print it.")] = None,
    force: Annotated[bool, opt.option("--force", "Replace an existing file.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Write a recipe as a commented TOML file.

    Without a recipe, list all recipes. With --task, write one for fine-tuning.
    """
    from bertsmith import config, recipes
    from bertsmith.reports import terminal
    from bertsmith.training import recipe_toml
    from bertsmith.training.recipe import FILES, TASKS, make_finetune_config, with_overrides

    chosen: Any
    if not task and recipe and recipes.find_finetuning(recipe):
        task, recipe = recipe, None
    if recipe and not task and recipe.partition("/")[0] in config.kinds(TASKS):
        raise BertsmithError(f"{recipe} is a task, not a recipe: pass --task {recipe}")
    if task:
        chosen = make_finetune_config(
            recipes.find_finetuning(task) or task, "", {}, [*([recipe] if recipe else []), *(overrides or [])]
        )
    elif recipe:
        chosen = with_overrides(recipes.find(recipe), overrides or [], from_file=recipe.endswith(FILES))
    else:
        from bertsmith.training.preflight_trial import recipe_facts

        known = [{"recipe": name, "about": recipes.about(name)} for name in recipes.names()]
        facts: dict[str, Any] = {"recipes": [one | recipe_facts(recipes.find(one["recipe"])) for one in known]}
        facts["finetuning"] = [{"recipe": name, "about": recipes.about(name)} for name in recipes.finetuning_names()]
        opt.print_result(facts, as_json, lambda: terminal.recipe_list(facts["recipes"], facts["finetuning"]))
        return
    facts = {"recipe": chosen.name, "file": None if output is None else str(output), "settings": config.to_dict(chosen)}
    if output is not None:
        recipe_toml.write_toml(chosen, output, force=force)
        opt.print_result(facts, as_json, lambda: terminal.facts_table({"recipe": chosen.name, "file": output}))
    else:
        opt.print_result(facts, as_json, lambda: print(recipe_toml.to_toml(chosen), end=""))


@app.command()
def check(
    recipe: opt.RecipeName,
    data: opt.Data,
    overrides: opt.Overrides = None,
    output: Annotated[Path | None, opt.output("DIR", "Run folder of the planned run.")] = None,
    device: opt.Device = "auto",
    as_json: opt.Json = False,
) -> None:
    """Check a pre-training run before starting it. Tests recipe, data, a few training steps, speed and memory."""
    chosen = recipe_for(recipe, data, overrides or [])
    run_preflight(chosen, data, output, device=device, as_json=as_json)


def recipe_for(name: str, data: Path, overrides: list[str]) -> Any:
    """The recipe of that name or file with overrides, for a run on these shards."""
    from bertsmith import recipes
    from bertsmith.training.pretrain_data import PretrainData
    from bertsmith.training.recipe import FILES, with_overrides

    rows = partial(PretrainData.rows_per_epoch, data)
    return with_overrides(recipes.find(name), overrides, from_file=name.endswith(FILES), rows_per_epoch=rows)


def run_preflight(recipe: Any, data: Path, output: Path | None, *, device: str, as_json: bool) -> None:
    """Prints each check as it completes; raises the first problem's error at the end."""
    from bertsmith.reports import terminal
    from bertsmith.training import preflight

    findings = []
    for finding in preflight.preflight(recipe, data, output=output, device=device):
        findings.append(finding)
        if not as_json:
            terminal.preflight_check(finding.to_dict())
    opt.print_result(preflight.summary(findings), as_json, lambda: None)
    for finding in findings:
        if finding.error is not None:
            raise finding.error
