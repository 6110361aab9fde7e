"""Commands for text: tokenizer train, show and stats; prepare; verify."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith.data.text_files import check_text
from bertsmith.errors import ConfigError, DataError

if TYPE_CHECKING:
    from bertsmith.data.tokenizer_training import TokenizerTraining
    from bertsmith.tokenizers.tokenizer import Tokenizer

app = typer.Typer()
KIND_HELP = "wordpiece (BERT, the default), byte_bpe (RoBERTa), bpe (GPT-1), unigram (ALBERT), words or characters."
VOCAB_SIZE_HELP = "Vocabulary size, including special tokens; default: 30522."
SETTINGS_HELP = "Setting of this kind of tokenizer, e.g. min_count=3."
PREPARED_HELP = "Folder of a tokenizer, a model or a run; default: train one with the options below on the corpus."
TARGET_HELP = "With --parallel: folder of a tokenizer of the target texts; default: one vocabulary for both."
TokenizerFolder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a tokenizer, a model or a run.")]
Kind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help=KIND_HELP, autocompletion=opt.complete_kind)]
VocabSize = Annotated[int | None, opt.at_least(1, VOCAB_SIZE_HELP)]
Cased = Annotated[bool, opt.option("--cased", "Keep case and accents.")]
TokenizerSettings = Annotated[list[str] | None, opt.option("--set", SETTINGS_HELP, "KEY=VALUE")]
tokenizer_app = typer.Typer(help="Train, inspect and measure a tokenizer.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(tokenizer_app, name="tokenizer")


@tokenizer_app.command("train")
def tokenizer_train(
    corpus: opt.Corpora,
    output: opt.Output,
    kind: Kind = None,
    vocab_size: VocabSize = None,
    cased: Cased = False,
    settings: TokenizerSettings = None,
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
    from bertsmith.data import prepare as run
    from bertsmith.reports import terminal

    training = _training(kind, vocab_size, cased, settings)
    reading = opt.reading(file_format, field, encoding, errors, workers, limit, quiet or as_json)
    tokenizer = run.train_tokenizer(
        opt.corpus(corpus, reading["read_options"], parallel, fields=fields),
        output,
        settings=training.settings,
        vocab_size=training.vocab_size,
        max_words=max_words,
        overwrite=overwrite,
        **reading,
    )
    facts = {"folder": str(output), **terminal.tokenizer_facts(tokenizer)}
    del facts["specials"]
    opt.print_result(facts, as_json, lambda: terminal.tokenizer_card(tokenizer, folder=output))


def _training(kind: str | None, vocab_size: int | None, cased: bool, settings: list[str] | None) -> TokenizerTraining:
    from bertsmith import config
    from bertsmith.data.tokenizer_training import VOCAB_SIZE, TokenizerTraining, tokenizer_settings

    defaults, case = tokenizer_settings(kind, cased=cased)
    chosen = config.override(config.update(defaults, case), settings or [])
    return TokenizerTraining(chosen, VOCAB_SIZE if vocab_size is None else vocab_size)


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
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", "-t", metavar="DIR", help=PREPARED_HELP)] = None,
    kind: Kind = None,
    vocab_size: VocabSize = None,
    cased: Cased = False,
    settings: TokenizerSettings = None,
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
    """Tokenize a corpus into shards. If interrupted, run the same command again to resume.

    Without --tokenizer, it first trains one on the corpus: the result is that of bertsmith tokenizer train and prepare.
    """
    from bertsmith.data import prepare as run
    from bertsmith.data.shards import remove_shard_set
    from bertsmith.reports import terminal

    reading = opt.reading(file_format, field, encoding, errors, workers, limit, quiet or as_json)
    if target_tokenizer is not None and not parallel:
        raise ConfigError("--target-tokenizer is for the target texts of pairs: pass --parallel too")
    words: Tokenizer | TokenizerTraining
    if tokenizer is not None:
        _check_only_trained(kind=kind, vocab_size=vocab_size, cased=cased, set=settings)
        words = _loaded(tokenizer, target_tokenizer)
    elif target_tokenizer is not None:
        raise ConfigError("--target-tokenizer needs the tokenizer of the source texts: pass --tokenizer too")
    else:
        words = _training(kind, vocab_size, cased, settings)
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


def _check_only_trained(**given: Any) -> None:
    """An error for options of a tokenizer that is trained, beside one that exists."""
    if names := [f"--{name.replace('_', '-')}" for name, value in given.items() if value]:
        verb = "is" if len(names) == 1 else "are"
        raise ConfigError(
            f"{' and '.join(names)} {verb} for training a tokenizer: leave out {' and '.join(names)}, or --tokenizer"
        )


def _loaded(source: Path, target: Path | None) -> Tokenizer:
    from bertsmith.model_io.run_folder import find_model_folder
    from bertsmith.tokenizers.tokenizer import load

    words = load(find_model_folder(source))
    return words if target is None else words.with_target(load(find_model_folder(target)))


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
