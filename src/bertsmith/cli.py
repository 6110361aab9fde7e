"""The command line: verbs, flags and exit codes; no logic. Answers --help without importing torch."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from bertsmith import __version__
from bertsmith.errors import BertsmithError, Stopped

app = typer.Typer(
    name="bertsmith",
    help="From raw text to your own working BERT.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
tokenizer_app = typer.Typer(
    help="Train a tokenizer, look at it, measure it.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tokenizer_app, name="tokenizer")

Corpora = Annotated[
    list[str],
    typer.Argument(
        metavar="CORPUS...",
        help="Files, folders or quoted globs: txt, jsonl, csv, tsv, parquet, WikiExtractor; .gz .bz2 .xz .zst too.",
    ),
]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")]
Layout = Annotated[
    str, typer.Option(help="auto, blank (line between documents), line, file, wiki, jsonl, csv, tsv or parquet.")
]
Field = Annotated[str, typer.Option(help="Column or key that holds the text in jsonl, csv, tsv and parquet.")]
Encoding = Annotated[str, typer.Option(help="Character encoding of text files, such as utf-8 or cp949.")]
Broken = Annotated[
    str, typer.Option("--errors", help="Bytes that are no text: strict (stop and name them), replace or ignore.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.", show_default=False)]
Limit = Annotated[int | None, typer.Option(min=1, help="Take only the first N documents.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]


@app.callback(invoke_without_command=True)
def bertsmith(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """From raw text to your own working BERT."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


@tokenizer_app.command("train")
def tokenizer_train(
    corpus: Corpora,
    output: Output,
    kind: Annotated[
        str,
        typer.Option(help="wordpiece (BERT), byte_bpe (RoBERTa), bpe (GPT-1), unigram (ALBERT), words or characters."),
    ] = "wordpiece",
    vocab_size: Annotated[int, typer.Option(min=1, help="Entries of the vocabulary, special tokens included.")] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep capitals and accents.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the kind, such as min_count=3."),
    ] = None,
    max_words: Annotated[
        int, typer.Option(min=1000, help="Bound of the table of distinct words (memory).")
    ] = 1_000_000,
    layout: Layout = "auto",
    field: Field = "text",
    encoding: Encoding = "utf-8",
    errors: Broken = "strict",
    workers: Workers = None,
    limit: Limit = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn a tokenizer from text; the same text gives the same bytes, for any number of workers."""
    from bertsmith import config, run, terminal

    chosen = config.find("bertsmith.text", kind).Config()
    changes = (["lowercase=false"] if cased else []) + (settings or [])
    learned = run.train_tokenizer(
        corpus,
        output,
        settings=config.override(chosen, changes),
        vocabulary_size=vocab_size,
        reading=_reading(layout, field, encoding, errors),
        max_words=max_words,
        workers=workers,
        limit=limit,
        quiet=quiet or as_json,
    )
    facts = {
        "folder": str(output),
        "kind": kind,
        "vocabulary_size": learned.vocabulary_size,
        "fingerprint": learned.fingerprint,
    }
    _give(facts, as_json, lambda: terminal.tokenizer_learned(learned, output))


@tokenizer_app.command("show")
def tokenizer_show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Tokenizer or model folder.")],
    text: Annotated[str | None, typer.Argument(help="Text to take apart; - reads standard input.")] = None,
    pair: Annotated[str | None, typer.Option("--pair", help="A second text, framed with the first.")] = None,
    specials: Annotated[
        bool, typer.Option("--specials", help="Take spellings such as [MASK] in the text for special tokens.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what a tokenizer is, or what it makes of a text: pieces, ids, offsets, unknown rate."""
    from bertsmith import terminal
    from bertsmith.text.tokenizer import load

    tokenizer = load(folder)
    if text is None:
        facts = terminal.tokenizer_facts(tokenizer)
        _give(facts, as_json, lambda: terminal.tokenizer_card(facts, tokenizer))
        return
    texts = [sys.stdin.read() if text == "-" else text] + ([pair] if pair is not None else [])
    encoded = [tokenizer.encode(one, specials_in_text=specials) for one in texts]
    shown = terminal.encoding_facts(tokenizer, texts, encoded)
    _give(shown, as_json, lambda: terminal.encoding_picture(tokenizer, texts, encoded, shown))


