"""CUDA graphs of the steps of a recurrent layer, forward and backward, whose kernels are shorter than their launches.

The graphs of a shape read and write their own tensors. They serve one forward at a time, until its backward is done or
its result is dropped; another forward meanwhile runs without them.
"""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor

MAX_SHAPES = 2  # whose tensors are kept: they are the activations of a layer
WARMUP = 2  # runs before the capture, in which kernels are compiled and libraries allocate memory


class CapturedSteps:
    """The graphs of a layer, by shape. Copies and pickles of a layer start without any."""

    def __init__(self, steps: type[Any], gradients: type[Any]) -> None:
        """The types of the tensors of the steps, and of the gradients."""
        self._types = steps, gradients
        self._by_shape: dict[Any, _Graphs] = {}
        self.enabled = True

    def __reduce__(self) -> tuple[Any, ...]:
        return CapturedSteps, self._types

    def __deepcopy__(self, memory: Any) -> CapturedSteps:
        return CapturedSteps(*self._types)

    def claim(self, x_DSNW: Tensor, weights: Any, clips: tuple[float, float]) -> Run | None:
        """Graphs for a forward and its backward; None where they serve another one, or cannot be captured."""
        if not self.enabled or torch.cuda.is_current_stream_capturing():
            return None
        key = x_DSNW.shape, x_DSNW.dtype, x_DSNW.device
        graphs = self._by_shape.get(key)
        if graphs is None:
            try:
                graphs = _Graphs(*self._types, x_DSNW, weights, clips)
            except RuntimeError as error:
                self.enabled = False
                reason = str(error).partition("\n")[0]
                warnings.warn(f"the LSTM runs without CUDA graphs, which is slower: {reason}", stacklevel=2)
                return None
            if len(self._by_shape) >= MAX_SHAPES:
                del self._by_shape[next(iter(self._by_shape))]
            self._by_shape[key] = graphs
        return graphs.claim()


class Run:
    """One forward and its backward."""

    def __init__(self, graphs: _Graphs) -> None:
        self._graphs = graphs
        self.steps = graphs.steps

    def forward(self, weights: Any) -> None:
        """All steps with these weights."""
        for item in dataclasses.fields(weights):
            getattr(self._graphs.weights, item.name).copy_(getattr(weights, item.name))
        self._graphs.forward.replay()

    def backward(self, grad_outputs: Tensor) -> Any:
        """Backward through all steps; returns the gradients."""
        self._graphs.grads.hidden_DSNP.copy_(grad_outputs)
        self._graphs.backward.replay()
        return self._graphs.grads


class _Graphs:
    """The tensors and the two graphs of a shape."""

    def __init__(
        self, steps: type[Any], gradients: type[Any], x_DSNW: Tensor, weights: Any, clips: tuple[float, float]
    ) -> None:
        tensors = {item.name: getattr(weights, item.name).clone() for item in dataclasses.fields(weights)}
        self.weights = type(weights)(**tensors)
        cells, width = self.weights.project_DHP.shape[1:]
        self.steps = steps.empty(x_DSNW, cells, width)
        self.grads = gradients.empty(self.steps)
        self._run: weakref.ref[Run] | None = None
        for name in ("gates_DSNG", "hidden_DSNP", "cells_DSNH"):
            getattr(self.steps, name).zero_()
        self.grads.hidden_DSNP.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP):
                self.steps.forward(self.weights, clips)
                self.steps.backward(self.grads, self.weights, clips)
        torch.cuda.current_stream().wait_stream(stream)
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # this thread alone: others copy batches into pinned memory meanwhile
        with torch.cuda.graph(self.forward, capture_error_mode="thread_local"):
            self.steps.forward(self.weights, clips)
        with torch.cuda.graph(self.backward, capture_error_mode="thread_local"):
            self.steps.backward(self.grads, self.weights, clips)

    def claim(self) -> Run | None:
        if self._run is not None and self._run() is not None:
            return None
        run = Run(self)
        self._run = weakref.ref(run)
        return run
