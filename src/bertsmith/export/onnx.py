"""A model folder as ONNX: model.onnx for onnxruntime and other runtimes, with tokenizer and config files.

The file is compared with the model before the folder gets its final name; if they differ, nothing is left behind.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from bertsmith.errors import BertsmithError, StorageError
from bertsmith.export.cards import export_card, model_facts
from bertsmith.export.graph import (
    DEFAULT_OPSET,
    MAX_INLINE_BYTES,
    MODEL_FILE,
    WEIGHTS_FILE,
    OnnxFiles,
    OnnxModule,
    check_opset,
    convert,
    require_packages,
)
from bertsmith.export.parity import check_parity, measure_parity
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file
from bertsmith.model_io.model_card import pipeline_tag
from bertsmith.model_io.model_folder import CARD, check_target, folder_contents, open_model
from bertsmith.system.durable import Disk, WrittenFile, partial_path
from bertsmith.tokenizers.tokenizer import Tokenizer

VECTORS = "vectors"  # --head vectors exports the encoder without heads
TOLERANCE = 1e-4


def export_onnx(
    folder: str | Path,
    output: str | Path,
    *,
    head: str | None = None,
    pooling: str | None = None,
    normalize: bool = False,
    tokenizer: str | Path | None = None,
    opset: int = DEFAULT_OPSET,
    tolerance: float = TOLERANCE,
    max_inline_bytes: int = MAX_INLINE_BYTES,
    disk: Disk | None = None,
) -> dict[str, Any]:
    """Exports the model of a folder to ONNX, and returns facts about the export.

    `head`: the head to export, or `vectors`; default: all heads. `pooling` adds one vector per text to the hidden
    states, `normalize` divides it by its L2 norm. Weights of more than `max_inline_bytes` go to an external file. A
    `ParityError` is raised if outputs differ from the model's by more than `tolerance`.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    require_packages()
    check_opset(opset)
    check_target(final, replace=False)
    if normalize and pooling is None:
        raise BertsmithError("--normalize needs --pooling")
    if pooling is not None and head not in (None, VECTORS):
        raise BertsmithError(f"--pooling exports vectors and --head {head} exports logits: leave out one of them")
    without_heads = pooling is not None or head == VECTORS
    chosen = {"ignore_heads": True} if without_heads else {"head": head}
    model, words, _ = open_model(folder, tokenizer=tokenizer, **chosen)
    module = OnnxModule(model, pooling=pooling, normalize=normalize).eval()
    contents = folder_contents(model, words, final.name, {})
    files = convert(module, opset=opset, max_inline_bytes=max_inline_bytes)
    partial = partial_path(final)
    if partial.exists():
        disk.remove_folder(partial)
    disk.make_folder(partial)
    try:
        facts, written = _write_model(partial, module, words, files, tolerance=tolerance, disk=disk)
        contents[CARD] = _card(final.name, module, words, facts)
        for file, data in contents.items():
            written[file] = disk.write_file(partial / file, [data], atomic=False)
        disk.write_file(partial / CHECKSUMS, [checksums_file(written)], atomic=False)
    except BaseException:
        with suppress(StorageError):
            disk.remove_folder(partial)
        raise
    disk.commit_folder(partial, final)
    return {"output": str(final), **facts}


def _write_model(
    folder: Path, module: OnnxModule, tokenizer: Tokenizer, files: OnnxFiles, *, tolerance: float, disk: Disk
) -> tuple[dict[str, Any], dict[str, WrittenFile]]:
    """Writes the ONNX files and measures their parity."""
    path = folder / MODEL_FILE
    written: dict[str, WrittenFile] = {MODEL_FILE: disk.write_file(path, [files.model], atomic=False)}
    if files.weights is not None:
        written[WEIGHTS_FILE] = disk.write_file(folder / WEIGHTS_FILE, files.weights, atomic=False)
    checks = measure_parity(module, path, vocab_size=tokenizer.vocab_size, padding_id=tokenizer.padding_id)
    facts = {
        "format": "onnx",
        "opset": files.opset,
        "inputs": list(module.input_names),
        "outputs": list(module.output_names),
        "bytes": sum(one.bytes for one in written.values()),
        "parity": [one.to_json() for one in checks],
        "max_abs_diff": check_parity(checks, tolerance, MODEL_FILE),
        "tolerance": tolerance,
    }
    return facts, written


def _card(name: str, module: OnnxModule, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    parity: dict[str, object] = {}
    for one in facts["parity"]:
        texts = f"{one['texts']} texts of up to" if one["texts"] > 1 else "1 text of"
        batch = f"{texts} {one['max_length']} tokens{', padded' if one['padded'] else ''}"
        parity[batch] = f"{one['max_abs_diff']:.2g}"
    export: dict[str, object] = {
        "format": f"ONNX, opset {facts['opset']}",
        "inputs": ", ".join(facts["inputs"]),
        "outputs": ", ".join(facts["outputs"]),
        "pooling": f"{module.pooling}{', normalized' if module.normalize else ''}" if module.pooling else "–",
    }
    tables: dict[str, dict[str, object]] = {
        "Export": export,
        "Model": model_facts(module.model, tokenizer),
        "Maximum absolute difference from the model": parity,
    }
    attributes = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    nested = "[[encoding.{}]]".format if module.multiple_choice else "[encoding.{}]".format
    usage = [
        "import numpy",
        "import onnxruntime",
        "import tokenizers",
        "",
        'tokenizer = tokenizers.Tokenizer.from_file("path/to/this/folder/tokenizer.json")',
        'session = onnxruntime.InferenceSession("path/to/this/folder/model.onnx")',
        f"tokenizer.enable_truncation({module.model.encoder.max_positions})",
        'encoding = tokenizer.encode("A text.")',
        "inputs = {",
        *(f'    "{name}": numpy.array({nested(attributes[name])}),' for name in module.input_names),
        "}",
        f"{', '.join(module.output_names)}{',' * (len(module.output_names) == 1)} = session.run(None, inputs)",
    ]
    metadata: dict[str, object] = {"library_name": "onnx", "tags": ["onnx", "bertsmith"]}
    if tag := pipeline_tag(module.model.objectives):
        metadata["pipeline_tag"] = tag
    description = "An ONNX model written by bertsmith. Pad rows at the end; outputs at padding are undefined."
    return export_card(name, description=description, metadata=metadata, tables=tables, usage=usage)