@tokenizer_app.command("stats")
def tokenizer_stats(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Tokenizer or model folder.")],
    corpus: Corpora,
    layout: Layout = "auto",
    field: Field = "text",
    encoding: Encoding = "utf-8",
    errors: Broken = "strict",
    workers: Workers = None,
    limit: Limit = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a tokenizer on a corpus: tokens per word, unknown rate, bytes per token."""
    from bertsmith import run, terminal

    found = run.measure_tokenizer(
        folder,
        corpus,
        reading=_reading(layout, field, encoding, errors),
        workers=workers,
        limit=limit,
        quiet=quiet or as_json,
    )
    _give(found, as_json, lambda: terminal.tokenizer_measured(found))


@app.command()
def prepare(
    corpus: Corpora,
    output: Output,
    tokenizer: Annotated[Path, typer.Option("--tokenizer", "-t", metavar="DIR", help="Tokenizer or model folder.")],
    held_out: Annotated[
        float,
        typer.Option(min=0.0, max=0.5, help="Share of documents kept apart for evaluation, chosen by their hash."),
    ] = 0.01,
    unique: Annotated[bool, typer.Option("--unique", help="Drop documents that came before, exactly.")] = False,
    engine: Annotated[str, typer.Option(help="local (processes) or ray (a cluster; bertsmith[ray]).")] = "local",
    shard_tokens: Annotated[int, typer.Option(min=1024, help="Tokens per shard file; also the step of resuming.")] = 2
    ** 24,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a shard set that is already there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")] = False,
    layout: Layout = "auto",
    field: Field = "text",
    encoding: Encoding = "utf-8",
    errors: Broken = "strict",
    workers: Workers = None,
    limit: Limit = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write a corpus as shards: each token once, two bytes. Killed at any moment, the same command goes on."""
    from bertsmith import run, terminal
    from bertsmith.corpus.shards import remove_shard_set

    reading = _reading(layout, field, encoding, errors)
    if dry_run:
        facts = run.preview(corpus, tokenizer=tokenizer, reading=reading)
        _give(facts, as_json, lambda: terminal.table(facts, title="nothing written"))
        return
    if overwrite:
        remove_shard_set(output)
    index = run.prepare(
        corpus,
        output,
        tokenizer=tokenizer,
        reading=reading,
        held_out=held_out,
        unique=unique,
        workers=workers,
        engine=engine,
        shard_tokens=shard_tokens,
        limit=limit,
        quiet=quiet or as_json,
    )
    facts = terminal.shard_facts(index, output)
    _give(facts, as_json, lambda: terminal.shards_prepared(facts))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Shard set to check.")],
    as_json: Json = False,
) -> None:
    """Check every byte of a shard set against its checksums; one line per file."""
    from bertsmith import terminal
    from bertsmith.corpus.shards import verify as verify_shards
    from bertsmith.errors import DataError

    reports = []
    for report in verify_shards(folder):
        reports.append(report)
        if not as_json:
            terminal.verified(report)
    bad = [report.name for report in reports if not report.ok]
    _give(
        {"folder": str(folder), "ok": not bad, "files": [terminal.report_facts(report) for report in reports]}, as_json
    )
    if bad:
        raise DataError(f"{len(bad)} of {len(reports)} files in {folder} are damaged: {', '.join(bad[:5])}")


@app.command()
def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto", as_json: Json = False
) -> None:
    """Versions, device, memory, disk, and a numeric check of the device against the CPU."""
    from bertsmith import terminal
    from bertsmith.doctor import examine

    facts = examine(device)
    _give(facts, as_json, lambda: terminal.doctor_card(facts))
    if not facts["ok"]:
        raise BertsmithError("; ".join(facts["problems"]))


@app.command()
def demo(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write.")] = Path("demo-out"),
    quiet: Quiet = False,
) -> None:
    """The main job on text that is on every machine: Python's own documentation and a little Korean."""
    from bertsmith.demo import run_demo

    run_demo(output, quiet=quiet)


def _reading(layout: str, field: str, encoding: str, errors: str) -> Any:
    from bertsmith import config
    from bertsmith.corpus.document import Reading

    return config.from_dict(Reading, {"layout": layout, "field": field, "encoding": encoding, "errors": errors})


def _give(facts: dict[str, Any], as_json: bool, show: Callable[[], None] | None = None) -> None:
    """The result: as one JSON object if that was asked for, else as `show` shows it."""
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
    elif show:
        show()


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
