"""Parity of an ONNX file with the model, measured with onnxruntime on rows of many lengths, padded and not.

The model runs each row alone, on its usual code path, so that padding and batching are compared too.
B rows, C choices, L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.export.graph import LAST_HIDDEN, POOLED, SENTENCE, OnnxModule
from bertsmith.inference.encoder_outputs import EmbeddingQuery
from bertsmith.inference.forward import LocalBackend, ModelInput
from bertsmith.types import Row

CHOICES = 2  # per example of a multiple-choice model
Outputs = dict[str, NDArray[np.float32]]  # by output name


class ParityError(BertsmithError):
    """The exported model differs from the original."""

    exit_code = 70


@dataclass(frozen=True)
class ParityCheck:
    """The comparison of one batch."""

    lengths: tuple[int, ...]  # of its texts
    max_abs_diff: float  # over all outputs; NaN if either has a NaN

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
    half, some = max(positions // 2, 1), min(16, positions)
    batches = [(1,), (positions,), (some,) * 3, (1, min(5, positions), some, half), (positions, min(3, positions))]
    return list(dict.fromkeys(batches))


def measure_parity(module: OnnxModule, path: Path, *, vocab_size: int, padding_id: int) -> list[ParityCheck]:
    """Compares the file with the model on rows of random tokens."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = np.random.default_rng(0)
    encoder, checks = module.model.encoder, []
    for lengths in batch_lengths(encoder.max_positions):
        sizes = lengths * CHOICES if module.multiple_choice else lengths
        rows = [random_row(generator, size, vocab_size=vocab_size, segments=encoder.segment_types) for size in sizes]
        values = session.run(list(module.output_names), padded_inputs(module, rows, padding_id))
        outputs = dict(zip(module.output_names, values, strict=True))
        checks.append(ParityCheck(lengths, max_abs_diff(module, rows, outputs)))
    return checks


def check_parity(checks: Sequence[ParityCheck], tolerance: float, name: str) -> float:
    """The largest difference of all batches; a `ParityError` if it exceeds the tolerance."""
    worst = max(checks, key=lambda one: np.nan_to_num(one.max_abs_diff, nan=np.inf))
    if not worst.max_abs_diff <= tolerance:
        raise ParityError(
            f"{name} differs from the model by up to {worst.max_abs_diff:.2g} ({len(worst.lengths)} texts of up to "
            f"{max(worst.lengths)} tokens), more than --tolerance {tolerance:g}: nothing was written"
        )
    return worst.max_abs_diff


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


def max_abs_diff(module: OnnxModule, rows: Sequence[Row], outputs: Outputs) -> float:
    """The largest absolute difference between exported outputs and the model's, without padding."""
    largest = 0.0
    for index, row in enumerate(rows):
        for name, expected in model_outputs(module, row).items():
            exported = outputs[name].reshape(len(rows), *outputs[name].shape[1 + module.multiple_choice :])[index]
            difference = np.abs(np.atleast_1d(exported)[: len(expected)] - expected)
            if np.isnan(difference).any():
                return float("nan")
            largest = max(largest, float(difference.max()))
    return largest


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
        pooling: Any = module.pooling
        backend = LocalBackend(module.model, padding_id=0, device="cpu")
        vector = backend.run(EmbeddingQuery(pooling, (-1,), "mean"), [ModelInput((row,))])[0]
        outputs[SENTENCE] = vector / np.linalg.norm(vector) if module.normalize else vector
    return outputs
