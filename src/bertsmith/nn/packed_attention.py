"""Attention over packed texts for CUDA, as operations that torch can differentiate and compile.

T flat places, H heads, K head width. See `attention_kernels`, which needs triton, as only torch for CUDA brings it.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.library import triton_op, wrap_triton

from bertsmith.nn import attention_kernels as kernels

# tiles of queries and keys: the fastest of 7 and 9 on an H200, at 512 and at 128 places, with and without dropout
FORWARD = {"M": 128, "N": 64, "num_warps": 8, "num_stages": 3}
BACKWARD = {"M": 32, "N": 64, "num_warps": 4, "num_stages": 3}
WIDE = {"M": 64, "N": 64, "num_warps": 4, "num_stages": 2}  # forward, for heads over 64: in 100 KiB of shared memory
ROWS = 64  # of a tile of products


def _numbers_of(qkv: Tensor, dropout: float) -> dict[str, Any]:
    return {"T": qkv.shape[0], "dropped": min(round(dropout * 2**32), 2**32 - 1), "up": 1 / (1 - dropout)}


def _even(places: int, tiles: dict[str, int]) -> bool:
    return places % max(tiles["M"], tiles["N"]) == 0


@triton_op("bertsmith::packed_attention", mutates_args=())
def _attend(
    qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, dropout: float, causal: bool
) -> tuple[Tensor, Tensor]:
    places, _, heads, width = qkv.shape
    out, lse = qkv.new_empty(places, heads, width), qkv.new_empty(heads, places, dtype=torch.float32)
    tiles = FORWARD if width <= 64 else WIDE
    grid = (triton.cdiv(places, tiles["M"]) * heads,)
    wrap_triton(kernels.forward)[grid](
        qkv, begin, end, seed, out, lse, **_numbers_of(qkv, dropout), scale=width**-0.5 * kernels.LOG2_E.value,
        H=heads, K=width, CAUSAL=causal, DROPOUT=dropout > 0, EVEN=_even(places, tiles), **tiles,
    )  # fmt: skip
    return out, lse


@triton_op("bertsmith::packed_attention_backward", mutates_args=())
def _attend_back(
    back: Tensor, qkv: Tensor, begin: Tensor, end: Tensor, seed: Tensor, out: Tensor, lse: Tensor,
    dropout: float, causal: bool,
) -> Tensor:  # fmt: skip
    places, _, heads, width = qkv.shape
    gradient, delta = torch.empty_like(qkv), torch.empty_like(lse)
    wrap_triton(kernels.products)[(triton.cdiv(places, ROWS) * heads,)](
        out, back, delta, places, H=heads, K=width, M=ROWS
    )
    grid = (triton.cdiv(places, BACKWARD["N"]) * heads,)
    wrap_triton(kernels.backward)[grid](
        qkv, begin, end, seed, back, lse, delta, gradient, **_numbers_of(qkv, dropout), down=1 - dropout,
        scale=width**-0.5 * kernels.LOG2_E.value, H=heads, K=width, CAUSAL=causal, DROPOUT=dropout > 0,
        EVEN=_even(places, BACKWARD), **BACKWARD,
    )  # fmt: skip
    return gradient


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, begin, end, seed, ctx.dropout, ctx.causal = inputs
    ctx.save_for_backward(qkv, begin, end, seed, *output)


def _go_back(ctx: Any, back: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    return _attend_back(back.contiguous(), *ctx.saved_tensors, ctx.dropout, ctx.causal), None, None, None, None, None


_attend.register_autograd(_go_back, setup_context=_remember)


def attend(qkv_T3HK: Tensor, begin_T: Tensor, end_T: Tensor, *, dropout: float, causal: bool) -> Tensor:
    """What each place sees of its own text [T, H, K]; dropout is drawn from torch's generator."""
    seed = torch.zeros(1, dtype=torch.int32, device=qkv_T3HK.device)
    if dropout > 0:
        seed = torch.randint(0, 2**31 - 1, (1,), dtype=torch.int32, device=qkv_T3HK.device)
    found: Tensor = _attend(qkv_T3HK.contiguous(), begin_T, end_T, seed, dropout, causal)[0]
    return found
