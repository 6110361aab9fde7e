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
from bertsmith.nn import rotary_kernels
from bertsmith.nn.dropout import draw
from bertsmith.nn.fused_gelu import room_to_turn
from bertsmith.nn.rotary import RotaryEmbedding

# tiles of queries and keys: the fastest of 7 and 9 on an H200, at 512 and at 128 places, with and without dropout
FORWARD = {"M": 128, "N": 64, "num_warps": 8, "num_stages": 3}
BACKWARD = {"M": 32, "N": 64, "num_warps": 4, "num_stages": 3}
WIDE = {"M": 64, "N": 64, "num_warps": 4, "num_stages": 2}  # forward, for heads over 64: in 100 KiB of shared memory
ROWS = 64  # of a tile of products
# heads at places that are turned at a time, and places where gradients of one head are
TURN, TURN_BACK = {"M": 64, "num_warps": 4}, {"M": 64, "num_warps": 4}


def _numbers_of(qkv: Tensor, dropout: float) -> dict[str, Any]:
    return {"T": qkv.shape[0], "dropped": min(round(dropout * 2**32), 2**32 - 1), "up": 1 / (1 - dropout)}


def _even(places: int, tiles: dict[str, int]) -> bool:
    return places % max(tiles["M"], tiles["N"]) == 0


