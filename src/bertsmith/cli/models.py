"""Commands for model folders: show, average, extend, import, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import bertsmith.cli.options as opt
from bertsmith.errors import BertsmithError

app = typer.Typer()
VECTOR_FORMATS = ("word2vec", "word2vec-binary", "glove")
HEAD_HELP = "ONNX: the head to export, e.g. masked_lm; vectors: the encoder without heads; default: all heads."
IMPORT_HELP = (
    "Folder with pickled weights, or with a checkpoint of Google, OpenAI or ELMo (options.json and weights.hdf5); or a "
    "file of word vectors: word2vec (text, or binary as .bin), GloVe or fastText .vec, gzipped or not."
)
EXPORT_HELP = "onnx or sentence-transformers; for word vectors: word2vec, word2vec-binary or glove."
POOLING_HELP = (
    "One vector per text: mean (over all tokens), first (the [CLS] token), max, mean_sqrt_len or pooled. "
    "Default: none for ONNX; for sentence-transformers as in such a folder, else mean."
)
TOLERANCE_HELP = (
    "Largest allowed difference from the model's outputs: for ONNX relative to the largest output, if that is over 1 "
    "(default: 1e-4), for sentence-transformers absolute (default: 1e-5)."
)


@app.command()
@opt.opens_model
def show(
    model: opt.ModelFolder,
    batch: Annotated[int, opt.at_least(1, "Batch size of the memory estimate.")] = 32,
    length: Annotated[
        int | None, opt.at_least(1, "Sequence length of the memory estimate; default: 512, or the maximum if shorter.")
    ] = None,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Show a model. Prints architecture, parameters, size on disk and memory of a batch."""
    from bertsmith.model_io.summary import model_facts
    from bertsmith.reports import terminal

    facts = model_facts(model, batch=batch, length=length, **opening)
    opt.print_result(facts, as_json, lambda: terminal.model_card(facts))


@app.command()
def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder: the -o of a training command.")],
    output: opt.Output,
    last: Annotated[int, opt.at_least(1, "Number of checkpoints, the newest ones.")] = 5,
    overwrite: Annotated[bool, opt.option("--overwrite", "Replace an existing model folder.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Average the weights of a run's last checkpoints. Writes a model folder."""
    from bertsmith.training.averaging import average_checkpoints

    opt.print_result(average_checkpoints(run, output, last=last, overwrite=overwrite), as_json)


@app.command()
def extend(
    model: opt.ModelFolder,
    vectors: Annotated[str, opt.option("--vectors", "File of word vectors, or model folder.", "FILE|DIR")],
    output: opt.Output,
    limit: Annotated[int, opt.at_least(0, "Read only the first words of the file; 0: all.")] = 0,
    overwrite: Annotated[bool, opt.option("--overwrite", "Replace an existing model folder.")] = False,
    as_json: opt.Json = False,
) -> None:
    """Add words and their vectors to a translation model. For models with fixed word vectors, such as CoVe."""
    from bertsmith.model_io.word_tables import extend_vocabulary

    opt.print_result(extend_vocabulary(model, vectors, output, limit=limit, overwrite=overwrite), as_json)


@app.command("import")
@opt.opens_model
def import_model(
    source: Annotated[
        Path,
        typer.Argument(metavar="DIR|FILE", help=IMPORT_HELP),
    ],
    output: opt.Output,
    cased: Annotated[bool | None, opt.option("--cased/--uncased", "Override whether the tokenizer keeps case.")] = None,
    overwrite: Annotated[bool, opt.option("--overwrite", "Replace an existing model folder.")] = False,
    as_json: opt.Json = False,
    *,
    opening: opt.Opening,
) -> None:
    """Import weights of other programs. Reads pickles (sandboxed), Google, GPT-1 and ELMo checkpoints, word vectors."""
    from bertsmith.model_io.importers import import_folder
    from bertsmith.model_io.summary import folder_facts
    from bertsmith.tokenizers.tokenizer import load
    from bertsmith.tokenizers.unknown_words import check_vocabulary

    lowercase = None if cased is None else not cased
    facts = import_folder(source, output, lowercase=lowercase, replace=overwrite, **opening)
    check_vocabulary(load(output))
    opt.print_result(folder_facts(facts), as_json)


@app.command()
def export(
    model: opt.ModelFolder,
    output: opt.Output,
    to: Annotated[str, typer.Option(help=EXPORT_HELP)],
    head: Annotated[str | None, typer.Option(metavar="NAME", help=HEAD_HELP)] = None,
    pooling: Annotated[str | None, typer.Option(help=POOLING_HELP)] = None,
    normalize: Annotated[
        bool | None, opt.option("--normalize/--no-normalize", "Scale text vectors to length 1.")
    ] = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, help=TOLERANCE_HELP)] = None,
    opset: Annotated[int | None, typer.Option(help="ONNX: operator set version, 18 to 23; default: 20.")] = None,
    tokenizer: opt.Tokenizer = None,
    as_json: opt.Json = False,
) -> None:
    """Export a model to ONNX or sentence-transformers. Checks that the outputs agree. Word vectors become a file."""
    options = opt.given(tolerance=tolerance, normalize=normalize, pooling=pooling, tokenizer=tokenizer)
    if to in VECTOR_FORMATS:
        from bertsmith.export.word_vectors import export_vectors

        if given := sorted({**options, **opt.given(head=head, opset=opset)}.keys() - {"tokenizer"}):
            raise BertsmithError(f"--{given[0]} is not for --to {to}: leave it out")
        opt.print_result(export_vectors(model, output, form=to, tokenizer=tokenizer), as_json)
        return
    if to not in ("onnx", "sentence-transformers"):
        known = ", ".join(("onnx", "sentence-transformers", *VECTOR_FORMATS))
        raise BertsmithError(f"--to {to}: unknown format; choose one of {known}")
    if to == "onnx":
        from bertsmith.export.onnx import export_onnx

        facts = export_onnx(model, output, **options, **opt.given(head=head, opset=opset))
    else:
        from bertsmith.export.sentence_transformers import export_sentence_transformers

        if head is not None or opset is not None:
            raise BertsmithError(f"{'--head' if head is not None else '--opset'} is for --to onnx")
        facts = export_sentence_transformers(model, output, **options)
    from bertsmith.reports import terminal_predictions

    opt.print_result(facts, as_json, lambda: terminal_predictions.export(facts))
