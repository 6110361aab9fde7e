"""Verbs that train: pretrain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Device, Json, Quiet, give

app = typer.Typer()


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name such as bert/base, or a recipe.json or .toml.")
    ],
    data: Annotated[Path, typer.Option("--data", "-d", metavar="DIR", help="Shards, from `bertsmith prepare`.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Run folder; an interrupted run goes on.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING=VALUE]...", help="Such as encoder.layers=4 plan.steps=1000.")
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pre-train a model on shards. Interrupted at any moment, the same command goes on from there."""
    from bertsmith import recipes, terminal
    from bertsmith.pretraining import pretrain as run_pretraining
    from bertsmith.recipe import with_overrides

    chosen = with_overrides(recipes.find(recipe), overrides or [])
    facts = run_pretraining(chosen, data, output, device=device, quiet=quiet or as_json)
    give(facts, as_json, lambda: terminal.table(facts))
