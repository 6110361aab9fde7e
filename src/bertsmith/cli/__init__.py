"""The command line: verbs, flags and exit codes; no logic. Answers --help without importing torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import cache
from typing import Annotated, Any, NoReturn

import typer

from bertsmith import __version__
from bertsmith.cli import (
    data,
    evaluation,
    exporting,
    inference,
    machine,
    models,
    recipes,
    runs,
    serve,
    studies,
    training,
)
from bertsmith.errors import BertsmithError, PeerLostError, StoppedError

app = typer.Typer(
    name="bertsmith",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for part in (data, recipes, training, evaluation, studies, models, inference, exporting, serve, machine):
    app.add_typer(part.app)
app.add_typer(runs.app, name="runs")


@app.callback(invoke_without_command=True)
def bertsmith(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """From raw text to your own working BERT."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


@cache
def command() -> Any:
    """All verbs with their flags. To read them takes a fifth of a second, once in a process."""
    return typer.main.get_command(app)


INTERRUPTED = 130  # what the option parser makes of a KeyboardInterrupt
ENDED_WITHIN = 2.0  # seconds in which torchrun ends the other ranks when one has ended
LOST_WITHIN = 20.0  # and when one is gone, which a busy machine takes longer to notice
OUT_OF_MEMORY = (
    "out of GPU memory; what was finished is kept: run the same command again with fewer --jobs, "
    "or with nothing else on that GPU"
)


def main() -> NoReturn:
    """Runs a verb; whatever a user can cause ends as one line on standard error and its exit status."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        status = command()(standalone_mode=False) or 0
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(status)
    except BertsmithError as error:
        if (
            isinstance(error, PeerLostError) and error.stop_requested
        ):  # by torchrun, which has noticed first and ends who is left
            sys.exit(error.exit_code)
        _leave(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _leave("stopped; what was finished is kept, and the same command goes on from there", StoppedError.exit_code)
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the option parser's, where no verb is named: the help
            print(error, file=sys.stderr)
            sys.exit(2)
        if hasattr(error, "format_message"):  # how it reports wrong usage
            _leave(f"{error.format_message()} Try --help.", 2)
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported for its name alone
            _leave(OUT_OF_MEMORY, BertsmithError.exit_code)
        raise


_heard: list[int] = []  # signals that came to a rank when its error was on its way out already


def _stop(number: int, frame: Any) -> None:
    """Interrupts; but where an error is on its way out of a rank, this does not take its place."""
    if "RANK" in os.environ and sys.exc_info()[0] is not None:
        _heard.append(number)
    else:
        raise KeyboardInterrupt


def _leave(message: str, status: int) -> NoReturn:
    if _speaks(status):
        rank = "" if _first_rank() else f"rank {os.environ['RANK']}: "
        print(f"bertsmith: {rank}{' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _speaks(status: int) -> bool:
    """Whether this process tells why it ends; of ranks that end for one reason, only one does.

    As soon as one ends, torchrun ends the others. So the first rank speaks at once; another one waits whether it is
    ended, that is, whether the first has failed too; and who has only lost another waits longer than that one.
    """
    if status == StoppedError.exit_code or (_first_rank() and status != PeerLostError.exit_code):
        return _first_rank()
    limit = time.monotonic() + (LOST_WITHIN if status == PeerLostError.exit_code else ENDED_WITHIN)
    try:
        while not _heard and time.monotonic() < limit:
            time.sleep(0.05)
    except KeyboardInterrupt:
        return False
    return not _heard


def _first_rank() -> bool:
    return os.environ.get("RANK", "0") == "0"
