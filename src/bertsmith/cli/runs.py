"""Commands for training runs: runs list, show, compare and plot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import bertsmith.cli.options as opt
from bertsmith.errors import BertsmithError, DataError

app = typer.Typer(no_args_is_help=True, help="List, show, compare and plot training runs.")
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder: the -o of a training command.")]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders of runs.")]


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to search for runs.")] = Path("runs"),
    as_json: opt.Json = False,
) -> None:
    """List the runs below a folder. Shows progress, throughput and held-out loss."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.comparison import with_unique_names
    from bertsmith.reports.run_history import find_runs, read_run
    from bertsmith.reports.run_summary import summary

    histories, damaged = [], []
    for path in find_runs(folder):
        try:
            histories.append(read_run(path))
        except DataError as error:  # the other runs can still be listed
            damaged.append(str(error))
    if not histories and not damaged:
        raise BertsmithError(f"no run in {folder} or below it")
    histories = with_unique_names(histories)
    facts = {"runs": [summary(run) for run in histories], "damaged": damaged}
    opt.print_result(facts, as_json, lambda: terminal_runs.run_list(histories, damaged))


@app.command()
def show(
    run: RunFolder,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Redraw until the run ends.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show one run: figures, curves and the last evaluation."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.run_history import RunReader
    from bertsmith.reports.run_summary import summary

    reader = RunReader(run)
    if follow and not as_json:
        terminal_runs.follow(reader)
        return
    history = reader.read()
    opt.print_result(summary(history), as_json, lambda: terminal_runs.run_card(history))


@app.command()
def compare(
    runs: RunFolders,
    output: Annotated[Path | None, opt.output("FILE", "Also write an HTML page.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Compare runs: differences of their recipes, scores and losses."""
    from bertsmith.reports import terminal_runs
    from bertsmith.reports.comparison import differences, read_runs, scores
    from bertsmith.reports.report_page import write_report

    histories = read_runs(runs)
    if len(histories) < 2:
        raise BertsmithError(f"{runs[0]} is a single run: name another one to compare it with")
    names = [run.name for run in histories]
    facts = {"runs": names, "differences": differences(histories), "scores": scores(histories)}
    if output is not None:
        facts["page"] = str(write_report(histories, output))
    opt.print_result(facts, as_json, lambda: terminal_runs.comparison(histories))


@app.command()
def plot(
    runs: RunFolders,
    output: Annotated[
        Path | None, opt.output("FILE", "HTML page; default: RUN/report.html, for several runs runs.html.")
    ] = None,
    browser: Annotated[bool, opt.option("--open", "Open the page in a browser.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Plot the curves of runs. Draws them in the terminal and writes a self-contained HTML page."""
    import webbrowser

    from bertsmith.reports import terminal, terminal_runs
    from bertsmith.reports.comparison import read_runs
    from bertsmith.reports.report_page import write_report

    histories = read_runs(runs)
    together = Path(os.path.commonpath([run.folder.resolve().parent for run in histories])) / "runs.html"
    default = histories[0].folder / "report.html" if len(histories) == 1 else together
    page = write_report(histories, output or default)
    facts = {"runs": [run.name for run in histories], "page": str(page), "bytes": page.stat().st_size}
    opt.print_result(facts, as_json, lambda: terminal_runs.curves(histories))
    if not as_json:
        terminal.console.print(f"page: {page}", soft_wrap=True)
    if browser:
        webbrowser.open(page.resolve().as_uri())
