"""Commands that train: pretrain, compare, finetune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith.cli.recipes import recipe_for, run_preflight
from bertsmith.errors import BertsmithError

app = typer.Typer()
RunFolder = Annotated[Path, opt.output("DIR", "Run folder; an interrupted run in it is resumed.")]
RESUME_HELP = "auto: resume the run in the folder; never: fail if there is one; PATH: resume from this checkpoint."
Resume = Annotated[str, typer.Option(metavar="auto|never|PATH", help=RESUME_HELP)]
TRACK_HELP = "Also log to tensorboard, wandb or mlflow; may be repeated."
Track = Annotated[list[str] | None, typer.Option("--track", metavar="NAME", help=TRACK_HELP)]
TASKS_HELP = (
    "Task, e.g. glue/cola, squad/1.1, classification, tagging; or a fine-tuning recipe: taglm/ner, FILE.toml. "
    "For several tasks, repeat the option; NAME=TASK names one, and --train NAME=FILE its file."
)
Tasks = Annotated[
    list[str], typer.Option("--task", "-t", metavar="TASK", help=TASKS_HELP, autocompletion=opt.complete_task_or_recipe)
]
VARIANTS_HELP = (
    "Recipes, each with its own settings after commas (name=... names its folder); then settings for all of them."
)


@app.command()
def pretrain(
    recipe: opt.RecipeName,
    data: opt.Data,
    output: RunFolder,
    overrides: opt.Overrides = None,
    start: Annotated[str, typer.Option(metavar="MODEL", help="Model folder or run with the initial weights.")] = "",
    resume: Resume = "auto",
    overwrite: opt.Overwrite = False,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data order, masking and dropout.")] = None,
    chart: Annotated[bool, opt.option("--chart", "Show the loss curve in the terminal while training.")] = False,
    track: Track = None,
    dry_run: Annotated[
        bool, opt.option("--dry-run", "Only check recipe, data, memory and a few steps (as `check`).")
    ] = False,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Pre-train a model on shards. If interrupted, run the same command again to resume."""
    from bertsmith.reports import terminal_runs
    from bertsmith.training.pretrain import pretrain as run_pretraining
    from bertsmith.training.trackers import check_trackers

    flags = [*([f"start={start}"] if start else []), *([f"seed={seed}"] if seed is not None else [])]
    chosen = recipe_for(recipe, data, [*flags, *(overrides or [])])
    check_trackers(track or ())
    if dry_run:
        run_preflight(chosen, data, None if overwrite else output, device=device, as_json=as_json)
        return
    options: dict[str, Any] = {"device": device, "quiet": quiet or as_json, "trackers": tuple(track or ())}
    facts = run_pretraining(chosen, data, output, resume=resume, chart=chart, overwrite=overwrite, **options)
    opt.print_result(facts, as_json, lambda: terminal_runs.training_result(facts))


@app.command()
def compare(
    variants: Annotated[
        list[str], typer.Argument(metavar="RECIPE[,SETTING=VALUE]... [SETTING=VALUE]...", help=VARIANTS_HELP)
    ],
    data: opt.Data,
    output: Annotated[Path, opt.output("DIR", "Folder of the runs; finished runs are skipped.")],
    jobs: Annotated[int, opt.at_least(1, "Runs in parallel.")] = 1,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Pre-train several recipes and compare them. Prints a table and a chart, and writes an HTML page."""
    from bertsmith import recipes
    from bertsmith.reports import terminal, terminal_runs
    from bertsmith.reports.comparison import scores
    from bertsmith.reports.run_history import read_run
    from bertsmith.training.compare import PAGE, chosen_recipes
    from bertsmith.training.compare import compare as run_comparison

    quiet, chosen = quiet or as_json, chosen_recipes(variants, recipes.find)
    folders = run_comparison(chosen, data, output, jobs=jobs, device=device, quiet=quiet, say=opt.reporter(quiet))
    runs = [read_run(folder) for folder in folders]
    page = output / PAGE
    opt.print_result({"runs": scores(runs), "page": str(page)}, as_json, lambda: terminal_runs.comparison(runs))
    if not as_json:
        terminal.console.print(f"\ncurves: {page}")


@app.command()
def finetune(
    model: opt.ModelFolder,
    task: Tasks,
    output: RunFolder,
    overrides: Annotated[list[str] | None, opt.overrides("epochs=4 batch_size=16 task.text=review")] = None,
    train: Annotated[list[str] | None, typer.Option(metavar="FILE", help="Training examples.")] = None,
    dev: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Dev examples: they select the best model.")
    ] = None,
    data: Annotated[list[str] | None, opt.option("--data", opt.DATA_HELP, "DIR")] = None,
    tokenizer: opt.Tokenizer = None,
    learning_rates: opt.LearningRates = "",
    seeds: opt.Seeds = 1,
    jobs: opt.Jobs = 1,
    resume: Resume = "auto",
    overwrite: opt.Overwrite = False,
    seed: Annotated[int | None, typer.Option(help="Seed of new heads, data order and dropout.")] = None,
    limit: Annotated[
        int | None,
        opt.at_least(1, "Use only the first N training examples, or with subset=stratified a random sample."),
    ] = None,
    track: Track = None,
    dry_run: Annotated[
        bool, opt.option("--dry-run", "Only read data and model; report steps and class counts.")
    ] = False,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Fine-tune a model on a task, or on several. With several learning rates or seeds, keep the best model."""
    from bertsmith import recipes
    from bertsmith.reports import terminal_runs
    from bertsmith.training.finetune import finetune as run_finetuning
    from bertsmith.training.finetune import preview
    from bertsmith.training.recipe import FILES, make_finetune_config
    from bertsmith.training.sweep import parse_learning_rates, sweep
    from bertsmith.training.task_arguments import check_recipe_files, named_files, named_tasks
    from bertsmith.training.trackers import check_trackers

    check_trackers(track or ())
    flags = opt.given(tokenizer=tokenizer, seed=seed, limit=limit)
    changes = [*(f"{name}={value}" for name, value in flags.items()), *(overrides or [])]
    tasks = named_tasks(task)
    paths = {"train": train, "dev": dev, "data": data}
    files = named_files(tasks, paths)
    named = recipes.find_finetuning(tasks) if isinstance(tasks, str) else None
    settings = make_finetune_config(named or tasks, model, files, changes)
    if isinstance(tasks, str) and tasks.endswith(FILES):
        check_recipe_files(tasks, {name: path for name, path in settings.files.items() if name not in files})
    options: dict[str, Any] = {"device": device, "quiet": quiet or as_json, "trackers": tuple(track or ())}
    if dry_run:
        planned = preview(settings, output, overwrite=overwrite)
        opt.print_result(planned, as_json, lambda: terminal_runs.planned_finetuning(planned))
        return
    options["overwrite"] = overwrite
    if not learning_rates and seeds == 1:
        facts = run_finetuning(settings, output, resume=resume, **options)
        opt.print_result(facts, as_json, lambda: terminal_runs.training_result(facts))
        return
    if resume != "auto":
        raise BertsmithError("--resume is for a single run: with --learning-rates or --seeds finished runs are skipped")
    rates = parse_learning_rates(learning_rates) or [settings.learning_rate]
    result = sweep(settings, output, learning_rates=rates, seeds=seeds, jobs=jobs, **options)
    opt.print_result(result, as_json, lambda: terminal_runs.sweep(result))
