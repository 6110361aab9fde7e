"""Verbs that train: pretrain, compare, finetune."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bertsmith.cli.options import Data, Device, Json, Overrides, Quiet, give
from bertsmith.cli.recipes import show_checks
from bertsmith.errors import BertsmithError

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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check recipe, data, memory and one step.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pre-train a model on shards. Interrupted at any moment, the same command goes on from there."""
    from bertsmith import recipes
    from bertsmith.reports import terminal
    from bertsmith.training.pretraining import pretrain as run_pretraining
    from bertsmith.training.recipe import with_overrides
    from bertsmith.training.trackers import check_trackers

    changes = [*([f"start={start}"] if start else []), *([f"seed={seed}"] if seed is not None else [])]
    chosen = with_overrides(recipes.find(recipe), [*changes, *(overrides or [])])
    check_trackers(track or ())
    if dry_run:
        show_checks(chosen, data, output, device=device, as_json=as_json)
        return
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
    give(facts, as_json, lambda: terminal.facts_table(facts))


@app.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE[,SETTING=VALUE]... [SETTING=VALUE]...",
            help="Recipes, each with settings of its own behind commas (name=… is its folder); then settings for all.",
        ),
    ],
    data: Data,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the runs; finished ones are not done again."),
    ],
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time: one compiles while another one learns.")] = 1,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Pre-train several recipes on the same data; then one table, one picture, one page."""
    from bertsmith import recipes
    from bertsmith.reports import terminal, terminal_runs
    from bertsmith.reports.comparison import scores
    from bertsmith.reports.run_history import read_run
    from bertsmith.training.compare import PAGE, chosen_recipes
    from bertsmith.training.compare import compare as run_comparison

    say = (lambda text: None) if quiet or as_json else (lambda text: print(text, file=sys.stderr))
    chosen = chosen_recipes(words, recipes.find)
    folders = run_comparison(chosen, data, output, jobs=jobs, device=device, quiet=quiet or as_json, say=say)
    runs = [read_run(folder) for folder in folders]
    page = output / PAGE
    facts = {"runs": scores(runs), "page": str(page)}
    give(facts, as_json, lambda: terminal_runs.comparison(runs))
    if not as_json:
        terminal.console.print(f"\n{page} has the curves")


@app.command()
def finetune(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, ours or transformers'.")],
    task: Annotated[str, typer.Option("--task", "-t", metavar="TASK", help="Such as glue/cola, squad/1.1, tagging.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Run folder; an interrupted run goes on.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SETTING=VALUE]...", help="Such as epochs=4 batch_size=16 task.text=review."),
    ] = None,
    train: Annotated[Path | None, typer.Option(metavar="FILE", help="Training examples.", show_default=False)] = None,
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="Examples to score on.", show_default=False)] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The benchmark's folder, instead of files.", show_default=False)
    ] = None,
    rates: Annotated[
        str, typer.Option(metavar="A,B,...", help="Rates to try; the best on dev is kept.", show_default=False)
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs with other heads and orders for each rate.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="So many of them at a time: a large GPU has room for several.")] = 1,
    resume: Resume = "auto",
    track: Track = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model folder on a task; with several rates or seeds, a table of all and the best of them."""
    from bertsmith.reports import terminal, terminal_runs
    from bertsmith.training.finetuning.sweep import parse_learning_rates, sweep
    from bertsmith.training.finetuning.tuning import make_finetune_config
    from bertsmith.training.finetuning.work import finetune as run_finetuning
    from bertsmith.training.trackers import check_trackers

    check_trackers(track or ())
    given = {"train": train, "dev": dev, "data": data}
    files = {name: path for name, path in given.items() if path}
    tuning = make_finetune_config(task, model, files, overrides or [])
    how: dict[str, Any] = {"device": device, "quiet": quiet or as_json, "trackers": tuple(track or ())}
    if not rates and seeds == 1:
        facts = run_finetuning(tuning, output, resume=resume, **how)
        give(facts, as_json, lambda: terminal.facts_table(facts))
        return
    if resume != "auto":
        raise BertsmithError("--resume is for one run: with --rates or --seeds what is finished is not done again")
    found = sweep(
        tuning,
        output,
        learning_rates=parse_learning_rates(rates) or [tuning.learning_rate],
        seeds=seeds,
        jobs=jobs,
        **how,
    )
    give(found, as_json, lambda: terminal_runs.sweep(found))
