"""Verbs for text: tokenizer train, show, stats; prepare; verify."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import (
    Broken,
    Corpora,
    Encoding,
    Field,
    Json,
    Layout,
    Limit,
    Output,
    Quiet,
    Workers,
    give,
    reading_of,
)

app = typer.Typer()
tokenizer_app = typer.Typer(
    help="Train a tokenizer, look at it, measure it.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(tokenizer_app, name="tokenizer")


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
    from bertsmith import config
    from bertsmith.data import prepare as run
    from bertsmith.reports import terminal

    chosen = config.find_kind("bertsmith.tokenizers", kind).Config()
    changes = (["lowercase=false"] if cased else []) + (settings or [])
    learned = run.train_tokenizer(
        corpus,
        output,
        settings=config.override(chosen, changes),
        vocab_size=vocab_size,
        read_options=reading_of(layout, field, encoding, errors),
        max_words=max_words,
        workers=workers,
        limit=limit,
        quiet=quiet or as_json,
    )
    facts = {
        "folder": str(output),
        "kind": kind,
        "vocab_size": learned.vocab_size,
        "fingerprint": learned.fingerprint,
    }
    give(facts, as_json, lambda: terminal.trained_tokenizer(learned, output))


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
    from bertsmith.reports import terminal
    from bertsmith.tokenizers.tokenizer import load

    tokenizer = load(folder)
    if text is None:
        facts = terminal.tokenizer_facts(tokenizer)
        give(facts, as_json, lambda: terminal.tokenizer_card(facts, tokenizer))
        return
    texts = [sys.stdin.read() if text == "-" else text] + ([pair] if pair is not None else [])
    encoded = [tokenizer.encode(one, parse_special_tokens=specials) for one in texts]
    shown = terminal.encoding_facts(tokenizer, texts, encoded)
    give(shown, as_json, lambda: terminal.encoding_table(tokenizer, texts, encoded, shown))


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
    from bertsmith.data import prepare as run
    from bertsmith.reports import terminal

    found = run.measure_tokenizer(
        folder,
        corpus,
        read_options=reading_of(layout, field, encoding, errors),
        workers=workers,
        limit=limit,
        quiet=quiet or as_json,
    )
    give(found, as_json, lambda: terminal.facts_table(found))


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
    from bertsmith.data import prepare as run
    from bertsmith.data.shards import remove_shard_set
    from bertsmith.reports import terminal

    reading = reading_of(layout, field, encoding, errors)
    if dry_run:
        facts = run.preview(corpus, tokenizer=tokenizer, read_options=reading)
        give(facts, as_json, lambda: terminal.facts_table(facts, title="nothing written"))
        return
    if overwrite:
        remove_shard_set(output)
    index = run.prepare(
        corpus,
        output,
        tokenizer=tokenizer,
        read_options=reading,
        held_out=held_out,
        unique=unique,
        workers=workers,
        engine=engine,
        shard_tokens=shard_tokens,
        limit=limit,
        quiet=quiet or as_json,
    )
    facts = terminal.shard_facts(index, output)
    give(facts, as_json, lambda: terminal.facts_table(facts))


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Shard set to check.")],
    as_json: Json = False,
) -> None:
    """Check every byte of a shard set against its checksums; one line per file."""
    from bertsmith.data.shards import verify as verify_shards
    from bertsmith.errors import DataError
    from bertsmith.reports import terminal

    reports = []
    for report in verify_shards(folder):
        reports.append(report)
        if not as_json:
            terminal.verified_file(report)
    bad = [report.name for report in reports if not report.ok]
    give({"folder": str(folder), "ok": not bad, "files": [asdict(report) for report in reports]}, as_json)
    if bad:
        raise DataError(f"{len(bad)} of {len(reports)} files in {folder} are damaged: {', '.join(bad[:5])}")
