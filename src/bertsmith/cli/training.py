"""Verbs that train: pretrain, compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Data, Device, Json, Overrides, Quiet, give

app = typer.Typer()
Resume = Annotated[
    str,
    typer.Option(
        metavar="auto|never|PATH", help="Go on with an interrupted run, refuse to, or go on from a checkpoint."
    ),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="Also write to tensorboard, wandb or mlflow; may be repeated."),
]


@app.command()
def pretrain(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name such as bert/base, or a recipe.json or .toml.")
    ],
    data: Data,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Run folder; an interrupted run goes on.")
    ],
    overrides: Overrides = None,
    start: Annotated[
        str, typer.Option(metavar="MODEL", help="Model folder whose weights a new run begins with.", show_default=False)
    ] = "",
    resume: Resume = "auto",
    seed: Annotated[int | None, typer.Option(help="Of weights, rows, masks and dropout.", show_default=False)] = None,
    picture: Annotated[bool, typer.Option("--picture", help="Curves while it runs, on a terminal.")] = False,
    track: Track = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pre-train a model on shards. Interrupted at any moment, the same command goes on from there."""
    from bertsmith import recipes, terminal
    from bertsmith.pretraining import pretrain as run_pretraining
    from bertsmith.recipe import with_overrides

    changes = [*([f"start={start}"] if start else []), *([f"seed={seed}"] if seed is not None else [])]
    chosen = with_overrides(recipes.find(recipe), [*changes, *(overrides or [])])
    facts = run_pretraining(
        chosen,
        data,
        output,
        device=device,
        resume=resume,
        quiet=quiet or as_json,
        picture=picture,
        trackers=tuple(track or ()),
    )
    give(facts, as_json, lambda: terminal.table(facts))


@app.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE[,SETTING=VALUE]... [SETTING=VALUE]...",
            help="Recipes, each with settings of its own behind commas; then settings for all of them.",
        ),
    ],
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the runs; finished ones are not done again."),
    ],
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pre-train several recipes on the same data, one after the other; then one table, one picture, one page."""
    from bertsmith import recipes, terminal, terminal_runs
    from bertsmith.comparing import PAGE, chosen_recipes
    from bertsmith.comparing import compare as run_comparison
    from bertsmith.runs.comparison import scores
    from bertsmith.runs.history import read_run

    say = (lambda text: None) if quiet or as_json else (lambda text: print(text, file=sys.stderr))
    folders = run_comparison(
        chosen_recipes(words, recipes.find), data, output, device=device, quiet=quiet or as_json, say=say
    )
    runs = [read_run(folder) for folder in folders]
    page = output / PAGE
    facts = {"runs": scores(runs), "page": str(page)}
    give(facts, as_json, lambda: terminal_runs.comparison(runs))
    if not as_json:
        terminal.console.print(f"\n{page} has the curves")
