"""LSTM layers with a projection and clipping (Sak et al. 2014; ELMo), several directions at once.

torch's LSTM does not clip. The products of the inputs are computed for all steps at once, and so are the gradients of
the weights; a step is two small products and one kernel for the gates (P-ELMo's code: TensorFlow's LSTMCell with
num_proj, cell_clip and proj_clip; gates in the order input, candidate, forget, output; 1 is added to the forget gate).

D directions, S steps, N sequences, W width of the inputs, H cells, P width of the projection, G = 4 H gates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.nn.captured_steps import CapturedSteps

FORGET_BIAS = 1.0


@dataclass(frozen=True)
class Weights:
    """The recurrent weights of a layer in the type of its products."""

    hidden_DPG: Tensor
    project_DHP: Tensor
    bias_DG: Tensor  # of the sums of products, in the type of the cells


@dataclass(frozen=True)
class Steps:
    """The tensors of all steps; the forward fills them, and the backward overwrites the gates with their gradients."""

    gates_DSNG: Tensor  # first the products of the inputs
    hidden_DSNP: Tensor  # S + 1: the state before, then the output of each step
    cells_DSNH: Tensor  # S + 1, in float32 or wider
    outputs_DSNH: Tensor  # before the projection

    @classmethod
    def empty(cls, x_DSNW: Tensor, cells: int, width: int) -> Steps:
        """Tensors without values for inputs of this shape."""
        d, s, n, _ = x_DSNW.shape
        wide = torch.promote_types(x_DSNW.dtype, torch.float32)
        return cls(
            x_DSNW.new_empty(d, s, n, 4 * cells),
            x_DSNW.new_empty(d, s + 1, n, width),
            x_DSNW.new_empty(d, s + 1, n, cells, dtype=wide),
            x_DSNW.new_empty(d, s, n, cells),
        )

    def start(self, x_DSNW: Tensor, weight_DWG: Tensor, state: tuple[Tensor, Tensor]) -> None:
        """Fills the products of the inputs and the state before the first step."""
        torch.bmm(x_DSNW.flatten(1, 2), weight_DWG, out=self.gates_DSNG.flatten(1, 2))
        self.hidden_DSNP[:, 0] = state[0]
        self.cells_DSNH[:, 0] = state[1]

    def forward(self, weights: Weights, clips: tuple[float, float]) -> None:
        """All steps."""
        for step in range(self.gates_DSNG.shape[1]):
            gates_DNG = self.gates_DSNG[:, step]
            gates_DNG.baddbmm_(self.hidden_DSNP[:, step], weights.hidden_DPG)
            cells = self.cells_DSNH[:, step], self.cells_DSNH[:, step + 1]
            gates_forward(gates_DNG, weights.bias_DG, cells, self.outputs_DSNH[:, step], clips[0])
            torch.bmm(self.outputs_DSNH[:, step], weights.project_DHP, out=self.hidden_DSNP[:, step + 1])
            self.hidden_DSNP[:, step + 1].clamp_(-clips[1], clips[1])

    def backward(self, grads: Gradients, weights: Weights, clips: tuple[float, float]) -> None:
        """All steps from the last to the first, of the gradients of the outputs."""
        hidden_DGP, project_DPH = weights.hidden_DPG.mT, weights.project_DHP.mT
        grads.cells_DNH.zero_()
        for step in reversed(range(self.gates_DSNG.shape[1])):
            grad_DNP = grads.hidden_DSNP[:, step]
            if step + 1 < self.gates_DSNG.shape[1]:
                grad_DNP.baddbmm_(self.gates_DSNG[:, step + 1], hidden_DGP)
            clip_backward(grad_DNP, self.hidden_DSNP[:, step + 1], clips[1])
            torch.bmm(grad_DNP, project_DPH, out=grads.outputs_DNH)
            cells = self.cells_DSNH[:, step], self.cells_DSNH[:, step + 1]
            gates_backward(self.gates_DSNG[:, step], cells, grads.outputs_DNH, grads.cells_DNH, clips[0])


@dataclass(frozen=True)
class Gradients:
    """Gradients of a backward pass, besides those of the gates."""

    hidden_DSNP: Tensor  # first of the outputs, then of the projections before clipping
    outputs_DNH: Tensor  # of one step
    cells_DNH: Tensor  # that flows from step to step

    @classmethod
    def empty(cls, steps: Steps) -> Gradients:
        """Tensors without values."""
        hidden_DSNP, cells_DNH = steps.hidden_DSNP[:, 1:], steps.cells_DSNH[:, 0]
        outputs_DNH = torch.empty_like(steps.outputs_DSNH[:, 0], memory_format=torch.contiguous_format)
        cells_DNH = torch.empty_like(cells_DNH, memory_format=torch.contiguous_format)
        return cls(hidden_DSNP.new_empty(hidden_DSNP.shape), outputs_DNH, cells_DNH)


def gates_forward(
    gates_DNG: Tensor, bias_DG: Tensor, cells: tuple[Tensor, Tensor], outputs_DNH: Tensor, clip: float
) -> None:
    """Activates the gates in place; fills the cells after the step and the outputs before the projection."""
    before_DNH, after_DNH = cells
    if gates_DNG.is_cuda:
        from bertsmith.nn.kernels import lstm  # imports triton

        lstm.gates_forward(gates_DNG, bias_DG, before_DNH, after_DNH, outputs_DNH, clip)
        return
    i, j, f, o = (gates_DNG.to(bias_DG.dtype) + bias_DG[:, None]).chunk(4, -1)
    i, j, f, o = i.sigmoid(), j.tanh(), (f + FORGET_BIAS).sigmoid(), o.sigmoid()
    after_DNH.copy_((f * before_DNH + i * j).clamp(-clip, clip))
    outputs_DNH.copy_(o * after_DNH.tanh())
    gates_DNG.copy_(torch.cat((i, j, f, o), -1))


def gates_backward(
    gates_DNG: Tensor, cells: tuple[Tensor, Tensor], grad_outputs_DNH: Tensor, grad_cells_DNH: Tensor, clip: float
) -> None:
    """Replaces activated gates by their gradients, and the gradient of the cells after a step by that of those before.

    The gradient of a clipped cell is 0.
    """
    before_DNH, after_DNH = cells
    if gates_DNG.is_cuda:
        from bertsmith.nn.kernels import lstm  # imports triton

        lstm.gates_backward(gates_DNG, before_DNH, after_DNH, grad_outputs_DNH, grad_cells_DNH, clip)
        return
    i, j, f, o = gates_DNG.to(after_DNH.dtype).chunk(4, -1)
    tanh = after_DNH.tanh()
    cell = grad_cells_DNH + grad_outputs_DNH * o * (1 - tanh.square())
    cell = cell.where(after_DNH.abs() < clip, 0)
    parts = cell * j * i * (1 - i), cell * i * (1 - j.square()), cell * before_DNH * f * (1 - f)
    grad_cells_DNH.copy_(cell * f)
    gates_DNG.copy_(torch.cat((*parts, grad_outputs_DNH * tanh * o * (1 - o)), -1))


def clip_backward(grad_DNP: Tensor, values_DNP: Tensor, clip: float) -> None:
    """Sets the gradient of clipped values to 0, in place."""
    if grad_DNP.is_cuda:
        from bertsmith.nn.kernels import lstm  # imports triton

        lstm.clip_backward(grad_DNP, values_DNP, clip)
        return
    grad_DNP.masked_fill_(values_DNP.abs() >= clip, 0)


class _ProjectedLSTM(torch.autograd.Function):
    """Outputs [D, S, N, P] and, without gradients, the state after all steps, or after `lengths` [N] of them."""

    @staticmethod
    def forward(
        ctx: Any,
        x_DSNW: Tensor,
        hidden_DNP: Tensor,
        cells_DNH: Tensor,
        weight_DWG: Tensor,
        recurrent_DPG: Tensor,
        bias_DG: Tensor,
        project_DHP: Tensor,
        lengths_N: Tensor | None,
        clips: tuple[float, float],
        captured: CapturedSteps | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        dtype, wide = x_DSNW.dtype, torch.promote_types(x_DSNW.dtype, torch.float32)
        weights = Weights(recurrent_DPG.to(dtype), project_DHP.to(dtype), bias_DG.to(wide))
        inputs_DWG = weight_DWG.to(dtype)
        run = None if captured is None else captured.claim(x_DSNW, weights, clips)
        steps = run.steps if run else Steps.empty(x_DSNW, cells_DNH.shape[-1], hidden_DNP.shape[-1])
        steps.start(x_DSNW, inputs_DWG, (hidden_DNP, cells_DNH))
        if run:
            run.forward(weights)
        else:
            steps.forward(weights, clips)
        own = [] if run else [getattr(part, item.name) for part in (steps, weights) for item in fields(part)]
        ctx.save_for_backward(x_DSNW, inputs_DWG, *own)
        ctx.clips, ctx.run, ctx.captured, ctx.wide = clips, run, run is not None, wide
        ctx.dtypes = weight_DWG.dtype, recurrent_DPG.dtype, bias_DG.dtype, project_DHP.dtype
        last: Any = -1 if lengths_N is None else (lengths_N, torch.arange(len(lengths_N), device=x_DSNW.device))
        index = (slice(None), last) if lengths_N is None else (slice(None), *last)
        after = steps.hidden_DSNP[index].clone(), steps.cells_DSNH[index].clone()
        ctx.mark_non_differentiable(*after)
        return steps.hidden_DSNP[:, 1:].clone(memory_format=torch.contiguous_format), *after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x_DSNW, weight_DWG, *own = ctx.saved_tensors
        if ctx.captured:
            if ctx.run is None:  # the gates were overwritten by their gradients
                raise RuntimeError("the tensors of CUDA graphs serve one backward: call backward only once")
            steps, grads = ctx.run.steps, ctx.run.backward(gradients[0])
        else:
            gates_DSNG, *rest = own[: len(fields(Steps))]
            steps, weights = Steps(gates_DSNG.clone(), *rest), Weights(*own[len(fields(Steps)) :])
            grads = Gradients.empty(steps)
            grads.hidden_DSNP.copy_(gradients[0])
            steps.backward(grads, weights, ctx.clips)
        gates_DTG, hidden_DTP = steps.gates_DSNG.flatten(1, 2), grads.hidden_DSNP.flatten(1, 2)
        x_DTW, before_DTP = x_DSNW.flatten(1, 2), steps.hidden_DSNP[:, :-1].flatten(1, 2)
        dtypes = ctx.dtypes
        results = (
            torch.bmm(gates_DTG, weight_DWG.mT).view_as(x_DSNW) if ctx.needs_input_grad[0] else None,
            None,
            None,
            torch.bmm(x_DTW.mT, gates_DTG).to(dtypes[0]),
            torch.bmm(before_DTP.mT, gates_DTG).to(dtypes[1]),
            gates_DTG.sum(1, dtype=ctx.wide).to(dtypes[2]),
            torch.bmm(steps.outputs_DSNH.flatten(1, 2).mT, hidden_DTP).to(dtypes[3]),
        )
        ctx.run = None
        return *results, None, None, None


class ProjectedLSTM(nn.Module):
    """One layer of an LSTM per direction; the directions have weights of their own."""

    def __init__(
        self,
        width: int,
        cells: int,
        projection: int,
        *,
        directions: int = 2,
        cell_clip: float = 0.0,
        projection_clip: float = 0.0,
    ) -> None:
        """`cell_clip`, `projection_clip`: absolute limits of cells and of projections; 0: none."""
        super().__init__()
        self.cells, self.width, self.directions = cells, projection, directions
        self.clips = cell_clip or math.inf, projection_clip or math.inf
        self.weight_ih = nn.Parameter(torch.empty(directions, width, 4 * cells))
        self.weight_hh = nn.Parameter(torch.empty(directions, projection, 4 * cells))
        self.bias = nn.Parameter(torch.empty(directions, 4 * cells))
        self.projection = nn.Parameter(torch.empty(directions, cells, projection))
        self.captured: CapturedSteps | None = CapturedSteps(Steps, Gradients)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Glorot's uniform distribution over inputs and state together; biases 0."""
        width, gates = self.weight_ih.shape[1:]
        limit = math.sqrt(6 / (width + self.width + gates))
        nn.init.uniform_(self.weight_ih, -limit, limit)
        nn.init.uniform_(self.weight_hh, -limit, limit)
        limit = math.sqrt(6 / (self.cells + self.width))
        nn.init.uniform_(self.projection, -limit, limit)
        nn.init.zeros_(self.bias)

    def forward(
        self, x_DSNW: Tensor, state: tuple[Tensor, Tensor] | None = None, lengths_N: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The outputs [D, S, N, P], and the state after each sequence: hidden [D, N, P], cells [D, N, H].

        `lengths_N`: the steps of each sequence, where they differ. Gradients do not flow through the states.
        """
        device = x_DSNW.device.type
        if torch.is_autocast_enabled(device):
            x_DSNW = x_DSNW.to(torch.get_autocast_dtype(device))
        d, _, n, _ = x_DSNW.shape
        if state is None:
            state = x_DSNW.new_zeros(d, n, self.width), x_DSNW.new_zeros(d, n, self.cells)
        weights = self.weight_ih, self.weight_hh, self.bias, self.projection
        captured = self.captured if x_DSNW.is_cuda and torch.is_grad_enabled() and self.training else None
        with torch.autocast(device, enabled=False):
            outputs, hidden, cells = _ProjectedLSTM.apply(  # type: ignore[no-untyped-call]
                x_DSNW.contiguous(), *state, *weights, lengths_N, self.clips, captured
            )
        return outputs, (hidden, cells)
