"""A model folder as ONNX: model.onnx for onnxruntime and other runtimes, with tokenizer and config files.

The file is compared with the model before the folder gets its final name, with onnxruntime on rows of many lengths,
padded and not; the model runs each row alone, on its usual code path. If they differ, nothing is left behind.
B rows, C choices, L tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.export.folder import ParityError, export_card, model_facts, new_folder
from bertsmith.export.graph import (
    DEFAULT_OPSET,
    LAST_HIDDEN,
    MAX_INLINE_BYTES,
    MODEL_FILE,
    POOLED,
    SENTENCE,
    WEIGHTS_FILE,
    OnnxFiles,
    OnnxModule,
    check_opset,
    convert,
    require_packages,
)
from bertsmith.inference.encoder_outputs import EmbeddingQuery
from bertsmith.inference.forward import LocalBackend, ModelInput
from bertsmith.model_io.checksums import CHECKSUMS, checksums_file
from bertsmith.model_io.model_card import pipeline_tag
from bertsmith.model_io.model_folder import CARD, check_target, folder_contents, open_model
from bertsmith.system.durable import Disk, WrittenFile
from bertsmith.tokenizers.tokenizer import Tokenizer
from bertsmith.types import Row

VECTORS = "vectors"  # --head vectors exports the encoder without heads
TOLERANCE = 1e-4
CHOICES = 2  # per example of a multiple-choice model
Outputs = dict[str, NDArray[np.float32]]  # by output name


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
    `ParityError` is raised if an output differs from the model's by more than `tolerance` times its largest absolute
    value, or `tolerance` where that is below 1.
    """
    disk, final = disk or Disk(), Path(os.path.abspath(output))
    require_packages()
    check_opset(opset)
    check_target(final, replace=None)
    if normalize and pooling is None:
        raise BertsmithError("--normalize needs --pooling")
    if pooling is not None and head not in (None, VECTORS):
        raise BertsmithError(f"--pooling exports vectors and --head {head} exports logits: leave out one of them")
    chosen: dict[str, Any] = {"ignore_heads": True} if pooling is not None or head == VECTORS else {"head": head}
    model, words, _ = open_model(folder, tokenizer=tokenizer, **chosen)
    recurrent = model.encoder.stateful or any(isinstance(part, nn.LSTM) for part in model.encoder.modules())
    if recurrent or "characters" in model.encoder.reads:
        kind = "encoders that read characters" if "characters" in model.encoder.reads else "recurrent encoders"
        raise BertsmithError(f"{kind} cannot be exported to ONNX: export a Transformer such as bert/base")
    module = OnnxModule(model, pooling=pooling, normalize=normalize).eval()
    contents = folder_contents(model, words, final.name, {})
    files = convert(module, opset=opset, max_inline_bytes=max_inline_bytes)
    with new_folder(final, disk) as partial:
        disk.make_folder(partial)
        facts, written = _write_model(partial, module, words, files, tolerance=tolerance, disk=disk)
        facts = {"format": "onnx", "opset": opset, **facts}
        contents[CARD] = _card(final.name, module, words, facts)
        for file, data in contents.items():
            written[file] = disk.write_file(partial / file, [data], atomic=False)
        disk.write_file(partial / CHECKSUMS, [checksums_file(written)], atomic=False)
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
        "inputs": list(module.input_names),
        "outputs": list(module.output_names),
        "bytes": sum(one.bytes for one in written.values()),
        "parity": [one.to_json() for one in checks],
        "max_abs_diff": check_parity(checks, tolerance, MODEL_FILE),
        "max_abs_output": max(size for one in checks for _, size in one.outputs.values()),
        "tolerance": tolerance,
    }
    return facts, written


def _card(name: str, module: OnnxModule, tokenizer: Tokenizer, facts: dict[str, Any]) -> bytes:
    parity: dict[str, object] = {}
    for one in facts["parity"]:
        texts = f"{one['texts']} texts of up to" if one["texts"] > 1 else "1 text of"
        batch = f"{texts} {one['max_length']} tokens{', padded' if one['padded'] else ''}"
        parity[batch] = f"{one['max_abs_diff']:.2g}"
    tables: dict[str, dict[str, object]] = {
        "Export": {
            "format": f"ONNX, opset {facts['opset']}",
            "inputs": ", ".join(facts["inputs"]),
            "outputs": ", ".join(facts["outputs"]),
            "pooling": f"{module.pooling}{', normalized' if module.normalize else ''}" if module.pooling else "–",
        },
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


@dataclass(frozen=True)
class ParityCheck:
    """The comparison of one batch."""

    lengths: tuple[int, ...]  # of its texts
    outputs: Mapping[
        str, tuple[float, float]
    ]  # largest difference (NaN if there is one) and largest value, both absolute

    @property
    def max_abs_diff(self) -> float:
        """The largest difference over all outputs; NaN if there is one."""
        return float(np.max([difference for difference, _ in self.outputs.values()]))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "texts": len(self.lengths),
            "max_length": max(self.lengths),
            "padded": len(set(self.lengths)) > 1,
            "max_abs_diff": self.max_abs_diff,
        }


