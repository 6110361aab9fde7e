"""The projected, clipped LSTM: its steps one by one, gradients by differences, lengths, states, repeated backwards."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from bertsmith.nn.projected_lstm import ProjectedLSTM

STEPS, ROWS, WIDTH, CELLS, PROJECTION = 4, 3, 3, 5, 4
CLIPS = [{}, {"cell_clip": 0.5, "projection_clip": 0.2}]


def layer(**clips: float) -> ProjectedLSTM:
    torch.manual_seed(0)
    made = ProjectedLSTM(WIDTH, CELLS, PROJECTION, **clips).double()
    for weight in made.parameters():
        torch.nn.init.uniform_(weight, -1, 1)
    return made


def inputs() -> tuple[Tensor, tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    x = torch.randn(2, STEPS, ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    return x, (torch.rand(2, ROWS, PROJECTION).double() * 0.2, torch.rand(2, ROWS, CELLS).double() * 0.4)


def step_by_step(lstm: ProjectedLSTM, x: Tensor, state: tuple[Tensor, Tensor], **clips: float) -> list[list[Tensor]]:
    """The output of each step of each direction, then the cells, by plain arithmetic."""
    results = []
    for direction in range(2):
        hidden, cell = state[0][direction], state[1][direction]
        outputs = []
        for token in x[direction]:
            sums = token @ lstm.weight_ih[direction] + hidden @ lstm.weight_hh[direction] + lstm.bias[direction]
            i, j, f, o = sums.chunk(4, -1)
            cell = (f + 1).sigmoid() * cell + i.sigmoid() * j.tanh()
            cell = cell.clamp(-clips["cell_clip"], clips["cell_clip"]) if clips else cell
            hidden = (o.sigmoid() * cell.tanh()) @ lstm.projection[direction]
            hidden = hidden.clamp(-clips["projection_clip"], clips["projection_clip"]) if clips else hidden
            outputs += [hidden]
        results.append([*outputs, cell])
    return results


@pytest.mark.parametrize("clips", CLIPS, ids=["free", "clipped"])
def test_steps_and_gradients(clips: dict[str, float]) -> None:
    lstm, (x, state) = layer(**clips), inputs()
    outputs, (hidden, cells) = lstm(x, state)
    for direction, (*expected, cell) in enumerate(step_by_step(lstm, x, state, **clips)):
        assert torch.allclose(outputs[direction], torch.stack(expected), atol=1e-12)
        assert torch.allclose(cells[direction], cell, atol=1e-12)
        assert torch.equal(hidden[direction], outputs[direction, -1])
    assert bool((outputs.abs() == clips["projection_clip"]).any()) if clips else outputs.abs().max() > 0.5
    assert bool((cells.abs() == clips["cell_clip"]).any()) if clips else cells.abs().max() > 0.5
    names = [name for name, _ in lstm.named_parameters()]

    def function(x: Tensor, *weights: Tensor) -> Any:
        return torch.func.functional_call(lstm, dict(zip(names, weights, strict=True)), (x, state))[0]

    assert torch.autograd.gradcheck(function, (x, *lstm.parameters()), fast_mode=True)


def test_lengths_stop_the_state_of_each_sequence() -> None:
    lstm, (x, state) = layer(cell_clip=0.5), inputs()
    lengths = torch.tensor([4, 1, 2])
    whole, (hidden, cells) = lstm(x, state, lengths)
    for row, length in enumerate(lengths.tolist()):
        only = slice(row, row + 1)
        outputs, (own_hidden, own_cells) = lstm(x[:, :length, only], tuple(part[:, only] for part in state))
        assert torch.allclose(whole[:, :length, only], outputs)
        assert torch.allclose(hidden[:, only], own_hidden)
        assert torch.allclose(cells[:, only], own_cells)
    assert not hidden.requires_grad
    assert not cells.requires_grad


def test_windows_with_carried_state_equal_one_sequence() -> None:
    lstm, (x, state) = layer(), inputs()
    whole, after = lstm(x, state)
    first, between = lstm(x[:, :3], state)
    second, last = lstm(x[:, 3:], between)
    assert torch.allclose(torch.cat((first, second), 1), whole)
    assert all(torch.allclose(one, other) for one, other in zip(last, after, strict=True))


def test_two_forwards_before_their_backwards_and_copies() -> None:
    """The steps of a forward are its own, and a layer can be copied and pickled."""
    lstm, (x, state) = layer(), inputs()
    first, second = lstm(x, state)[0].square().sum(), lstm(2 * x, state)[0].square().sum()
    (second + first).backward()
    expected = x.grad.clone()
    x.grad = None
    for scale in (1, 2):
        lstm(scale * x, state)[0].square().sum().backward()
    assert torch.allclose(x.grad, expected)
    for other in (copy.deepcopy(lstm), pickle.loads(pickle.dumps(lstm))):
        assert torch.equal(other(x, state)[0], lstm(x, state)[0])


def test_autocast_computes_in_bfloat16_with_cells_in_float32() -> None:
    lstm, (x, state) = layer().float(), inputs()
    x, state = x.float(), tuple(part.float() for part in state)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, (_, cells) = lstm(x, state)
    assert (outputs.dtype, cells.dtype) == (torch.bfloat16, torch.float32)
    assert (outputs.float() - lstm(x, state)[0]).abs().max() < 0.05
    outputs.float().sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in lstm.parameters())
