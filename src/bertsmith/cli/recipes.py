"""Verbs for recipes, before a run: init, check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.cli.options import Data, Device, Json, Overrides, give

app = typer.Typer()


@app.command()
def init(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="A name such as bert/base, or a recipe.json or .toml; none lists them."
        ),
    ] = None,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="TOML file to write; default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is already there.")] = False,
    as_json: Json = False,
) -> None:
    """Write a recipe as TOML with every setting explained, to be changed and trained; without one, list them all."""
    from bertsmith import config, recipes
    from bertsmith.reports import terminal
    from bertsmith.training import recipe_toml
    from bertsmith.training.recipe import with_overrides

    if recipe is None:
        from bertsmith.training.preflight.sizes import recipe_facts

        known = [{"recipe": name, "about": recipes.about(name)} for name in recipes.names()]
        facts: dict[str, Any] = {"recipes": [one | recipe_facts(recipes.find(one["recipe"])) for one in known]}
        give(facts, as_json, lambda: terminal.recipe_list(facts["recipes"]))
        return
    chosen = with_overrides(recipes.find(recipe), overrides or [])
    facts = {"recipe": chosen.name, "file": None if output is None else str(output), "settings": config.to_dict(chosen)}
    if output is not None:
        recipe_toml.write_toml(chosen, output, force=force)
        give(facts, as_json, lambda: terminal.facts_table({"recipe": chosen.name, "file": output}))
    else:
        give(facts, as_json, lambda: print(recipe_toml.to_toml(chosen), end=""))


@app.command()
def check(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name such as bert/base, or a recipe.json or .toml.")
    ],
    data: Data,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Run folder that would be written to.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Would this run work, how fast, in how much memory? Takes a few steps on the real rows, writes nothing."""
    from bertsmith import recipes
    from bertsmith.training.recipe import with_overrides

    show_checks(with_overrides(recipes.find(recipe), overrides or []), data, output, device=device, as_json=as_json)


def show_checks(recipe: Any, data: Path, output: Path | None, *, device: str, as_json: bool) -> None:
    """The checklist, line by line as it is made; the first problem's error at the end."""
    from bertsmith.reports import terminal
    from bertsmith.training.preflight import checklist

    findings = []
    for found in checklist.check(recipe, data, output=output, device=device):
        findings.append(found)
        if not as_json:
            terminal.preflight_check(found.to_dict())
    give(checklist.summary(findings), as_json)
    for found in findings:
        if found.error is not None:
            raise found.error
