"""Commands for text: tokenizer train, show and stats; prepare; verify."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith.data.text_files import check_text
from bertsmith.errors import ConfigError, DataError

app = typer.Typer()
KIND_HELP = "wordpiece (BERT), byte_bpe (RoBERTa), bpe (GPT-1), unigram (ALBERT), words or characters."
TARGET_HELP = "With --parallel: folder of a tokenizer of the target texts; default: one vocabulary for both."
TokenizerFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a tokenizer, a model or a run.")]
tokenizer_app = typer.Typer(help="Train, inspect and measure a tokenizer.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.command("train")
def tokenizer_train(
    corpus: opt.Corpora,
    output: opt.Output,
    kind: Annotated[str, typer.Option(help=KIND_HELP, autocompletion=opt.complete_kind)] = "wordpiece",
    vocab_size: Annotated[int, opt.at_least(1, "Vocabulary size, including special tokens.")] = 30522,
    cased: Annotated[bool, opt.option("--cased", "Keep case and accents.")] = False,
    settings: Annotated[
        list[str] | None, opt.option("--set", "Setting of this kind of tokenizer, e.g. min_count=3.", "KEY=VALUE")
    ] = None,
    max_words: Annotated[
        int, opt.at_least(1000, "Maximum number of distinct words kept in memory while counting.")
    ] = 1_000_000,
    parallel: opt.Parallel = False,
    fields: opt.Fields = "",
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    workers: opt.Workers = None,
    limit: opt.Limit = None,
    overwrite: opt.Overwrite = False,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Train a tokenizer. The result is deterministic and does not depend on the number of workers."""
    from bertsmith import config
    from bertsmith.data import prepare as run
    from bertsmith.reports import terminal

    defaults = config.find_kind("bertsmith.tokenizers", kind).Config()
    case = ["lowercase=false"] if cased and hasattr(defaults, "lowercase") else []  # other kinds always keep it
    chosen = config.override(defaults, case + (settings or []))
    reading = opt.reading(file_format, field, encoding, errors, workers, limit, quiet or as_json)
    tokenizer = run.train_tokenizer(
        opt.corpus(corpus, reading["read_options"], parallel, fields=fields),
        output,
        settings=chosen,
        vocab_size=vocab_size,
        max_words=max_words,
        overwrite=overwrite,
        **reading,
    )
    facts = {"folder": str(output), **terminal.tokenizer_facts(tokenizer)}
    del facts["specials"]
    opt.print_result(facts, as_json, lambda: terminal.tokenizer_card(tokenizer, folder=output))