@triton_op("bertsmith::packed_attention", mutates_args=())
def attend_forth(
    qkv: Tensor, begin: Tensor, end: Tensor, chances: Tensor, dropout: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """What each place sees [T, H, K], and the logarithms of its sums [H, T]."""
    return _go_forth(None, qkv, begin, end, chances, dropout, causal, 1.0)


@triton_op("bertsmith::packed_attention_eight", mutates_args=())
def attend_forth_eight(
    qkv: Tensor, begin: Tensor, end: Tensor, chances: Tensor, dropout: float, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `attend_forth`; and what is seen times the scale in eight bits [T, HK], and that turned [HK, W]."""
    places, _, heads, width = qkv.shape
    small = qkv.new_empty(places, heads * width, dtype=torch.float8_e4m3fn)
    turned = room_to_turn(small)
    return *_go_forth((small, turned), qkv, begin, end, chances, dropout, causal, scale), small, turned


def _go_forth(
    more: tuple[Tensor, Tensor] | None, qkv: Tensor, begin: Tensor, end: Tensor, chances: Tensor, dropout: float,
    causal: bool, eight: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    places, _, heads, width = qkv.shape
    out, lse = qkv.new_empty(places, heads, width), qkv.new_empty(heads, places, dtype=torch.float32)
    tiles = FORWARD if width <= 64 else WIDE
    small, turned = more or (out, out)
    grid = (triton.cdiv(places, tiles["M"]) * heads,)
    wrap_triton(kernels.forward)[grid](
        qkv, begin, end, chances, out, lse, small, turned, W=turned.shape[1], **_numbers_of(qkv, dropout),
        scale=width**-0.5 * kernels.LOG2_E.value, eight=eight,
        H=heads, K=width, CAUSAL=causal, DROPOUT=dropout > 0, EVEN=_even(places, tiles), EIGHT=more is not None,
        **tiles,
    )  # fmt: skip
    return out, lse


@triton_op("bertsmith::packed_attention_backward", mutates_args=())
def attend_back(
    back: Tensor, qkv: Tensor, begin: Tensor, end: Tensor, chances: Tensor, out: Tensor, lse: Tensor,
    dropout: float, causal: bool,
) -> Tensor:  # fmt: skip
    """Gradients [T, 3, H, K]."""
    gradient = torch.empty_like(qkv)
    _go_back_to(gradient, None, back, qkv, begin, end, chances, out, lse, dropout, causal, 1.0)
    return gradient


@triton_op("bertsmith::packed_attention_backward_eight", mutates_args=())
def attend_back_eight(
    back: Tensor, qkv: Tensor, begin: Tensor, end: Tensor, chances: Tensor, out: Tensor, lse: Tensor,
    dropout: float, causal: bool, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients [T, 3HK] times the scale in eight bits, these turned [3HK, W], and their sums over parts of T."""
    places = qkv.shape[0]
    columns = qkv.numel() // places
    gradient = qkv.new_empty(places, columns, dtype=torch.float8_e5m2)
    turned = room_to_turn(gradient)
    sums = lse.new_empty(triton.cdiv(places, BACKWARD["N"]), columns)
    _go_back_to(gradient, (turned, sums), back, qkv, begin, end, chances, out, lse, dropout, causal, scale)
    return gradient, turned, sums


def _go_back_to(
    gradient: Tensor, more: tuple[Tensor, Tensor] | None, back: Tensor, qkv: Tensor, begin: Tensor, end: Tensor,
    chances: Tensor, out: Tensor, lse: Tensor, dropout: float, causal: bool, eight: float,
) -> None:  # fmt: skip
    """Writes the gradient; with `more` in eight bits, turned and summed up too."""
    places, _, heads, width = qkv.shape
    delta = torch.empty_like(lse)
    turned, sums = more or (gradient, delta)
    wrap_triton(kernels.products)[(triton.cdiv(places, ROWS) * heads,)](
        out, back, delta, places, H=heads, K=width, M=ROWS
    )
    grid = (triton.cdiv(places, BACKWARD["N"]) * heads,)
    wrap_triton(kernels.backward)[grid](
        qkv, begin, end, chances, back, lse, delta, gradient, turned, sums, W=turned.shape[1],
        **_numbers_of(qkv, dropout), down=1 - dropout, scale=width**-0.5 * kernels.LOG2_E.value, eight=eight,
        H=heads, K=width, CAUSAL=causal, DROPOUT=dropout > 0,
        EVEN=_even(places, BACKWARD), EIGHT=more is not None, **BACKWARD,
    )  # fmt: skip


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, begin, end, chances, ctx.dropout, ctx.causal = inputs
    ctx.save_for_backward(qkv, begin, end, chances, *output)


def _go_back(ctx: Any, back: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None, None]:
    return attend_back(back.contiguous(), *ctx.saved_tensors, ctx.dropout, ctx.causal), None, None, None, None, None


attend_forth.register_autograd(_go_back, setup_context=_remember)


@triton_op("bertsmith::turn_both", mutates_args=())
def turn_both(qkv: Tensor, cosine: Tensor, sine: Tensor, sign: float = 1.0) -> Tensor:
    """Queries and keys turned by so many times the angles [T, 1, K/2], values as they are [T, 3, H, K]."""
    places, _, heads, width = qkv.shape
    found = torch.empty_like(qkv)
    wrap_triton(rotary_kernels.turn_both)[(triton.cdiv(places * heads, TURN["M"]),)](
        qkv, found, cosine, sine, places * heads, sign=sign, H=heads, K=width, **TURN
    )
    return found


@triton_op("bertsmith::turn_back_eight", mutates_args=())
def turn_back_eight(back: Tensor, cosine: Tensor, sine: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of what `turn_both` gave [T, 3, H, K] as those of what it took; see `attend_back_eight`."""
    places, _, heads, width = back.shape
    small = back.new_empty(places, 3 * heads * width, dtype=torch.float8_e5m2)
    turned, parts = room_to_turn(small), triton.cdiv(places, TURN_BACK["M"])
    sums = back.new_empty(parts, 3 * heads * width, dtype=torch.float32)
    wrap_triton(rotary_kernels.back_eight)[(parts * 3 * heads,)](
        back, cosine, sine, small, turned, sums, T=places, W=turned.shape[1], scale=scale, H=heads, K=width,
        EVEN=places % TURN_BACK["M"] == 0, **TURN_BACK,
    )  # fmt: skip
    return small, turned, sums


def _remember_turns(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cosine, sine, ctx.sign = inputs
    ctx.save_for_backward(cosine, sine)


def _turn_back(ctx: Any, back: Tensor) -> tuple[Tensor, None, None, None]:
    return turn_both(back.contiguous(), *ctx.saved_tensors, -ctx.sign), None, None, None


turn_both.register_autograd(_turn_back, setup_context=_remember_turns)


def draw_chances(places: int, device: torch.device, dropout: float) -> Tensor:
    """What says which pairs of queries and keys are dropped [2, T], from torch's generator; nothing without dropout."""
    if dropout > 0:
        return torch.stack(draw((places, places), device))
    return torch.zeros(1, dtype=torch.int32, device=device)


def attend(
    qkv_T3HK: Tensor,
    begin_T: Tensor,
    end_T: Tensor,
    *,
    dropout: float,
    causal: bool,
    rotary: RotaryEmbedding | None = None,
) -> Tensor:
    """What each place sees of its own text [T, H, K]; dropout is drawn from torch's generator."""
    chances = draw_chances(len(qkv_T3HK), qkv_T3HK.device, dropout)
    qkv_T3HK = qkv_T3HK.contiguous()
    if rotary is not None:
        qkv_T3HK = turn_both(qkv_T3HK, rotary.cos, rotary.sin)
    found: Tensor = attend_forth(qkv_T3HK, begin_T, end_T, chances, dropout, causal)[0]
    return found
