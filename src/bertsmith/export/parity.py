"""Does an ONNX file say what the model says? Measured with onnxruntime on rows of many lengths, padded and not.

The model reads every row alone and by its own road, so that padding and the making of batches are measured too.
B rows, C choices, L places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.export.graph import POOLED, SENTENCE, TOP, OnnxModule
from bertsmith.inference.encoder_outputs import EmbeddingQuery
from bertsmith.inference.forward import LocalBackend, ModelInput
from bertsmith.objectives.objective import Objective
from bertsmith.types import Row

CHOICES = 2  # of each question that a model for choices is asked
Said = dict[str, NDArray[np.float32]]  # by output, of one row


class ParityError(BertsmithError):
    """What was written does not say what the model says."""

    exit_code = 70


@dataclass(frozen=True)
class ParityCheck:
    """One batch that both were asked."""

    lengths: tuple[int, ...]  # of its texts
    max_abs_diff: float  # the largest of all numbers that both gave; NaN where one of them is

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "texts": len(self.lengths),
            "length": max(self.lengths),
            "padded": len(set(self.lengths)) > 1,
            "difference": self.max_abs_diff,
        }


def batches(positions: int) -> list[tuple[int, ...]]:
    """The lengths of the texts of each batch: one token, the longest, equal ones, different ones."""
    half, some = max(positions // 2, 1), min(16, positions)
    found = [(1,), (positions,), (some,) * 3, (1, min(5, positions), some, half), (positions, min(3, positions))]
    return list(dict.fromkeys(found))


def measure_parity(graph: OnnxModule, path: Path, *, tokens: int, padding_id: int, seed: int = 0) -> list[ParityCheck]:
    """How far the file is from the model on random rows of `tokens` different tokens."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(seed)
    found = []
    for lengths in batches(graph.model.encoder.max_positions):
        several = lengths * CHOICES if graph.multiple_choice else lengths
        rows = [
            random_row(draw, length, tokens=tokens, segments=graph.model.encoder.segment_types) for length in several
        ]
        said = session.run(list(graph.output_names), fed(graph, rows, padding_id))
        found.append(ParityCheck(lengths, difference(graph, rows, dict(zip(graph.output_names, said, strict=True)))))
    return found


def check_parity(found: Sequence[ParityCheck], tolerance: float, what: str) -> float:
    """The largest difference of all; a NotEqual where it is over the tolerance."""
    worst = max(found, key=lambda one: np.nan_to_num(one.max_abs_diff, nan=np.inf))
    if not worst.max_abs_diff <= tolerance:
        told = worst.to_json()
        where = f"{told['texts']} texts of up to {told['length']} tokens"
        raise ParityError(
            f"{what} is up to {worst.max_abs_diff:.2g} away from the model ({where}), more than --tolerance "
            f"{tolerance:g}: nothing was written"
        )
    return worst.max_abs_diff


def random_row(draw: np.random.Generator, length: int, *, tokens: int, segments: int) -> Row:
    """One text, the second half of it in the second segment."""
    second = np.arange(length) >= (length + 1) // 2
    return Row(
        ids=draw.integers(0, tokens, length).astype(np.int32),
        segment_ids=(second & (segments > 1)).astype(np.uint8),
        sequence_ids=np.zeros(length, np.int8),
        offsets=np.zeros((length, 2), np.int32),
        words=np.zeros(length, np.int32),
    )


def fed(graph: OnnxModule, rows: Sequence[Row], padding_id: int) -> dict[str, NDArray[np.int64]]:
    """What a runtime is given: rows padded at their end [B, L], those of one question together [B, C, L]."""
    size = (len(rows), max(map(len, rows)))
    ids, mask, segments = np.full(size, padding_id), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)], segments[number, : len(row)] = row.ids, 1, row.segment_ids
    shape = (-1, CHOICES, size[1]) if graph.multiple_choice else size
    return {name: part.reshape(shape) for name, part in zip(graph.input_names, (ids, mask, segments), strict=False)}


def difference(graph: OnnxModule, rows: Sequence[Row], said: Said) -> float:
    """The largest distance of what the file said from what the model says, padding left out."""
    largest = 0.0
    for number, row in enumerate(rows):
        for name, ours in model_says(graph, row).items():
            theirs = said[name].reshape(len(rows), *said[name].shape[1 + graph.multiple_choice :])[number]
            away = np.abs(np.atleast_1d(theirs)[: len(ours)] - ours)
            largest = max(largest, float(away.max())) if not np.isnan(away).any() else float("nan")
            if np.isnan(largest):
                return largest
    return largest


def model_says(graph: OnnxModule, row: Row) -> Said:
    """What the model itself says of one row, by the graph's outputs; the first axis is of places or classes."""
    model = graph.model
    batch = collate([row], length=len(row))
    with torch.inference_mode():
        if not len(model.objectives):
            return _vectors(graph, row)
        outputs, found = list(graph.output_names), {}
        for name in model.objectives:
            logits = model.predict(batch, name)
            head = cast(Objective, model.objectives[name])
            shape = (1, 1, len(row)) if head.several_rows else (1, len(row))
            for part in head.graph_outputs(logits, shape):
                found[outputs.pop(0)] = part[0].numpy()
    return found


def _vectors(graph: OnnxModule, row: Row) -> Said:
    encoding = graph.model.encoder(collate([row], length=len(row)))
    found = {TOP: encoding.last_hidden.numpy()}
    if POOLED in graph.output_names:
        found[POOLED] = encoding.pooled[0].numpy()
    if SENTENCE in graph.output_names:
        pooling: Any = graph.pooling
        direct = LocalBackend(graph.model, padding_id=0, device="cpu")
        vector = direct.run(EmbeddingQuery(pooling, (-1,), "mean"), [ModelInput(rows=(row,))])[0]
        found[SENTENCE] = vector / np.linalg.norm(vector) if graph.normalize else vector
    return found