@tokenizer_app.command("show")
def tokenizer_show(
    folder: TokenizerFolder,
    text: Annotated[str | None, typer.Argument(help="Text to tokenize; - reads stdin.")] = None,
    pair: Annotated[str | None, opt.option("--pair", "Second text of a pair.")] = None,
    specials: Annotated[bool, opt.option("--specials", "Parse special tokens such as [MASK] in the text.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Show a tokenizer, or the tokens of a text. Prints ids, offsets and the unknown rate."""
    from bertsmith.model_io.run_folder import find_model_folder
    from bertsmith.reports import terminal
    from bertsmith.tokenizers.tokenizer import load

    tokenizer = load(find_model_folder(folder))
    if text is None:
        opt.print_result(terminal.tokenizer_facts(tokenizer), as_json, lambda: terminal.tokenizer_card(tokenizer))
        return
    instead = f"use bertsmith tokenizer show {folder} - < {text}"
    own = opt.read_stdin() if text == "-" else check_text(text, instead=instead)
    texts = [own] + ([check_text(pair)] if pair is not None else [])
    encoded = [tokenizer.encode(one, parse_special_tokens=specials) for one in texts]
    facts = terminal.encoding_facts(tokenizer, texts, encoded)
    opt.print_result(facts, as_json, lambda: terminal.encoding_table(tokenizer, texts, encoded, facts))


@tokenizer_app.command("stats")
def tokenizer_stats(
    folder: TokenizerFolder,
    corpus: opt.Corpora,
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    workers: opt.Workers = None,
    limit: opt.Limit = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Measure a tokenizer on a corpus. Prints tokens per word, unknown rate and bytes per token."""
    from bertsmith.data import prepare as run
    from bertsmith.model_io.run_folder import find_model_folder

    reading = opt.reading(file_format, field, encoding, errors, workers, limit, quiet or as_json)
    opt.print_result(run.measure_tokenizer(find_model_folder(folder), list(map(Path, corpus)), **reading), as_json)


@app.command()
def prepare(
    corpus: opt.Corpora,
    output: opt.Output,
    tokenizer: Annotated[
        Path, typer.Option("--tokenizer", "-t", metavar="DIR", help="Folder of a tokenizer, a model or a run.")
    ],
    held_out: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Fraction of documents held out for evaluation, selected by hash.")
    ] = 0.01,
    unique: Annotated[bool, opt.option("--unique", "Remove exact duplicates of documents.")] = False,
    engine: Annotated[str, typer.Option(help="local (processes) or ray (a cluster; needs bertsmith[ray]).")] = "local",
    shard_tokens: Annotated[int, opt.at_least(1024, "Tokens per shard file.")] = 2**24,
    overwrite: Annotated[bool, opt.option("--overwrite", "Replace an existing shard set.")] = False,
    dry_run: Annotated[
        bool, opt.option("--dry-run", "Check the corpus and estimate the size of the shards; write nothing.")
    ] = False,
    parallel: opt.Parallel = False,
    target_tokenizer: Annotated[Path | None, opt.option("--target-tokenizer", TARGET_HELP, "DIR")] = None,
    fields: opt.Fields = "",
    max_tokens: Annotated[int, opt.at_least(1, "With --parallel: leave out pairs with a longer text.")] = 250,
    max_ratio: Annotated[
        float,
        typer.Option(min=0.0, help="With --parallel: leave out pairs with a larger ratio of lengths; 0: keep all."),
    ] = 9.0,
    file_format: opt.FileFormat = "auto",
    field: opt.Field = "text",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    workers: opt.Workers = None,
    limit: opt.Limit = None,
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
) -> None:
    """Tokenize a corpus into shards. If interrupted, run the same command again to resume."""
    from bertsmith.data import prepare as run
    from bertsmith.data.shards import remove_shard_set
    from bertsmith.model_io.run_folder import find_model_folder
    from bertsmith.reports import terminal
    from bertsmith.tokenizers.tokenizer import load

    reading = opt.reading(file_format, field, encoding, errors, workers, limit, quiet or as_json)
    words = load(find_model_folder(tokenizer))
    if target_tokenizer is not None:
        if not parallel:
            raise ConfigError("--target-tokenizer is for the target texts of pairs: pass --parallel too")
        words = words.with_target(load(find_model_folder(target_tokenizer)))
    limits: dict[str, Any] = {"max_tokens": max_tokens, "max_ratio": max_ratio} if parallel else {}
    source = opt.corpus(corpus, reading["read_options"], parallel, fields=fields, **limits)
    if dry_run:
        facts = run.preview(source, tokenizer=words, read_options=reading["read_options"])
        opt.print_result(facts, as_json, lambda: terminal.facts_table(facts, title="dry run: nothing was written"))
        return
    if overwrite:
        remove_shard_set(output)
    options: dict[str, Any] = {"held_out": held_out, "unique": unique, "engine": engine, "shard_tokens": shard_tokens}
    index = run.prepare(source, output, tokenizer=words, **options, **reading)
    opt.print_result(terminal.shard_facts(index, output), as_json)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Shard set.")], as_json: opt.Json = False
) -> None:
    """Verify the checksums of all files of a shard set."""
    from bertsmith.data.shards import verify as verify_shards
    from bertsmith.reports import terminal

    reports = []
    for report in verify_shards(folder):
        reports.append(report)
        if not as_json:
            terminal.verified_file(report)
    bad = [report.name for report in reports if not report.ok]
    facts = {"folder": str(folder), "ok": not bad, "files": [asdict(report) for report in reports]}
    opt.print_result(facts, as_json, lambda: None)
    if bad:
        raise DataError(f"{len(bad)} of {len(reports)} files in {folder} are damaged: {', '.join(bad[:5])}")
