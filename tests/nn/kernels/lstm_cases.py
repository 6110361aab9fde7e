"""Errors of the LSTM kernels, run on the CPU with triton's interpreter, in the order in which a step calls them."""

from __future__ import annotations

from typing import Any

import torch

from bertsmith.nn import projected_lstm
from bertsmith.nn.kernels import lstm
from bertsmith.nn.projected_lstm import Gradients, Steps, Weights

SHAPES = {"several blocks": (3, 5, 8), "less than a block": (2, 1, 3)}  # steps, rows, cells
CLIPS = {"": (float("inf"), float("inf")), ", clipped": (0.3, 0.2)}
WIDTH = 4


def errors(steps: int, rows: int, cells: int, clips: tuple[float, float]) -> dict[str, float]:
    """Of the outputs, the state, and the gradients of the gates."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, steps, rows, WIDTH, generator=draw)
    grads = torch.randn(2, steps, rows, WIDTH, generator=draw)
    sizes = {"hidden_DPG": (2, WIDTH, 4 * cells), "project_DHP": (2, cells, WIDTH), "bias_DG": (2, 4 * cells)}
    weights = Weights(**{name: torch.randn(shape, generator=draw) for name, shape in sizes.items()})
    inputs = torch.randn(2, WIDTH, 4 * cells, generator=draw)
    start = torch.randn(2, rows, WIDTH, generator=draw), torch.randn(2, rows, cells, generator=draw)
    results: list[list[torch.Tensor]] = []
    for kernels in (lstm, None):
        run = Steps.empty(x, cells, WIDTH)
        run.start(x, inputs, start)
        with _Kernels(kernels):
            run.forward(weights, clips)
            outputs = [run.hidden_DSNP.clone(), run.cells_DSNH.clone(), run.outputs_DSNH.clone()]
            gradients = Gradients.empty(run)
            gradients.hidden_DSNP.copy_(grads)
            run.backward(gradients, weights, clips)
        results.append([*outputs, run.gates_DSNG, gradients.hidden_DSNP, gradients.cells_DNH])
    differences = [(one - other).abs().max().item() for one, other in zip(*results, strict=True)]
    clipped = float((results[0][0][:, 1:].abs() >= clips[1]).float().mean())
    return {"forward": max(differences[:3]), "backward": max(differences[3:]), "clipped": clipped}


class _Kernels:
    """Replaces torch's arithmetic of a step by the kernels, as on CUDA."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels

    def __enter__(self) -> None:
        self.before = {name: getattr(projected_lstm, name) for name in self._replacements()}
        for name, value in self._replacements().items():
            setattr(projected_lstm, name, value)

    def __exit__(self, *exception: object) -> None:
        for name, value in self.before.items():
            setattr(projected_lstm, name, value)

    def _replacements(self) -> dict[str, Any]:
        if self.kernels is None:
            return {}

        def forward(gates: Any, bias: Any, cells: Any, outputs: Any, clip: float) -> None:
            self.kernels.gates_forward(gates, bias, *cells, outputs, clip)

        def backward(gates: Any, cells: Any, grad_outputs: Any, grad_cells: Any, clip: float) -> None:
            self.kernels.gates_backward(gates, *cells, grad_outputs, grad_cells, clip)

        return {"gates_forward": forward, "gates_backward": backward, "clip_backward": self.kernels.clip_backward}


def all_errors() -> dict[str, dict[str, float]]:
    lstm.BLOCK = 16
    return {f"{shape}{how}": errors(*SHAPES[shape], clips) for shape in SHAPES for how, clips in CLIPS.items()}
