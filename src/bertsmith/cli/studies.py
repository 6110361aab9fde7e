"""Verbs for studies, many fine-tunings in one table: features, ablate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Device, Json, Quiet, give

app = typer.Typer()
Folder = Annotated[
    Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the study; what is finished is not done again.")
]


@app.command()
def features(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, ours or transformers'.")],
    task: Annotated[str, typer.Option("--task", "-t", metavar="TASK", help="Such as conll/conll2003, tagging.")],
    output: Folder,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SETTING=VALUE]...", help="Such as epochs=20 head.dropout=0.5 task.context=document."),
    ] = None,
    train: Annotated[Path | None, typer.Option(metavar="FILE", help="Training examples.", show_default=False)] = None,
    dev: Annotated[Path | None, typer.Option(metavar="FILE", help="Examples to choose on.", show_default=False)] = None,
    test: Annotated[Path | None, typer.Option(metavar="FILE", help="Examples to report.", show_default=False)] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The benchmark's folder, instead of files.", show_default=False)
    ] = None,
    layers: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="embeddings, second_to_last, top, last_four_sum, last_four_concat, all_sum, mix.",
            show_default="all but mix",
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Taggers for each choice of layers.")] = 5,
    jobs: Annotated[int, typer.Option(min=1, help="Taggers at a time: a large GPU has room for several.")] = 1,
    precision: Annotated[str, typer.Option(help="Of features on disk: float32, or float16 for half the room.")] = (
        "float32"
    ),
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train BiLSTM taggers on the features of a frozen model: which layers say most?"""
    from bertsmith.reports import terminal_runs
    from bertsmith.studies.features import feature_tuning
    from bertsmith.studies.features import features as study

    given = {"train": train, "dev": dev, "test": test, "data": data}
    files = {name: path for name, path in given.items() if path}
    found = study(
        feature_tuning(task, model, files, overrides or []),
        output,
        layers=[name for name in layers.split(",") if name],
        seeds=seeds,
        jobs=jobs,
        precision=precision,  # type: ignore[arg-type]
        device=device,
        quiet=quiet or as_json,
    )
    give(found, as_json, lambda: terminal_runs.features(found))


@app.command()
def ablate(
    folders: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]FOLDER...",
            help="Pre-trained model folders; ltr+bilstm is ltr's once more, with a BiLSTM on top, base+fresh base's "
            "without what it learned.",
        ),
    ],
    task: Annotated[
        list[str], typer.Option("--task", "-t", metavar="TASK", help="Such as glue/mrpc, squad/1.1; may be repeated.")
    ],
    data: Annotated[
        list[str], typer.Option("--data", metavar="[TASK=]DIR", help="The benchmark's folder; may be repeated.")
    ],
    output: Folder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="[TASK:]SETTING=VALUE", help="For all tasks, or one; may be repeated."),
    ] = None,
    rates: Annotated[
        str, typer.Option(metavar="A,B,...", help="Rates to try; the best on dev counts.", show_default=False)
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs with other heads and orders for each rate.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Fine-tunings at a time: a large GPU has room for several.")] = 1,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune several pre-trained models alike on several tasks: what was each part of pre-training worth?"""
    from bertsmith.reports import terminal_runs
    from bertsmith.studies.ablations import ablate as study
    from bertsmith.studies.ablations import candidates, trials
    from bertsmith.training.finetuning.sweep import parse_learning_rates

    quiet = quiet or as_json
    found = study(
        candidates(folders),
        trials(task, data, settings or []),
        output,
        rates=parse_learning_rates(rates),
        seeds=seeds,
        jobs=jobs,
        device=device,
        quiet=quiet,
        say=(lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr)),
    )
    give(found, as_json, lambda: terminal_runs.ablations(found))
