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
from bertsmith.export.graph import POOLED, SENTENCE, TOP, Graph
from bertsmith.inference.computing import Direct, Item
from bertsmith.inference.embedding import Vectors
from bertsmith.objectives.objective import Objective
from bertsmith.types import Row

CHOICES = 2  # of each question that a model for choices is asked
Said = dict[str, NDArray[np.float32]]  # by output, of one row


class NotEqual(BertsmithError):
    """What was written does not say what the model says."""

    exit_code = 70


@dataclass(frozen=True)
class Measured:
    """One batch that both were asked."""

    lengths: tuple[int, ...]  # of its texts
    difference: float  # the largest of all numbers that both gave; NaN where one of them is

    def told(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "texts": len(self.lengths),
            "length": max(self.lengths),
            "padded": len(set(self.lengths)) > 1,
            "difference": self.difference,
        }


def batches(positions: int) -> list[tuple[int, ...]]:
    """The lengths of the texts of each batch: one token, the longest, equal ones, different ones."""
    half, some = max(positions // 2, 1), min(16, positions)
    found = [(1,), (positions,), (some,) * 3, (1, min(5, positions), some, half), (positions, min(3, positions))]
    return list(dict.fromkeys(found))


def measure(graph: Graph, path: Path, *, tokens: int, padding_id: int, seed: int = 0) -> list[Measured]:
    """How far the file is from the model on random rows of `tokens` different tokens."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(seed)
    found = []
    for lengths in batches(graph.model.encoder.max_positions):
        several = lengths * CHOICES if graph.chooses else lengths
        rows = [
            random_row(draw, length, tokens=tokens, segments=graph.model.encoder.segment_types) for length in several
        ]
        said = session.run(list(graph.outputs), fed(graph, rows, padding_id))
        found.append(Measured(lengths, difference(graph, rows, dict(zip(graph.outputs, said, strict=True)))))
    return found


def check(found: Sequence[Measured], tolerance: float, what: str) -> float:
    """The largest difference of all; a NotEqual where it is over the tolerance."""
    worst = max(found, key=lambda one: np.nan_to_num(one.difference, nan=np.inf))
    if not worst.difference <= tolerance:
        told = worst.told()
        where = f"{told['texts']} texts of up to {told['length']} tokens"
        raise NotEqual(
            f"{what} is up to {worst.difference:.2g} away from the model ({where}), more than --tolerance "
            f"{tolerance:g}: nothing was written"
        )
    return worst.difference


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


def fed(graph: Graph, rows: Sequence[Row], padding_id: int) -> dict[str, NDArray[np.int64]]:
    """What a runtime is given: rows padded at their end [B, L], those of one question together [B, C, L]."""
    size = (len(rows), max(map(len, rows)))
    ids, mask, segments = np.full(size, padding_id), np.zeros(size, np.int64), np.zeros(size, np.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)], segments[number, : len(row)] = row.ids, 1, row.segment_ids
    shape = (-1, CHOICES, size[1]) if graph.chooses else size
    return {name: part.reshape(shape) for name, part in zip(graph.inputs, (ids, mask, segments), strict=False)}


def difference(graph: Graph, rows: Sequence[Row], said: Said) -> float:
    """The largest distance of what the file said from what the model says, padding left out."""
    largest = 0.0
    for number, row in enumerate(rows):
        for name, ours in model_says(graph, row).items():
            theirs = said[name].reshape(len(rows), *said[name].shape[1 + graph.chooses :])[number]
            away = np.abs(np.atleast_1d(theirs)[: len(ours)] - ours)
            largest = max(largest, float(away.max())) if not np.isnan(away).any() else float("nan")
            if np.isnan(largest):
                return largest
    return largest


def model_says(graph: Graph, row: Row) -> Said:
    """What the model itself says of one row, by the graph's outputs; the first axis is of places or classes."""
    model = graph.model
    batch = collate([row], length=len(row))
    with torch.inference_mode():
        if not len(model.objectives):
            return _vectors(graph, row)
        outputs, found = list(graph.outputs), {}
        for name in model.objectives:
            logits = model.predict(batch, name)
            head = cast(Objective, model.objectives[name])
            shape = (1, 1, len(row)) if head.several_rows else (1, len(row))
            for part in head.graph_outputs(logits, shape):
                found[outputs.pop(0)] = part[0].numpy()
    return found


def _vectors(graph: Graph, row: Row) -> Said:
    encoding = graph.model.encoder(collate([row], length=len(row)))
    found = {TOP: encoding.last_hidden.numpy()}
    if POOLED in graph.outputs:
        found[POOLED] = encoding.pooled[0].numpy()
    if SENTENCE in graph.outputs:
        pooling: Any = graph.pooling
        direct = Direct(graph.model, padding_id=0, device="cpu")
        vector = direct.compute(Vectors(pooling, (-1,), "mean"), [Item(rows=(row,))])[0]
        found[SENTENCE] = vector / np.linalg.norm(vector) if graph.normalize else vector
    return found
