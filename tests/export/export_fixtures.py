"""Small models of every encoder, and the difference between graph and model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from model_fixtures import SIZE, randomize_weights

from bertsmith import config
from bertsmith.encoders import encoder as encoders
from bertsmith.export import onnx
from bertsmith.export.graph import OnnxModule
from bertsmith.model_io.model import Model
from bertsmith.types import Row

# that have a pooler for their heads
KINDS = [
    kind
    for kind in config.kinds(encoders.FOLDER)
    if hasattr(config.find_kind(encoders.FOLDER, kind).Config(), "pooler")
]
SMALL = {"layers": 2, "width": 32, "hidden": 32, "heads": 4, "vocab_size": SIZE, "max_positions": 24}
LENGTHS = (1, 24, 7, 3)


def model(kind: str, *heads: Any, **changes: Any) -> Model:
    """A small model with large weights."""
    settings = config.find_kind(encoders.FOLDER, kind).Config
    known = {item.name for item in dataclasses.fields(settings)}
    small = {name: value for name, value in (SMALL | changes).items() if name in known}
    return randomize_weights(Model.build(settings(**small), heads)).eval()


def rows(graph: OnnxModule, lengths: Sequence[int] = LENGTHS, *, seed: int = 0) -> list[Row]:
    """Random texts; an even number of them, as questions with two choices need."""
    draw = np.random.default_rng(seed)
    segments = graph.model.encoder.segment_types
    return [onnx.random_row(draw, length, vocab_size=SIZE, segments=segments) for length in lengths]


def difference(graph: OnnxModule, texts: Sequence[Row], **changed: np.ndarray[Any, Any]) -> float:
    """The largest difference between the graph on all texts and the model on each; some inputs may be changed."""
    given = onnx.padded_inputs(graph, texts, 0) | changed
    with torch.inference_mode():
        results = graph(*(torch.from_numpy(given[name]) for name in graph.input_names))
    outputs = {name: part.numpy() for name, part in zip(graph.output_names, results, strict=True)}
    return onnx.ParityCheck((), onnx.compare_outputs(graph, texts, outputs)).max_abs_diff
