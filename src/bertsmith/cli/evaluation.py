"""Verbs for a fine-tuned model: evaluate, predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Device, Json, Quiet, give

app = typer.Typer()
Tuned = Annotated[Path, typer.Argument(metavar="MODEL", help="Fine-tuned model folder, or a run folder.")]
TaskName = Annotated[
    str,
    typer.Option(
        "--task", "-t", metavar="TASK", help="Such as glue/cola; default: that of the run.", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[SETTING=VALUE]...", help="Such as length=256 task.text=review.")
]


@app.command()
def evaluate(
    model: Tuned,
    task: TaskName = "",
    overrides: Settings = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The benchmark's folder.", show_default=False)
    ] = None,
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="Examples to score on.", show_default=False)] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file of the split.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "dev",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for numbers, page and submission files."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score a fine-tuned model: baselines, what is taken for what, calibration, the worst errors."""
    from bertsmith.errors import BertsmithError, DataError
    from bertsmith.evaluation import terminal
    from bertsmith.evaluation.evaluation import evaluate_with
    from bertsmith.evaluation.evaluator import (
        evaluation_files,
        find_model_folder,
        finetune_config_of,
        make_evaluation_config,
    )
    from bertsmith.evaluation.output_files import write_evaluation

    if sum(path is not None for path in (data, dev, file)) > 1:
        raise BertsmithError("--data, --dev and --file all say where the examples are: pass one of them")
    if dev and split != "dev":
        raise BertsmithError(f"--dev is the file of dev: pass --file FILE with --split {split}")
    tuning = finetune_config_of(find_model_folder(model))
    given = {"data": data, split: dev or file}
    files = evaluation_files(tuning, {name: path for name, path in given.items() if path}, split=split)
    asking = make_evaluation_config(tuning, task, overrides or [])
    found = evaluate_with(asking, model, files, split, device, quiet=quiet or as_json)
    if not found.scores and not (output and found.submission):
        raise DataError(f"{split} has no right answers to score by: take another --split, or bertsmith predict")
    written = write_evaluation(found, output) if output else []
    facts = found.to_dict() | {"written": [str(path) for path in written]}
    give(facts, as_json, lambda: terminal.evaluation(found, written))


@app.command()
def predict(
    model: Tuned,
    file: Annotated[Path, typer.Option(metavar="FILE", help="Examples, with answers or without.")],
    task: TaskName = "",
    overrides: Settings = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this .jsonl, .csv or .tsv file."),
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Answer every example of a file, one row each in their order; without -o as JSON lines on standard output."""
    from bertsmith.evaluation.evaluator import (
        find_model_folder,
        finetune_config_of,
        make_evaluation_config,
        open_evaluator,
    )
    from bertsmith.evaluation.output_files import as_lines, check_output, prediction_rows, write_predictions
    from bertsmith.reports import terminal

    if output:
        check_output(output)
    asking = make_evaluation_config(finetune_config_of(find_model_folder(model)), task, overrides or [])
    asked = open_evaluator(asking, model, {"test": file}, device=device)
    rows = prediction_rows(asked, quiet=quiet or as_json)
    if output is None:
        for line in as_lines(rows):
            sys.stdout.write(line)
        return
    count = write_predictions(rows, output)
    facts = {"model": str(asked.folder), "task": asked.task.name, "examples": count, "output": str(output)}
    give(facts, as_json, lambda: terminal.facts_table(facts))
