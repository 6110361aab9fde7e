"""LSTMs in NumPy, written from the formulae of Hochreiter and Schmidhuber (1997) with forget gates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]


def weights_of(module: nn.Module) -> dict[str, Array]:
    return {name: value.detach().double().numpy() for name, value in module.state_dict().items()}


def sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


def softmax(x: Array, axis: int = -1) -> Array:
    shifted = np.exp(x - x.max(axis, keepdims=True))
    result: Array = shifted / shifted.sum(axis, keepdims=True)
    return result


def lstm_cell(x: Array, hidden: Array, cell: Array, weights: dict[str, Array], suffix: str = "") -> tuple[Array, Array]:
    """Torch's order of the gates: input, forget, cell, output."""
    gates = x @ weights[f"weight_ih{suffix}"].T + weights[f"bias_ih{suffix}"]
    gates = gates + hidden @ weights[f"weight_hh{suffix}"].T + weights[f"bias_hh{suffix}"]
    enter, forget, new, leave = np.split(gates, 4)
    cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
    return sigmoid(leave) * np.tanh(cell), cell


def lstm(x: Array, weights: dict[str, Array], suffix: str, *, backward: bool) -> tuple[Array, tuple[Array, Array]]:
    """One direction over a text [M, D]: its outputs [M, W] at their tokens, and the state after the token read last."""
    width = weights[f"weight_hh{suffix}"].shape[1]
    hidden, cell, found = np.zeros(width), np.zeros(width), np.zeros((len(x), width))
    for position in range(len(x) - 1, -1, -1) if backward else range(len(x)):
        hidden, cell = lstm_cell(x[position], hidden, cell, weights, suffix)
        found[position] = hidden
    return found, (hidden, cell)
