"""Verbs for a model folder: show, fill-mask, next-sentence, embed, import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bertsmith.cli.options import Broken, Device, Encoding, Field, Json, Layout, Limit, Quiet, give, reading_of

app = typer.Typer()
ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, bertsmith's or transformers'.")]


@app.command()
def show(
    model: ModelFolder,
    batch: Annotated[int, typer.Option(min=1, help="Rows of the batch whose memory is estimated.")] = 32,
    length: Annotated[int | None, typer.Option(min=1, help="Length of its rows; default: all positions.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a model is: shape, parameters by room, size, memory for a batch."""
    from bertsmith.model_io.facts import model_facts
    from bertsmith.reports import terminal

    facts = model_facts(model, batch=batch, length=length)
    give(facts, as_json, lambda: terminal.model_card(facts))


@app.command("fill-mask")
def fill_mask(
    model: ModelFolder,
    text: Annotated[
        str, typer.Argument(help="Text with [MASK] where a word is wanted; several side by side make one phrase.")
    ],
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="How many fillings to show.")] = 5,
    target: Annotated[
        list[str] | None, typer.Option("--target", metavar="WORD", help="Score this whole word; may be repeated.")
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Find words for the gaps of a text."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports import terminal_predictions

    found = Predictor.open(model, device=device).fill_mask(text, top_k=top_k, targets=target)
    runs = found if found and isinstance(found[0], list) else [found]
    give({"text": text, "fillings": runs}, as_json, lambda: terminal_predictions.fillings(runs))


@app.command("next-sentence")
def next_sentence(
    model: ModelFolder,
    first: Annotated[str, typer.Argument(metavar="A", help="A text.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Does this follow it?")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Judge whether one text follows another."""
    from bertsmith.inference.predictor import Predictor
    from bertsmith.reports import terminal_predictions

    found = Predictor.open(model, device=device).next_sentence(first, second)
    give(found, as_json, lambda: terminal_predictions.next_sentence(found))


@app.command()
def embed(
    model: ModelFolder,
    source: Annotated[
        str, typer.Argument(metavar="FILE|TEXT", help="A file of texts (one a line in txt), or a text itself.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write vectors to this .npy, .jsonl or .parquet file."),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean (over all tokens), first (the [CLS] token) or pooled; default: what a sentence-transformers "
            "folder says, else mean.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str, typer.Option(help="Layers by number, 0 the embeddings, -1 the last: -1 or -4,-3,-2,-1.")
    ] = "-1",
    combine: Annotated[str, typer.Option(help="What becomes of several layers: mean or concat.")] = "mean",
    normalize: Annotated[
        bool | None, typer.Option("--normalize/--no-normalize", help="Vectors of length 1.", show_default=False)
    ] = None,
    layout: Layout = "auto",
    field: Field = "text",
    encoding: Encoding = "utf-8",
    errors: Broken = "strict",
    limit: Limit = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Turn texts into vectors."""
    from bertsmith.inference.text_files import EmbeddingOptions, embed_source, parse_layers
    from bertsmith.reports import terminal_predictions

    options = EmbeddingOptions(pooling, parse_layers(layers), combine, normalize)
    reading = reading_of("line" if layout == "auto" and source.endswith(".txt") else layout, field, encoding, errors)
    facts = embed_source(
        model, source, output, options=options, reading=reading, limit=limit, device=device, quiet=quiet or as_json
    )
    give(facts, as_json, lambda: terminal_predictions.embeddings(facts))


@app.command("import")
def import_model(
    source: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with pickled weights or a Google TensorFlow checkpoint.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Model folder to write.")],
    cased: Annotated[
        bool | None,
        typer.Option("--cased/--uncased", help="For TensorFlow checkpoints, which do not say it.", show_default=False),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model folder that is already there.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a model of another make as a model folder; pickles are read by a process that can do nothing else."""
    from bertsmith.model_io.facts import folder_facts
    from bertsmith.model_io.importing import import_folder
    from bertsmith.reports import terminal

    lowercase = None if cased is None else not cased
    facts = folder_facts(import_folder(source, output, lowercase=lowercase, replace=overwrite))
    give(facts, as_json, lambda: terminal.facts_table(facts))