def batch_lengths(positions: int) -> list[tuple[int, ...]]:
    """The lengths of the texts of each batch: one token, the maximum, equal lengths, different lengths."""
    some = min(16, positions)
    batches = [(1,), (positions,), (some, some), (1, min(5, positions), min(40, positions))]
    return list(dict.fromkeys(batches))


def measure_parity(module: OnnxModule, path: Path, *, vocab_size: int, padding_id: int) -> list[ParityCheck]:
    """Compares the file with the model on rows of random tokens."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the model runs between its batches
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    encoder, checks = module.model.encoder, []
    for lengths in batch_lengths(encoder.max_positions):
        sizes = lengths * CHOICES if module.multiple_choice else lengths
        rows = [random_row(generator, size, vocab_size=vocab_size, segments=encoder.segment_types) for size in sizes]
        values = session.run(list(module.output_names), padded_inputs(module, rows, padding_id))
        outputs = dict(zip(module.output_names, values, strict=True))
        checks.append(ParityCheck(lengths, compare_outputs(module, rows, outputs)))
    return checks


def check_parity(checks: Sequence[ParityCheck], tolerance: float, name: str) -> float:
    """The largest difference of all batches; a `ParityError` if an output exceeds the tolerance.

    Rounding errors grow with the outputs, so the tolerance is relative to the largest value of an output over 1.
    """
    for output in checks[0].outputs:
        worst = max(checks, key=lambda one: np.nan_to_num(one.outputs[output][0], nan=np.inf))
        difference, size = worst.outputs[output][0], max(one.outputs[output][1] for one in checks)
        limit = tolerance * max(size, 1.0)
        if not difference <= limit:
            raise ParityError(
                f"{output} of {name} differs from the model by up to {difference:.2g} ({len(worst.lengths)} texts of "
                f"up to {max(worst.lengths)} tokens), more than {limit:.2g}, which is --tolerance {tolerance:g} of its "
                f"largest absolute value {size:.2g}, or of 1: nothing was written"
            )
    return max(one.max_abs_diff for one in checks)


def random_row(generator: np.random.Generator, length: int, *, vocab_size: int, segments: int) -> Row:
    """Random tokens, the second half of them in the second segment."""
    second = np.arange(length) >= (length + 1) // 2
    return Row(
        ids=generator.integers(0, vocab_size, length).astype(np.int32),
        segment_ids=(second & (segments > 1)).astype(np.uint8),
        sequence_ids=np.zeros(length, np.int8),
        offsets=np.zeros((length, 2), np.int32),
        words=np.zeros(length, np.int32),
    )


def padded_inputs(module: OnnxModule, rows: Sequence[Row], padding_id: int) -> dict[str, NDArray[np.int64]]:
    """The inputs of a runtime: rows padded at the end [B, L], or [B, C, L] for multiple choice."""
    size = (len(rows), max(map(len, rows)))
    ids, mask, segments = np.full(size, padding_id), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for index, row in enumerate(rows):
        ids[index, : len(row)], mask[index, : len(row)], segments[index, : len(row)] = row.ids, 1, row.segment_ids
    shape = (-1, CHOICES, size[1]) if module.multiple_choice else size
    return {name: array.reshape(shape) for name, array in zip(module.input_names, (ids, mask, segments), strict=False)}


def compare_outputs(module: OnnxModule, rows: Sequence[Row], outputs: Outputs) -> dict[str, tuple[float, float]]:
    """By output: the largest absolute difference from the model's, and the model's largest value, without padding."""
    found: dict[str, tuple[float, float]] = dict.fromkeys(module.output_names, (0.0, 0.0))
    for index, row in enumerate(rows):
        for name, expected in model_outputs(module, row).items():
            exported = outputs[name].reshape(len(rows), *outputs[name].shape[1 + module.multiple_choice :])[index]
            difference = np.abs(np.atleast_1d(exported)[: len(expected)] - expected)
            pairs = zip(
                found[name], (difference.max(), np.abs(expected[np.isfinite(expected)]).max(initial=0)), strict=True
            )
            largest, size = (float(np.maximum(before, now)) for before, now in pairs)  # keeps NaN
            found[name] = largest, size
    return found


def model_outputs(module: OnnxModule, row: Row) -> Outputs:
    """The model's own outputs for one row; the first axis is tokens or classes."""
    model = module.model
    batch = collate([row], length=len(row))
    with torch.inference_mode():
        if not len(model.objectives):
            return _embeddings(module, row)
        outputs: list[Any] = []
        for head in module.heads:
            shape = (1, 1, len(row)) if head.several_rows else (1, len(row))
            outputs += head.graph_outputs(model.predict(batch, head.name), shape)
    return {name: output[0].numpy() for name, output in zip(module.output_names, outputs, strict=True)}


def _embeddings(module: OnnxModule, row: Row) -> Outputs:
    encoding = module.model.encoder(collate([row], length=len(row)))
    outputs = {LAST_HIDDEN: encoding.last_hidden.numpy()}
    if POOLED in module.output_names:
        outputs[POOLED] = encoding.pooled[0].numpy()
    if SENTENCE in module.output_names:
        query = EmbeddingQuery(cast(Any, module.pooling), (-1,), "mean")
        (vector,) = LocalBackend(module.model, padding_id=0, device="cpu").run(query, [ModelInput((row,))])
        outputs[SENTENCE] = vector / np.linalg.norm(vector) if module.normalize else vector
    return outputs
