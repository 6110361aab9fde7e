"""Verbs that need nothing: doctor, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Device, Json, Quiet, give
from bertsmith.errors import BertsmithError

app = typer.Typer()


@app.command()
def doctor(
    device: Device = "auto",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Also measure what the GPU can do at most: products, copies, attention.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Versions, device, memory, disk, and a numeric check of the device against the CPU."""
    from bertsmith.cli.doctor import examine
    from bertsmith.reports import terminal

    facts = examine("cuda" if gpu else device, ceilings=gpu)
    give(facts, as_json, lambda: terminal.doctor_card(facts))
    if not facts["ok"]:
        raise BertsmithError("; ".join(facts["problems"]))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")] = Path("demo-out"),
    quiet: Quiet = False,
) -> None:
    """The main job on text that is on every machine: Python's own documentation and a little Korean."""
    from bertsmith.cli.demo_run import run_demo

    run_demo(output, quiet=quiet)
