"""A graph becomes an ONNX model: its bytes, and where they are too many for one file those of its weights beside it.

The same model gives the same bytes: nothing of the machine or of how the graph came about stays in it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from bertsmith import __version__
from bertsmith.errors import BertsmithError
from bertsmith.export.graph import OnnxModule, with_lstm_nodes

MODEL, WEIGHTS = "model.onnx", "model.onnx_data"
MAX_INLINE_BYTES = 2_000_000_000  # bytes; a protocol buffer holds less than 2 GiB
LEAST_BESIDE = 1024  # bytes: smaller weights stay in the model
ALIGNED = 4096  # bytes, so that a runtime can map the weights
OPSETS = range(18, 24)
OPSET = 20
AXES = ("batch_size", "num_choices", "sequence_length")


@dataclass(frozen=True)
class OnnxFiles:
    """An ONNX model."""

    model: bytes
    weights: Iterable[bytes] | None  # of the file beside it, piece by piece; None where all is in the model
    opset: int


def need_packages() -> None:
    """Raises where what ONNX needs is not installed."""
    try:
        import onnx_ir  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BertsmithError(f"ONNX needs the package {error.name}: pip install 'bertsmith[onnx]'") from error


def check_opset(opset: int) -> None:
    """Raises where no such version can be written."""
    if opset not in OPSETS:
        raise BertsmithError(f"opset {opset} cannot be written: {OPSETS[0]} to {OPSETS[-1]}")


def convert(graph: OnnxModule, *, opset: int = OPSET, most_in_one: int = MAX_INLINE_BYTES) -> OnnxFiles:
    """The graph with any number of rows and places."""
    import onnx_ir

    check_opset(opset)
    model = _traced(graph, opset)
    if model.opset_imports.get("") != opset:
        raise BertsmithError(f"this model cannot be written in opset {opset}: leave it at {OPSET}")
    _plain(model)
    sizes = [value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None]
    weights = _beside(model) if sum(sizes) > most_in_one else None
    proto = onnx_ir.to_proto(model)
    return OnnxFiles(proto.SerializeToString(deterministic=True), weights, opset)


def _traced(graph: OnnxModule, opset: int) -> Any:
    """The graph as the exporter of torch makes it."""
    positions = graph.model.encoder.max_positions
    length = min(7, positions)
    shape = (
        (3, 2, length) if graph.multiple_choice else (3, length)
    )  # sizes that differ, so that none is taken for another
    dims = [torch.export.Dim(name, min=1, max=None) for name in AXES[: len(shape) - 1]]
    dims.append(torch.export.Dim(AXES[2], min=1, max=positions))
    dynamic = tuple(dict(enumerate(dims)) for _ in graph.input_names)
    examples = tuple(torch.ones(shape, dtype=torch.int64) for _ in graph.input_names)  # one each, or inputs become one
    try:
        with _quiet(), torch.no_grad(), with_lstm_nodes(graph):
            program = torch.export.export(graph.eval(), examples, dynamic_shapes=dynamic, strict=False)
            found: Any = torch.onnx.export(
                program,
                dynamo=True,
                input_names=list(graph.input_names),
                output_names=list(graph.output_names),
                opset_version=opset,
                custom_translation_table={torch.ops.aten.remainder.Scalar: _remainder(opset)},
                verbose=False,
            )
    except Exception as error:  # the exporter raises nothing more special
        reason = " ".join(str(error).split())[:200]
        raise BertsmithError(f"this model cannot be written as ONNX: {type(error).__name__}: {reason}") from error
    return found.model


def _remainder(opset: int) -> Any:
    """The remainder by a size that is known only when the model runs, which torch's own translation refuses."""
    import onnxscript

    op = getattr(onnxscript, f"opset{opset}")

    def remainder(dividend: Any, divisor: Any) -> Any:
        return op.Mod(dividend, op.CastLike(divisor, dividend))

    return remainder


def _plain(model: Any) -> None:
    """Takes out traces of code and machine, and names the axes."""
    import onnx_ir

    names = dict(zip((dim.value for dim in model.graph.inputs[0].shape), _axes(model), strict=True))
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.shape = onnx_ir.Shape([dim if isinstance(dim, int) else names[dim.value] for dim in value.shape])
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.graph.doc_string = model.doc_string = None
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.shape = value.type = None  # of what is between, which runtimes find out by themselves
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.producer_name, model.producer_version = "bertsmith", __version__


def _axes(model: Any) -> Sequence[str]:
    return AXES if len(model.graph.inputs[0].shape) == len(AXES) else (AXES[0], AXES[2])


def _beside(model: Any) -> Iterable[bytes]:
    """Points the larger weights of the model to the file beside it; gives that file's bytes."""
    import onnx_ir

    place, tensors = 0, []
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < LEAST_BESIDE:
            continue
        value.const_value = onnx_ir.ExternalTensor(
            WEIGHTS, place, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=tensor.name
        )
        tensors.append(tensor)
        place += -(-tensor.nbytes // ALIGNED) * ALIGNED
    return _pieces(tensors)


def _pieces(tensors: Sequence[Any]) -> Iterator[bytes]:
    for tensor in tensors:
        data = tensor.tobytes()
        yield data
        yield bytes(-len(data) % ALIGNED)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of packages that nobody asked for."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
