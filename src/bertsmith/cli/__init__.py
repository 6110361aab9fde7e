"""The command line: verbs, flags and exit codes; no logic. Answers --help without importing torch."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from bertsmith import __version__
from bertsmith.cli import corpora, machine, models, training
from bertsmith.errors import BertsmithError, Stopped

app = typer.Typer(
    name="bertsmith",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for part in (corpora, training, models, machine):
    app.add_typer(part.app)


@app.callback(invoke_without_command=True)
def bertsmith(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """From raw text to your own working BERT."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


def main() -> NoReturn:
    """Runs a verb; whatever a user can cause ends as one line on standard error and its exit status."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except BertsmithError as error:
        _leave(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _leave("stopped; what was finished is kept, and the same command goes on from there", Stopped.exit_code)
    except BrokenPipeError:  # the reader of our output has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if hasattr(error, "format_message"):  # how the option parser reports wrong usage
            _leave(f"{error.format_message()} Try --help.", 2)
        raise


def _stop(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _leave(message: str, status: int) -> NoReturn:
    print(f"bertsmith: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)
