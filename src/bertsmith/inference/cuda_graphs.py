"""Forward passes replayed as CUDA graphs.

Launching the kernels of a short text takes several times as long as running them, and every launch of the batching
engine waits for the interpreter lock that the threads of its callers hold. A graph launches all kernels at once, with
the copies of its inputs to the device and of its output to the host. Its shapes are constant: texts are concatenated
and padded to one of a few numbers of tokens.
"""

from __future__ import annotations

import threading
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.model_io.model import Model
from bertsmith.types import Batch, Row

TOKENS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12_288, 16_384)
TOKENS_PER_TEXT = 8  # a shape of T tokens has space for T / 8 texts
READS = (8, 64, 512, 4096, 16_384)  # numbers of tokens that an objective reads
CAPTURE_AT = 3  # runs of a shape from which on it is replayed: a capture takes as long as about ten runs
MAX_GRAPHS = 64
MAX_OUTPUT = 16 << 20  # bytes; the time of a larger one is that of its copy
ALIGNMENT = 16


class GraphQuery(Protocol):
    """The part of `forward.Query` that runs on the device."""

    def forward(self, model: Model, batch: Batch) -> Tensor: ...


class Shape(NamedTuple):
    """The constant sizes of a batch."""

    tokens: int
    texts: int
    reads: int | None


def shape_for(tokens: int, texts: int, reads: int | None) -> Shape | None:
    """The smallest shape for so many tokens, texts and tokens that an objective reads; None if they are too many."""
    size = bisect_left(TOKENS, max(tokens, texts * TOKENS_PER_TEXT))
    read_size = bisect_left(READS, reads or 0)
    if size == len(TOKENS) or read_size == len(READS):
        return None
    return Shape(TOKENS[size], TOKENS[size] // TOKENS_PER_TEXT, None if reads is None else READS[read_size])


def pad_to_shape(
    rows: Sequence[Row],
    shape: Shape,
    *,
    max_length: int,
    padding_id: int,
    indices: Mapping[str, Sequence[NDArray[np.int64]]] | None = None,
) -> Batch:
    """The batch of a shape: all texts in one row, then padding; `max_length` is that of a text.

    Equal to `collate` with that shape, but ten times as fast for a few texts.
    """
    count, sizes = len(rows), np.array([len(row) for row in rows])
    ends = np.cumsum(sizes)
    begins, tokens = ends - sizes, int(ends[-1])
    ids = np.full((1, shape.tokens), padding_id)
    positions, segments, samples = np.zeros((3, 1, shape.tokens), np.int64)
    documents, special = np.zeros((1, shape.tokens), np.int32), np.ones((1, shape.tokens), np.bool_)
    np.concatenate([row.ids for row in rows], out=ids[0, :tokens])
    np.concatenate([row.segment_ids for row in rows], out=segments[0, :tokens])
    np.less(np.concatenate([row.sequence_ids for row in rows]), 0, out=special[0, :tokens])
    samples[0, tokens:] = -1
    samples[0, :tokens] = np.repeat(np.arange(count), sizes)
    documents[0, :tokens] = samples[0, :tokens] + 1
    positions[0, :tokens] = np.arange(tokens) - begins[samples[0, :tokens]]
    cls_positions, cu_seqlens = np.full(shape.texts, -1), np.full(shape.texts + 2, shape.tokens, np.int32)
    cls_positions[:count], cu_seqlens[1 : count + 1], cu_seqlens[0] = begins, ends, 0
    read = {name: np.zeros(shape.reads or 0, np.int64) for name in indices or {}}
    for name, some in (indices or {}).items():
        flat = np.concatenate([begin + one for begin, one in zip(begins, some, strict=True)])
        read[name][: len(flat)] = flat
    return Batch(
        input_ids=torch.from_numpy(ids),
        position_ids=torch.from_numpy(positions),
        segment_ids=torch.from_numpy(segments),
        document_ids=torch.from_numpy(documents),
        special_mask=torch.from_numpy(special),
        sample_ids=torch.from_numpy(samples),
        epoch=torch.zeros((), dtype=torch.int64),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        cls_positions=torch.from_numpy(cls_positions),
        max_seqlen=min(shape.tokens, max_length),
        indices={name: torch.from_numpy(flat) for name, flat in read.items()},
    )


@dataclass(frozen=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[NDArray[Any]]  # views of pinned memory
    output: NDArray[np.float32]  # a view of pinned memory

    def replay(self, batch: Batch) -> NDArray[np.float32]:
        for view, tensor in zip(self.inputs, batch.tensors(), strict=True):
            view[...] = tensor.numpy()
        self.graph.replay()
        torch.cuda.current_stream().synchronize()  # other threads run meanwhile
        return self.output.copy()


class CudaGraphs:
    """The graphs of a model. Threads may share it: a lock admits one at a time."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._runs: Counter[Any] = Counter()
        self._graphs: dict[Any, _Graph | None] = {}  # None: must run eagerly
        self._pool: Any = None  # memory that all graphs share, since only one runs at a time

    def run(
        self, query: GraphQuery, rows: Sequence[Row], *, indices: Mapping[str, Sequence[Any]] | None, padding_id: int
    ) -> NDArray[np.float32] | None:
        """The values of a query, padded to its shape; None where it must run eagerly."""
        reads = None if indices is None else sum(len(row) for some in indices.values() for row in some)
        shape = shape_for(sum(map(len, rows)), len(rows), reads)
        if shape is None:
            return None
        with self._lock:
            key = query, shape
            self._runs[key] += 1
            if self._runs[key] < CAPTURE_AT or (key not in self._graphs and len(self._graphs) >= MAX_GRAPHS):
                return None
            options: dict[str, Any] = {"indices": indices, "padding_id": padding_id}
            batch = pad_to_shape(rows, shape, max_length=self.model.encoder.max_positions, **options)
            if key not in self._graphs:
                with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                    self._graphs[key] = self._capture(query, batch)
            graph = self._graphs[key]
            return None if graph is None else graph.replay(batch)

    def _capture(self, query: GraphQuery, batch: Batch) -> _Graph | None:
        size = sum(_aligned(tensor) for tensor in batch.tensors())
        host = torch.zeros(size, dtype=torch.uint8).pin_memory()
        device = torch.zeros(size, dtype=torch.uint8, device="cuda")
        views = _views(host, batch)
        for view, tensor in zip(views.tensors(), batch.tensors(), strict=True):
            view.copy_(tensor)
        device.copy_(host)
        static = _views(device, batch)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                values = query.forward(self.model, static).float()
                stream.synchronize()
            if values.nbytes > MAX_OUTPUT:
                return None
            output = torch.empty(values.shape, dtype=torch.float32).pin_memory()
            graph = torch.cuda.CUDAGraph()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                device.copy_(host, non_blocking=True)
                output.copy_(query.forward(self.model, static).float(), non_blocking=True)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(f"forward passes run without CUDA graphs, which is slower: {reason}", stacklevel=2)
            return None
        return _Graph(graph, [view.numpy() for view in views.tensors()], output.numpy())


def _aligned(tensor: Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _views(memory: Tensor, batch: Batch) -> Batch:
    """The batch with its tensors in that memory [bytes], one after the other."""
    end = 0

    def view(tensor: Tensor) -> Tensor:
        nonlocal end
        begin, end = end, end + _aligned(tensor)
        return memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    return batch.map(view)
