"""Commands for recipes: init, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.cli.options import RECIPE_HELP, Data, Device, Json, Overrides, RecipeName, print_result

app = typer.Typer()


@app.command()
def init(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help=RECIPE_HELP)] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="TOML file to write; default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Write a recipe as a commented TOML file. Without a recipe, list all recipes."""
    from bertsmith import config, recipes
    from bertsmith.reports import terminal
    from bertsmith.training import recipe_toml
    from bertsmith.training.recipe import with_overrides

    if recipe is None:
        from bertsmith.training.preflight_trial import recipe_facts

        known = [{"recipe": name, "about": recipes.about(name)} for name in recipes.names()]
        facts: dict[str, Any] = {"recipes": [one | recipe_facts(recipes.find(one["recipe"])) for one in known]}
        print_result(facts, as_json, lambda: terminal.recipe_list(facts["recipes"]))
        return
    chosen = with_overrides(recipes.find(recipe), overrides or [])
    facts = {"recipe": chosen.name, "file": None if output is None else str(output), "settings": config.to_dict(chosen)}
    if output is not None:
        recipe_toml.write_toml(chosen, output, force=force)
        print_result(facts, as_json, lambda: terminal.facts_table({"recipe": chosen.name, "file": output}))
    else:
        print_result(facts, as_json, lambda: print(recipe_toml.to_toml(chosen), end=""))


@app.command()
def check(
    recipe: RecipeName,
    data: Data,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Run folder of the planned run.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Check a pre-training run before starting it. Tests recipe, data, a few training steps, speed and memory."""
    from bertsmith import recipes
    from bertsmith.training.recipe import with_overrides

    run_preflight(with_overrides(recipes.find(recipe), overrides or []), data, output, device=device, as_json=as_json)


def run_preflight(recipe: Any, data: Path, output: Path | None, *, device: str, as_json: bool) -> None:
    """Prints each check as it completes; raises the first problem's error at the end."""
    from bertsmith.reports import terminal
    from bertsmith.training import preflight

    findings = []
    for finding in preflight.preflight(recipe, data, output=output, device=device):
        findings.append(finding)
        if not as_json:
            terminal.preflight_check(finding.to_dict())
    print_result(preflight.summary(findings), as_json)
    for finding in findings:
        if finding.error is not None:
            raise finding.error
