"""Verbs that look at runs: list, show, compare, plot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Json, give
from bertsmith.errors import BertsmithError, DataError

app = typer.Typer(no_args_is_help=True, help="Look at training runs: list, show, compare, plot.")
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, the -o of a training command.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")]


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder below which runs are looked for.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List the runs below a folder: how far, how fast, how good."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.comparison import with_unique_names
    from bertsmith.reports.run_history import find_runs, read_run
    from bertsmith.reports.run_summary import summary

    found, damaged = [], []
    for path in find_runs(folder):
        try:
            found.append(read_run(path))
        except DataError as error:  # the others can still be listed
            damaged.append(str(error))
    if not found and not damaged:
        raise BertsmithError(f"there is no run in {folder} or below it")
    found = with_unique_names(found)
    facts = {"runs": [summary(run) for run in found], "damaged": damaged}
    give(facts, as_json, lambda: terminal_runs.run_list(found, damaged))


@app.command()
def show(
    run: RunFolder,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Draw anew until the run ends.")] = False,
    as_json: Json = False,
) -> None:
    """Show one run: figures, curves, the last evaluation."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.run_history import RunReader
    from bertsmith.reports.run_summary import summary

    reader = RunReader(run)
    if follow and not as_json:
        terminal_runs.follow(reader)
        return
    found = reader.read()
    give(summary(found), as_json, lambda: terminal_runs.run_card(found))


@app.command()
def compare(
    runs: RunFolders,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write an HTML page too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: where their recipes differ, and what came of each."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.comparison import differences, read_runs, scores
    from bertsmith.reports.report_page import write_report

    found = read_runs(runs)
    if len(found) < 2:
        raise BertsmithError(f"{runs[0]} is a single run: name another one to compare it with")
    facts = {"runs": [run.name for run in found], "differences": differences(found), "scores": scores(found)}
    if output is not None:
        facts["page"] = str(write_report(found, output))
    give(facts, as_json, lambda: terminal_runs.comparison(found))


@app.command()
def plot(
    runs: RunFolders,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page; default: RUN/report.html, of several runs.html beside."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Draw the curves of runs: here, and as an HTML page that needs nothing else."""
    import webbrowser

    from bertsmith.reports import terminal, terminal_runs
    from bertsmith.reports.comparison import read_runs
    from bertsmith.reports.report_page import write_report

    found = read_runs(runs)
    folders = [run.folder.resolve() for run in found]
    beside = Path(os.path.commonpath([folder.parent for folder in folders])) / "runs.html"
    page = write_report(found, output or (found[0].folder / "report.html" if len(found) == 1 else beside))
    facts = {"runs": [run.name for run in found], "page": str(page), "bytes": page.stat().st_size}
    give(facts, as_json, lambda: terminal_runs.curves(found))
    if not as_json:
        terminal.console.print(f"page: {page}", soft_wrap=True)
    if browser:
        webbrowser.open(page.resolve().as_uri())
