"""The verb that writes a model for other programs: export."""

from __future__ import annotations

from typing import Annotated

import typer

from bertsmith.cli.models import ModelFolder
from bertsmith.cli.options import Json, Output, give
from bertsmith.errors import BertsmithError

app = typer.Typer()


@app.command()
def export(
    model: ModelFolder,
    output: Output,
    to: Annotated[str, typer.Option(help="onnx (for onnxruntime and its like) or sentence-transformers.")],
    head: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="ONNX: the head to write, such as masked_lm, or vectors for none; default: all that are there.",
            show_default=False,
        ),
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="One vector for each text: mean (over all tokens), first (the [CLS] token) or pooled. "
            "Default: mean for sentence-transformers, none for ONNX.",
            show_default=False,
        ),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Vectors of texts of length 1.")] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Largest difference from the model's own numbers; a larger one is an error. "
            "Default: 1e-4 for ONNX, 1e-5 for sentence-transformers.",
            show_default=False,
        ),
    ] = None,
    opset: Annotated[
        int | None, typer.Option(help="ONNX: version of the operators, 18 to 23; default: 20.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model for other programs; what was written is compared with the model first."""
    if to not in ("onnx", "sentence-transformers"):
        raise BertsmithError(f"--to {to} is not known: onnx or sentence-transformers")
    if to == "onnx":
        from bertsmith.export import conversion, onnx

        facts = onnx.export_onnx(
            model,
            output,
            head=head,
            pooling=pooling,
            normalize=normalize,
            opset=conversion.OPSET if opset is None else opset,
            tolerance=onnx.TOLERANCE if tolerance is None else tolerance,
        )
    else:
        from bertsmith.export import sentence_transformers

        if head is not None or opset is not None:
            raise BertsmithError(f"{'--head' if head is not None else '--opset'} is for --to onnx")
        facts = sentence_transformers.export_sentence_transformers(
            model,
            output,
            pooling=pooling or "mean",
            normalize=normalize,
            tolerance=sentence_transformers.TOLERANCE if tolerance is None else tolerance,
        )
    from bertsmith.reports import terminal_predictions

    give(facts, as_json, lambda: terminal_predictions.export(facts))
