"""Commands for translation models: translate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import bertsmith.cli.options as opt
from bertsmith import load
from bertsmith.data.text_files import check_source
from bertsmith.errors import BertsmithError

app = typer.Typer()
SOURCE_HELP = (
    "A text, a file with one text per line, a table (tsv, csv, jsonl) with a source column and possibly one "
    "of references, or - to read one text per line from stdin."
)
BEAM_HELP = "Number of hypotheses kept at each step; 1 is greedy decoding."
PENALTY_HELP = "Exponent of the length penalty ((5 + length) / 6)^X; 0 favours short translations."
EXTRA_HELP = "A translation has at most N tokens more than its source."


@app.command()
@opt.opens_model
def translate(
    model: opt.ModelFolder,
    source: Annotated[str, typer.Argument(metavar="FILE|TEXT", help=SOURCE_HELP)],
    reference: Annotated[
        Path | None, opt.option("--reference", "Reference translations, line by line: prints BLEU and chrF.", "FILE")
    ] = None,
    output: Annotated[Path | None, opt.output("FILE", "Write the translations here, one per line.")] = None,
    beam_size: Annotated[int, opt.at_least(1, BEAM_HELP)] = 4,
    length_penalty: Annotated[float, typer.Option(metavar="X", help=PENALTY_HELP)] = 0.6,
    n_best: Annotated[int, opt.at_least(1, "Number of translations of each text, at most --beam-size.")] = 1,
    max_extra_tokens: Annotated[int, typer.Option(metavar="N", help=EXTRA_HELP)] = 50,
    fields: Annotated[
        str,
        typer.Option(
            metavar="SOURCE,TARGET", help="Columns or keys of a table, or column numbers; default: source,target."
        ),
    ] = "",
    encoding: opt.Encoding = "utf-8",
    errors: opt.DecodingErrors = "strict",
    limit: opt.Limit = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Translate a text or a file with a translation model. With references, print BLEU and chrF."""
    from bertsmith.inference.translation_files import SourceTexts, read_sources, translate_file
    from bertsmith.reports import terminal_predictions

    reading, names = opt.read_options("auto", "text", encoding, errors), opt.field_names(fields)
    if os.path.isfile(source):
        texts = read_sources(source, reference, reading, fields=names, limit=limit)
    elif reference is not None:
        raise BertsmithError(f"--reference {reference} is for a file of source texts: pass one, or leave it out")
    else:
        lines = [source if source == "-" else check_source(source, output=output)]
        opt.check_text_options(stdin=source == "-", fields=fields, encoding=encoding, errors=errors, limit=limit)
        if source == "-":
            lines = [line.strip() for line in opt.read_stdin(encoding, errors).removesuffix("\n").split("\n")[:limit]]
        texts = SourceTexts(lines)
    options: dict[str, Any] = {
        "beam_size": beam_size,
        "length_penalty": length_penalty,
        "n_best": n_best,
        "max_extra_tokens": max_extra_tokens,
    }
    predictor = load(model, device=device, **opening)
    facts = translate_file(predictor, texts, output, options=options, quiet=quiet or as_json or len(texts.sources) == 1)
    opt.print_result(facts, as_json, lambda: terminal_predictions.translations(facts))
