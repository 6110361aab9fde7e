"""Flags that several verbs share, and how results and settings pass between the command line and the verbs."""

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
        help="Files, folders or quoted globs: txt, jsonl, csv, tsv, parquet, WikiExtractor; .gz .bz2 .xz .zst too.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")]
Layout = Annotated[
    str,
    typer.Option(
        "--format", help="auto, blank (line between documents), line, file, wiki, jsonl, csv, tsv or parquet."
    ),
]
Field = Annotated[str, typer.Option(help="Column or key that holds the text in jsonl, csv, tsv and parquet.")]
Encoding = Annotated[str, typer.Option(help="Character encoding of text files, such as utf-8 or cp949.")]
Broken = Annotated[
    str, typer.Option("--errors", help="Bytes that are no text: strict (stop and name them), replace or ignore.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.", show_default=False)]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only the first N documents.", show_default=False)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[SETTING=VALUE]...", help="Such as encoder.layers=4 steps=1000.")
]
Data = Annotated[Path, typer.Option("--data", "-d", metavar="DIR", help="Shards, from `bertsmith prepare`.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


def give(facts: dict[str, Any], as_json: bool, show: Callable[[], None] | None = None) -> None:
    """The result: as one JSON object if that was asked for, else as `show` shows it. Of several ranks, the first's."""
    if os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    elif show:
        show()


def reading_of(layout: str, field: str, encoding: str, errors: str) -> Any:
    from bertsmith import config
    from bertsmith.data.corpus import ReadOptions

    return config.from_dict(ReadOptions, {"format": layout, "field": field, "encoding": encoding, "errors": errors})
