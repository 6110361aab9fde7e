"""Arguments and options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

Corpora = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Files, folders or quoted globs: txt, jsonl, csv, tsv, parquet, WikiExtractor; also .gz .bz2 .xz .zst.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Output folder.")]
FileFormat = Annotated[
    str,
    typer.Option(
        "--format", help="auto, blank (lines between documents), line, file, wiki, jsonl, csv, tsv or parquet."
    ),
]
Field = Annotated[str, typer.Option(help="Column or key of the text in jsonl, csv, tsv and parquet.")]
Encoding = Annotated[str, typer.Option(help="Character encoding of text files, e.g. utf-8 or cp949.")]
DecodingErrors = Annotated[
    str, typer.Option("--errors", help="Bytes that cannot be decoded: strict (an error), replace or ignore.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Read only the first N documents.")]
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, from bertsmith or transformers.")]
RECIPE_HELP = "A name such as bert/base, or the path of a recipe.json or .toml file."
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help=RECIPE_HELP)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SETTING=VALUE]...", help="Override settings, e.g. encoder.layers=4 steps=1000."),
]
TaskName = Annotated[
    str, typer.Option("--task", "-t", metavar="TASK", help="Task, e.g. glue/cola, squad/1.1, classification, tagging.")
]
Data = Annotated[Path, typer.Option("--data", "-d", metavar="DIR", help="Shards written by `bertsmith prepare`.")]
TaskData = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Folder of the benchmark, instead of single files.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")]


def print_result(facts: dict[str, Any], as_json: bool, show: Callable[[], None] | None = None) -> None:
    """Prints the result as one JSON object or with `show`; in a distributed run only on rank 0."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    elif show:
        show()


def read_options(file_format: str, field: str, encoding: str, errors: str) -> Any:
    from bertsmith import config
    from bertsmith.data.corpus import ReadOptions

    return config.from_dict(
        ReadOptions, {"format": file_format, "field": field, "encoding": encoding, "errors": errors}
    )


def given_files(**paths: Path | None) -> dict[str, Path]:
    """The files that were passed on the command line."""
    return {name: path for name, path in paths.items() if path}
