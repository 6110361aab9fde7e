"""The command line: commands, options and exit codes. --help works without importing torch."""

from __future__ import annotations

import copy
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from bertsmith import __version__
from bertsmith.cli import (
    data,
    doctor,
    evaluation,
    generation,
    inference,
    models,
    recipes,
    runs,
    serve,
    studies,
    training,
    translation,
)
from bertsmith.cli.options import Output, Quiet, is_first_rank, usage_message
from bertsmith.errors import (
    BertsmithError,
    DataWarning,
    EqualWordsWarning,
    FolderWarning,
    PeerLostError,
    SkippedWarning,
    StoppedError,
    StorageError,
    UnknownWordsWarning,
    is_out_of_memory,
)

app = typer.Typer(
    name="bertsmith",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
MODULES = (data, recipes, training, evaluation, studies, inference, generation, translation, models, serve, doctor)
for module in MODULES:
    app.add_typer(module.app)
app.add_typer(runs.app, name="runs")

# At the end of a command's help; tests parse them.
EXAMPLES = {
    "": (
        "bertsmith demo -o demo-out",
        "bertsmith finetune MODEL -t classification --train train.csv -o reviews",
    ),
    "init": (
        "bertsmith init bert/base -o bert.toml",
        "bertsmith init --task classification -o tuning.toml",
    ),
    "train": (
        "bertsmith tokenizer train corpus/ -o tokenizer --vocab-size 32000",
        "bertsmith tokenizer train corpus/ -o tokenizer --kind byte_bpe",
    ),
    "prepare": (
        "bertsmith prepare corpus/ -t tokenizer -o shards",
        "bertsmith prepare 'dump/*.jsonl.gz' -t tokenizer -o shards --field body",
        "bertsmith prepare train.en train.de --parallel -t tokenizer -o shards",
    ),
    "check": (
        "bertsmith check bert/base -d shards",
        "bertsmith check bert.toml -d shards batch_size=128",
    ),
    "pretrain": (
        "bertsmith pretrain bert/quick -d shards -o run minutes=10",
        "bertsmith pretrain bert/base -d shards -o run encoder.layers=4 steps=1000",
    ),
    "compare": ("bertsmith compare bert/quick roberta/quick -d shards -o runs minutes=10",),
    "finetune": (
        "bertsmith finetune MODEL -t classification --train train.csv -o reviews",
        "bertsmith finetune MODEL -t tuning.toml -o run epochs=4 task.text=review",
    ),
    "evaluate": (
        "bertsmith evaluate reviews --dev dev.csv",
        "bertsmith evaluate forward backward --file test.csv --split test -o scores",
    ),
    "features": ("bertsmith features MODEL -t conll/conll2003 --data CONLL -o study",),
    "ablate": ("bertsmith ablate base=A no_nsp=B -t glue/cola --data GLUE -o study",),
    "lm-features": (
        "bertsmith lm-features VECTORS --features LM -t tagging --data NER -o s",
        "bertsmith lm-features A --features LM -t tagging --data D --table mix -o s",
    ),
    "sample-efficiency": (
        "bertsmith sample-efficiency -m MODEL -t glue/sst-2 --data GLUE -o labels",
        "bertsmith sample-efficiency -m A -m B --from-scratch -t tuning.toml -o out",
    ),
    "lineage": (
        "bertsmith lineage --text wiki/ -t glue/cola --data GLUE --minutes 10 -o out",
        "bertsmith lineage --text a.txt -t tagging --data D --size tiny -o out",
    ),
    "predict": (
        "bertsmith predict reviews --file new.csv -o predictions.csv",
        "bertsmith predict reviews --file new.jsonl max_length=256",
    ),
    "classify": (
        "bertsmith classify reviews 'A fine film.'",
        "bertsmith classify reviews 'A fine film.' 'Two hours too long.' --json",
    ),
    "fill-mask": (
        "bertsmith fill-mask MODEL 'The smith heats the [MASK].'",
        "bertsmith fill-mask MODEL 'The [MASK] is hot.' --target iron --target fire",
    ),
    "embed": (
        "bertsmith embed MODEL texts.txt -o vectors.npy",
        "bertsmith embed MODEL 'A text.' --pooling mean --json",
    ),
    "rank": ("bertsmith rank MODEL 'how to heat iron' texts.txt --top-k 5",),
    "neighbours": (
        "bertsmith neighbours MODEL king paris",
        "bertsmith neighbours MODEL king --minus man --plus woman",
        "bertsmith neighbours MODEL 'the *play* began' 'children *play* here'",
    ),
    "ask": (
        "bertsmith ask MODEL 'Who strikes the iron?' -c 'The smith strikes the iron.'",
        "bertsmith ask MODEL 'Who strikes the iron?' -c 'The fire burns.' --top-k 3",
    ),
    "generate": (
        "bertsmith generate MODEL 'The smith heats' --max-new-tokens 40",
        "bertsmith generate MODEL prompts.txt --temperature 0.8 --seed 1 --json",
    ),
    "score": (
        "bertsmith score MODEL 'The smith heats the iron.'",
        "bertsmith score MODEL texts.txt --json",
    ),
    "translate": (
        "bertsmith translate MODEL 'Zwei Hunde spielen im Schnee.'",
        "bertsmith translate MODEL test.en --reference test.de -o translations.txt",
    ),
    "average": ("bertsmith average run --last 5 -o averaged",),
    "import": ("bertsmith import uncased_L-12_H-768_A-12 -o bert",),
    "export": ("bertsmith export MODEL --to onnx -o onnx",),
    "serve": (
        "bertsmith serve reviews",
        "bertsmith serve reviews --port 9000",
    ),
}


def _epilog(examples: Sequence[str]) -> str:
    return "\n".join(("\b", "Examples:", *(f"  {example}" for example in examples)))


@app.callback(invoke_without_command=True, epilog=_epilog(EXAMPLES[""]))
def bertsmith(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Train, evaluate and serve BERT-like encoders, from raw text to a working model."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


@app.command("demo")
def demo_command(output: Output = Path("demo-out"), quiet: Quiet = False) -> None:
    """Run the whole pipeline in minutes on a CPU. Uses Python's own documentation and a little Korean text."""
    from bertsmith.cli.demo import run_demo

    run_demo(output, quiet=quiet)


@cache
def command(name: str = "") -> Any:
    """All commands with their options, or only the named one if there is such a command, which is built faster."""
    named = [info for module in MODULES for info in module.app.registered_commands if _name(info) == name]
    if not named:
        return typer.main.get_command(app)
    only = copy.copy(app)
    only.registered_groups, only.registered_commands = [], named
    return typer.main.get_command(only)


def _name(info: Any) -> str:
    return info.name or str(info.callback.__name__)


for group in (*(module.app for module in MODULES), data.tokenizer_app):
    for info in group.registered_commands:
        info.epilog = _epilog(EXAMPLES[_name(info)]) if _name(info) in EXAMPLES else None

NO_READER = 141  # as if SIGPIPE had ended the process, like other programs before `| head`
INTERRUPTED = 130  # the option parser's exit code for KeyboardInterrupt
TERMINATION_SECONDS = 2.0  # within which torchrun terminates the other ranks after one has exited
LOST_SECONDS = 20.0  # and after one has disappeared, which a busy machine notices later
OUT_OF_MEMORY = (
    "finished work is kept: run the same command again with fewer --jobs or --workers, a smaller micro_batch_size or "
    "less input, or end other programs that use the memory"
)


def main() -> NoReturn:
    """Runs a command. Every error that a user can cause is one line on stderr and an exit code."""
    signal.signal(signal.SIGTERM, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for names of files that are not Unicode
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    warnings.simplefilter("always", UnknownWordsWarning)
    try:
        status = command(*sys.argv[1:2])(standalone_mode=False, prog_name="bertsmith") or 0
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        sys.stdout.flush()  # here, where a broken pipe is handled
        sys.exit(status)
    except BertsmithError as error:
        if isinstance(error, PeerLostError) and error.stop_requested:  # torchrun has reported it already
            sys.exit(error.exit_code)
        _exit(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _exit("stopped; finished work is kept: run the same command again to resume", StoppedError.exit_code)
    except BrokenPipeError:
        _exit_without_reader()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich and the option parser turn it into exit status 1
            _exit_without_reader()
        raise
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # no command was named: print the help
            print(error, file=sys.stderr)
            sys.exit(2)
        if hasattr(error, "format_message"):  # a usage error of the option parser
            _exit(usage_message(error, sys.argv[1:]), 2)
        if isinstance(error, OSError) and error.filename is not None:
            _exit(f"{error.strerror}: {error.filename}", StorageError.exit_code)
        if is_out_of_memory(error):
            on_gpu = type(error).__name__ == "OutOfMemoryError"
            _exit(f"out of {'GPU ' if on_gpu else ''}memory; {OUT_OF_MEMORY}", BertsmithError.exit_code)
        raise


def _exit_without_reader() -> NoReturn:
    """Ends quietly: the reader of stdout has exited."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(NO_READER)


def _show_warning(usual: Any, message: Any, category: type[Warning], *place: Any) -> None:
    """One line on stderr: a choice about a model folder or a data file, unknown or equal words, what was skipped."""
    warned = UnknownWordsWarning | EqualWordsWarning | SkippedWarning
    if not issubclass(category, FolderWarning | DataWarning | warned):
        usual(message, category, *place)
    elif is_first_rank():
        kind = "warning" if issubclass(category, warned) else "note"
        print(f"bertsmith: {kind}: {message}", file=sys.stderr)


_received: list[int] = []  # signals that arrived while an error was being reported


def _stop(number: int, frame: Any) -> None:
    """Interrupts the command, unless this rank is already handling an error."""
    if "RANK" in os.environ and sys.exc_info()[0] is not None:
        _received.append(number)
    else:
        raise KeyboardInterrupt


def _exit(message: str, status: int) -> NoReturn:
    if _should_report(status):
        rank = "" if is_first_rank() else f"rank {os.environ['RANK']}: "
        print(f"bertsmith: {rank}{' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _should_report(status: int) -> bool:
    """Whether this rank prints its error, so that only one rank reports a common cause.

    When one rank exits, torchrun terminates the others. So rank 0 prints at once. Other ranks wait: if they are
    terminated meanwhile, rank 0 has failed too. A rank that only lost its peers waits longer than the failed rank.
    """
    if status == StoppedError.exit_code or (is_first_rank() and status != PeerLostError.exit_code):
        return is_first_rank()
    limit = time.monotonic() + (LOST_SECONDS if status == PeerLostError.exit_code else TERMINATION_SECONDS)
    try:
        while not _received and time.monotonic() < limit:
            time.sleep(0.05)
    except KeyboardInterrupt:
        return False
    return not _received
