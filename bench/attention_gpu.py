"""Forward and backward of attention over packed texts: our kernels against torch's, and tile sizes of our kernels.

    PYTHONPATH=src python bench/attention_gpu.py [--lengths 512 128] [--dropout 0 0.1] [--heads 12]
        [--tiles | --registers 0 128 96]

65,536 tokens in rows of one length; nine rows in ten hold one text, the others two. `dense cuDNN` ignores the borders
between texts and serves as a reference for speed. Median milliseconds of one layer; `error` is the largest difference
from float32. `--tiles` times our kernels for many tile sizes: queries, keys, warps, stages. `--registers` times the FP8
kernels with their own tiles, as CUDA graphs, with a maximum of registers per thread (0: the compiler's choice).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bertsmith.nn.kernels import attention
from bertsmith.training.roofline import device_seconds, median_seconds

TOKENS, WIDTH, NAMES = 65_536, 64, ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
FORWARD = [*product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))]
BACKWARD = [*product((16, 32, 64), (32, 64, 128), (4, 8), (2, 3, 4))]


class Inputs:
    """Random queries, keys, values and gradients, and texts in rows of one length."""

    def __init__(self, length: int, heads: int) -> None:
        self.rows, self.length, self.heads = TOKENS // length, length, heads
        starts = [start for row in range(self.rows) for start in self._starts(row)] + [TOKENS]
        self.cu_seqlens = torch.tensor(starts, dtype=torch.int32, device="cuda")
        index = torch.arange(TOKENS, dtype=torch.int32, device="cuda")
        text = torch.searchsorted(self.cu_seqlens, index, right=True)
        self.begin, self.end = self.cu_seqlens[text - 1].contiguous(), self.cu_seqlens[text].contiguous()
        document_ids = self.begin.view(self.rows, length)
        self.mask = (document_ids[:, :, None] == document_ids[:, None, :]).unsqueeze(1)
        torch.manual_seed(0)
        self.qkv = torch.randn(TOKENS, 3, heads, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        self.gradient = torch.randn(TOKENS, heads, WIDTH, device="cuda", dtype=torch.bfloat16)

    def _starts(self, row: int) -> list[int]:
        start = row * self.length
        return [start, start + self.length // 3] if row % 10 == 0 else [start]

    def bertsmith(self, dropout: float) -> Tensor:
        return attention.attend(self.qkv, self.begin, self.end, dropout=dropout, causal=False)

    def rowwise(self, dropout: float, mask: Tensor | None, qkv: Tensor | None = None) -> Tensor:
        parts = (self.qkv if qkv is None else qkv).unbind(1)
        q, k, v = (part.view(self.rows, self.length, self.heads, WIDTH).transpose(1, 2) for part in parts)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout).transpose(1, 2).reshape(TOKENS, self.heads, WIDTH)

    def flash(self, dropout: float) -> Tensor:
        q, k, v = self.qkv.unbind(1)
        length = self.length
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, self.cu_seqlens, self.cu_seqlens, length, length, dropout, False, False
        )[0]
        return out

    def forward_backward(self, attend: Callable[[], Tensor]) -> None:
        torch.autograd.grad(attend(), self.qkv, self.gradient)


def milliseconds(run: Callable[[], object]) -> float:
    return 1e3 * median_seconds(run, torch.device("cuda"))


def compare(inputs: Inputs, dropout: float) -> None:
    exact = inputs.qkv.detach().float().requires_grad_()
    expected = inputs.rowwise(0.0, inputs.mask, exact)
    (expected_dqkv,) = torch.autograd.grad(expected, exact, inputs.gradient.float())
    candidates: dict[str, tuple[Callable[[float], Tensor], bool]] = {
        "bertsmith": (inputs.bertsmith, False),
        "flash, varlen": (inputs.flash, False),
        "masked cuDNN": (partial(inputs.rowwise, mask=inputs.mask), True),
        "dense cuDNN": (partial(inputs.rowwise, mask=None), True),
    }
    for name, (attend, cudnn) in candidates.items():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if cudnn else torch.enable_grad():
            time = milliseconds(partial(inputs.forward_backward, partial(attend, dropout)))
            out = attend(0.0)
            (dqkv,) = torch.autograd.grad(out, inputs.qkv, inputs.gradient)
        error = f"error {(out - expected).abs().max():.4f} forward, {(dqkv - expected_dqkv).abs().max():.4f} backward"
        print(f"{inputs.length:5} dropout {dropout:<4} {name:<26} {time:7.3f} ms  {error if name[0] != 'd' else ''}")


def tiles(inputs: Inputs, dropout: float) -> None:
    """The fastest tile sizes."""
    for direction, table, sizes in (
        ("forward", attention.FORWARD_TILES, FORWARD),
        ("forward and backward", attention.BACKWARD_TILES, BACKWARD),
    ):
        original, times = dict(table), {}
        for size in sizes:
            table.update(zip(NAMES, size, strict=True))
            run = partial(inputs.bertsmith, dropout)
            try:
                times[size] = milliseconds(run if direction == "forward" else partial(inputs.forward_backward, run))
            except Exception as error:  # too much shared memory
                print(f"{size}: {type(error).__name__}")
        table.update(original)
        best = sorted(times.items(), key=lambda each: each[1])
        print(
            f"{inputs.length} dropout {dropout}, {direction}: " + ", ".join(f"{size} {ms:.3f}" for size, ms in best[:8])
        )


def registers(inputs: Inputs, dropout: float, limits: list[int]) -> None:
    """Fewer registers per thread let more blocks run at the same time; too few spill to memory."""
    qkv = inputs.qkv.detach()
    args = qkv, inputs.begin, inputs.end, attention.draw_dropout(TOKENS, qkv.device, dropout)
    forward = partial(attention.attention_forward_fp8, *args, dropout, False, 8.0)
    out, lse, *_ = forward()
    backward = partial(attention.attention_backward_fp8, inputs.gradient, *args, out, lse, dropout, False, 16.0)
    for direction, table, run in (
        ("forward", attention.FORWARD_TILES, forward),
        ("backward", attention.BACKWARD_TILES, backward),
    ):
        original, times = dict(table), {}
        for count in limits:
            table.update({"maxnreg": count} if count else {})
            try:
                times[count] = 1e3 * device_seconds(run, qkv.device)
            except Exception as error:  # fewer than the kernel needs
                print(f"{count} registers: {type(error).__name__}")
            table.pop("maxnreg", None)
        rows = ", ".join(f"{count or 'any'} {ms:.3f}" for count, ms in times.items())
        print(f"{inputs.length} dropout {dropout}, {direction} in FP8, {original}: registers {rows}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 128])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--tiles", action="store_true")
    parser.add_argument("--registers", nargs="+", type=int, default=[], metavar="N", help="time these limits instead")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for length in options.lengths:
        inputs = Inputs(length, options.heads)
        for dropout in options.dropout:
            if options.registers:
                registers(inputs, dropout, options.registers)
            else:
                (tiles if options.tiles else compare)(inputs, dropout)


if __name__ == "__main__":
    main()
