"""A model folder as ONNX: one graph for onnxruntime and its like, tokenizer and settings beside it.

It is compared with the model before it gets its name; one that says something else is not left behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from bertsmith.errors import BertsmithError, StorageError
from bertsmith.export.cards import export_card, shape_of, task_of
from bertsmith.export.conversion import (
    MAX_INLINE_BYTES,
    MODEL,
    OPSET,
    WEIGHTS,
    OnnxFiles,
    check_opset,
    convert,
    need_packages,
)
from bertsmith.export.graph import OnnxModule
from bertsmith.export.parity import check_parity, measure_parity
from bertsmith.inference.forward import require_head
from bertsmith.model_io.model import Model
from bertsmith.model_io.model_folder import CARD, check_target, folder_contents, open_model
from bertsmith.model_io.seal import SEAL, seal
from bertsmith.objectives.objective import Objective
from bertsmith.system.durable import Disk, WrittenFile, partial_path
from bertsmith.tokenizers.tokenizer import Tokenizer

VECTORS = "vectors"  # instead of a head's name: the encoder alone
TOLERANCE = 1e-4


def export_onnx(
    folder: str | Path,
    output: str | Path,
    *,
    head: str | None = None,
    pooling: str | None = None,
    normalize: bool = False,
    opset: int = OPSET,
    tolerance: float = TOLERANCE,
    most_in_one: int = MAX_INLINE_BYTES,
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Writes the model of a folder as ONNX, and gives what was measured.

    `head`: the one to write, or `vectors`; all that are there where it is left out. `pooling` adds one vector for each
    text to the vectors, `normalize` makes it of length 1. Weights of more than `most_in_one` bytes go into a file
    beside the graph. A difference from the model over `tolerance` is an error.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    need_packages()
    check_opset(opset)
    check_target(final, replace=False)
    if normalize and pooling is None:
        raise BertsmithError("--normalize is for the vectors that --pooling makes")
    if pooling is not None and head not in (None, VECTORS):
        raise BertsmithError(f"--pooling makes vectors of texts, and the head {head} has none: leave out one of them")
    bare = pooling is not None or head == VECTORS
    model, tokenizer, _ = open_model(folder, objectives=() if bare else None)
    if head not in (None, VECTORS):
        model = Model(model.encoder, [cast(Objective, model.objectives[require_head(model, str(head))])])
    graph = OnnxModule(model, pooling=pooling, normalize=normalize).eval()
    contents = folder_contents(model, tokenizer, final.name, {})
    converted = convert(graph, opset=opset, most_in_one=most_in_one)
    aside = partial_path(final)
    if aside.exists():
        disk.remove_folder(aside)
    disk.make_folder(aside)
    try:
        facts, written = _write_graph(aside, graph, tokenizer, converted, tolerance=tolerance, disk=disk)
        contents[CARD] = _card(final.name, graph, tokenizer, facts)
        for file, data in contents.items():
            written[file] = disk.write_file(aside / file, [data], atomic=False)
        disk.write_file(aside / SEAL, [seal(written)], atomic=False)
    except BaseException:
        with suppress(StorageError):
            disk.remove_folder(aside)
        raise
    disk.commit_folder(aside, final)
    return {"output": str(final), **facts}


def _write_graph(
    aside: Path, graph: OnnxModule, tokenizer: Tokenizer, converted: OnnxFiles, *, tolerance: float, disk: Disk
) -> tuple[dict[str, Any], dict[str, WrittenFile]]:
    """Writes the graph and its weights; gives what was measured of them."""
    written: dict[str, WrittenFile] = {MODEL: disk.write_file(aside / MODEL, [converted.model], atomic=False)}
    if converted.weights is not None:
        written[WEIGHTS] = disk.write_file(aside / WEIGHTS, converted.weights, atomic=False)
    found = measure_parity(graph, aside / MODEL, tokens=tokenizer.vocab_size, padding_id=tokenizer.padding_id)
    largest = check_parity(found, tolerance, MODEL)
    facts = {
        "format": "onnx",
        "opset": converted.opset,
        "inputs": list(graph.input_names),
        "outputs": list(graph.output_names),
        "bytes": sum(one.bytes for one in written.values()),
        "parity": [one.to_json() for one in found],
        "largest_difference": largest,
        "tolerance": tolerance,
    }
    return facts, written


def _card(name: str, graph: OnnxModule, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    measured: dict[str, object] = {}
    for one in facts["parity"]:
        texts = f"{one['texts']} texts of up to" if one["texts"] > 1 else "1 text of"
        measured[f"{texts} {one['length']} tokens{', padded' if one['padded'] else ''}"] = f"{one['difference']:.2g}"
    export: dict[str, object] = {
        "format": f"ONNX, opset {facts['opset']}",
        "inputs": ", ".join(facts["inputs"]),
        "outputs": ", ".join(facts["outputs"]),
        "vector of a text": f"{graph.pooling}{', of length 1' if graph.normalize else ''}" if graph.pooling else "–",
    }
    tables: dict[str, dict[str, object]] = {
        "Export": export,
        "Shape": shape_of(graph.model, tokenizer),
        "Largest difference from the model": measured,
    }
    fed = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    inner = "[encoding.{}]".format if not graph.multiple_choice else "[[encoding.{}]]".format
    use = [
        "import numpy",
        "import onnxruntime",
        "import tokenizers",
        "",
        'tokenizer = tokenizers.Tokenizer.from_file("path/to/this/folder/tokenizer.json")',
        'session = onnxruntime.InferenceSession("path/to/this/folder/model.onnx")',
        f"tokenizer.enable_truncation({graph.model.encoder.max_positions})",
        'encoding = tokenizer.encode("A text.")',
        "inputs = {",
        *(f'    "{name}": numpy.array({inner(fed[name])}),' for name in graph.input_names),
        "}",
        f"{', '.join(graph.output_names)}{',' * (len(graph.output_names) == 1)} = session.run(None, inputs)",
    ]
    front = {"library_name": "onnx", "tags": ["onnx", "bertsmith"], **task_of(graph.model)}
    what = "A model written by bertsmith as an ONNX graph. Rows are padded at their end; outputs there say nothing."
    return export_card(name, what=what, front=front, tables=tables, use=use)
