"""The gates of an LSTM step with clipping, forward and backward: Triton kernels and the functions that call them.

D directions, N sequences, H cells, P width of the projection; gates are input, candidate, forget and output
[D, N, 4 H]. Tensors are views of the steps of a sequence: rows are contiguous, directions `*_stride` elements apart.
"""

import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 1024, 4
LARGEST = 3.0e38  # instead of infinity: no limit


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def gates_forward_kernel(
    gates, bias, before, after, outputs, gates_stride, before_stride, after_stride, outputs_stride, size, clip,
    H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    direction = tl.program_id(1).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, cell = offsets < size, offsets % H
    gate = gates + direction * gates_stride + (offsets // H).to(tl.int64) * (4 * H) + cell
    shift = bias + direction * (4 * H) + cell
    i = tl.sigmoid(tl.load(gate, mask=mask, other=0.0).to(tl.float32) + tl.load(shift))
    j = _tanh(tl.load(gate + H, mask=mask, other=0.0).to(tl.float32) + tl.load(shift + H))
    f = tl.sigmoid(tl.load(gate + 2 * H, mask=mask, other=0.0).to(tl.float32) + tl.load(shift + 2 * H) + 1.0)
    o = tl.sigmoid(tl.load(gate + 3 * H, mask=mask, other=0.0).to(tl.float32) + tl.load(shift + 3 * H))
    c = f * tl.load(before + direction * before_stride + offsets, mask=mask, other=0.0) + i * j
    c = tl.minimum(tl.maximum(c, -clip), clip)
    tl.store(after + direction * after_stride + offsets, c, mask=mask)
    output = outputs + direction * outputs_stride + offsets
    kind = gates.dtype.element_ty
    tl.store(output, (o * _tanh(c)).to(kind), mask=mask)
    tl.store(gate, i.to(kind), mask=mask)
    tl.store(gate + H, j.to(kind), mask=mask)
    tl.store(gate + 2 * H, f.to(kind), mask=mask)
    tl.store(gate + 3 * H, o.to(kind), mask=mask)


@triton.jit
def gates_backward_kernel(
    gates, before, after, grad_outputs, grad_cells, gates_stride, before_stride, after_stride, outputs_stride,
    cells_stride, size, clip, H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    direction = tl.program_id(1).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, cell = offsets < size, offsets % H
    gate = gates + direction * gates_stride + (offsets // H).to(tl.int64) * (4 * H) + cell
    i = tl.load(gate, mask=mask, other=0.0).to(tl.float32)
    j = tl.load(gate + H, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(gate + 2 * H, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(gate + 3 * H, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(after + direction * after_stride + offsets, mask=mask, other=0.0)
    c_before = tl.load(before + direction * before_stride + offsets, mask=mask, other=0.0)
    dm = tl.load(grad_outputs + direction * outputs_stride + offsets, mask=mask, other=0.0).to(tl.float32)
    flowing = grad_cells + direction * cells_stride + offsets
    t = _tanh(c)
    dc = tl.load(flowing, mask=mask, other=0.0) + dm * o * (1 - t * t)
    dc = tl.where(tl.abs(c) < clip, dc, 0.0)
    kind = gates.dtype.element_ty
    tl.store(flowing, dc * f, mask=mask)
    tl.store(gate, (dc * j * i * (1 - i)).to(kind), mask=mask)
    tl.store(gate + H, (dc * i * (1 - j * j)).to(kind), mask=mask)
    tl.store(gate + 2 * H, (dc * c_before * f * (1 - f)).to(kind), mask=mask)
    tl.store(gate + 3 * H, (dm * t * o * (1 - o)).to(kind), mask=mask)


@triton.jit
def clip_backward_kernel(grad, values, grad_stride, values_stride, size, clip, BLOCK: tl.constexpr):
    direction = tl.program_id(1).to(tl.int64)
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    value = tl.load(values + direction * values_stride + offsets, mask=mask, other=0.0).to(tl.float32)
    target = grad + direction * grad_stride + offsets
    tl.store(target, tl.where(tl.abs(value) < clip, tl.load(target, mask=mask, other=0.0), 0.0), mask=mask)


def gates_forward(gates: Tensor, bias: Tensor, before: Tensor, after: Tensor, outputs: Tensor, clip: float) -> None:
    """Activates the gates in place, and fills the cells `after` the step and the `outputs` before the projection."""
    directions, rows, cells = outputs.shape
    strides = gates.stride(0), before.stride(0), after.stride(0), outputs.stride(0)
    gates_forward_kernel[_grid(rows * cells, directions)](
        gates, bias, before, after, outputs, *strides, rows * cells, min(clip, LARGEST), H=cells, BLOCK=BLOCK,
        num_warps=WARPS,
    )  # fmt: skip


def gates_backward(
    gates: Tensor, before: Tensor, after: Tensor, grad_outputs: Tensor, grad_cells: Tensor, clip: float
) -> None:
    """Replaces activated gates by their gradients, and `grad_cells` after the step by those before it."""
    directions, rows, cells = grad_outputs.shape
    strides = (each.stride(0) for each in (gates, before, after, grad_outputs, grad_cells))
    gates_backward_kernel[_grid(rows * cells, directions)](
        gates, before, after, grad_outputs, grad_cells, *strides, rows * cells, min(clip, LARGEST), H=cells,
        BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip


def clip_backward(grad: Tensor, values: Tensor, clip: float) -> None:
    """Sets the gradient of clipped values to 0, in place."""
    directions, rows, width = grad.shape
    size = rows * width
    clip_backward_kernel[_grid(size, directions)](
        grad, values, grad.stride(0), values.stride(0), size, min(clip, LARGEST), BLOCK=BLOCK, num_warps=WARPS
    )


def _grid(size: int, directions: int) -> tuple[int, int]:
    return triton.cdiv(size, BLOCK), directions
