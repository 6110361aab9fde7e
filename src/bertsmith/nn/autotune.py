"""Measurements at the start of a run: which attention kernel trains fastest here, and whether FP8 beats bfloat16.

T flat tokens, B rows, L tokens in a row, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.nn import attention
from bertsmith.nn.attention import (
    Attention,
    AttentionContext,
    AttentionShape,
    choose_kernel,
    context_for_kernel,
    make_attention_context,
)
from bertsmith.nn.fp8 import enable_fp8, materialize, supports_fp8
from bertsmith.nn.transformer import Block, FeedForward, PreNormBlock
from bertsmith.types import Batch

Times = dict[str, float | None]  # seconds by candidate; None: it does not run here
Clock = Callable[[Callable[[], object]], float]  # the seconds that a call takes
ROUNDS = 3  # interleaved; the minimum counts, because other processes may interfere
FP8_MAX_TIME = 0.97  # FP8 is used below this share of bfloat16's time, because it costs precision


def time_candidates(candidates: Mapping[str, Callable[[], object]], clock: Clock) -> Times:
    """The seconds of each candidate."""
    times: Times = {}
    for name in [*candidates] * ROUNDS:
        if times.get(name, 0.0) is None:
            continue
        try:
            seconds = clock(candidates[name])
            times[name] = min(seconds, times.get(name) or seconds)
        except Exception:  # too little shared memory, a missing instruction: the libraries raise different types
            times[name] = None
    return times


def tune_attention(batch: Batch, shape: AttentionShape, dtype: torch.dtype, *, clock: Clock) -> Times:
    """Times forward and backward of an attention layer, and disables our kernel in this process where it is slower.

    Returns no times where only one kernel is possible.
    """
    device = batch.input_ids.device
    attention.DISABLED_KERNELS.clear()

    def context(requires_grad: bool) -> AttentionContext:
        """Without gradients, the kernel that would be used in place of ours."""
        with torch.set_grad_enabled(requires_grad):
            return make_attention_context(batch, shape, dtype=dtype, training=True)

    ours, other = context(True).kernel, context(False).kernel
    if ours == other:
        return {}
    layer = Attention(width=shape.heads * shape.head_width, heads=shape.heads, dropout=shape.dropout)
    layer = layer.to(device, dtype).train()
    x_TD = torch.randn(batch.input_ids.numel(), layer.output.in_features, device=device, dtype=dtype)

    def forward_backward(requires_grad: bool) -> None:
        layer(x_TD, context(requires_grad))[0].sum().backward()

    times = time_candidates({ours: partial(forward_backward, True), other: partial(forward_backward, False)}, clock)
    our_time, other_time = times[ours], times[other]
    if our_time is None or (other_time is not None and other_time < our_time):
        attention.DISABLED_KERNELS.add(ours)
    return times


def find_fp8_block(model: nn.Module) -> Block | PreNormBlock | None:
    """The first block that supports FP8; None where a model has none."""
    for module in model.modules():
        if isinstance(module, Block | PreNormBlock):
            feed_forward = module.feed_forward
            if isinstance(feed_forward, FeedForward) and supports_fp8(feed_forward):
                return module
    return None


def time_fp8(
    block: Block | PreNormBlock,
    batch_size: int,
    length: int,
    device: torch.device,
    *,
    clock: Clock,
    compiles: bool = True,
) -> Times:
    """Seconds of forward and backward of such a block with random weights, compiled, in bfloat16 and in FP8."""
    feed_forward = block.feed_forward
    assert feed_forward is not None
    width = feed_forward.expand.in_features
    x_TD = torch.randn(batch_size * length, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad_TD = torch.randn_like(x_TD) / len(x_TD)
    context = None if block.attention is None else _dense_context(block.attention, batch_size, length, device)
    candidates = {}
    for precision in ("bf16", "fp8"):
        blocks = nn.ModuleList([_copy_with_random_weights(block, device)]).train()
        if precision == "fp8":
            enable_fp8(blocks)

        def forward(x_TD: Tensor, run: Any = blocks[0]) -> Tensor:
            return materialize(run(x_TD, context)[0])

        run = torch.compile(forward, dynamic=False, fullgraph=True) if compiles else forward

        def forward_backward(run: Callable[[Tensor], Tensor] = run) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                out_TD = run(x_TD)
            out_TD.backward(grad_TD.to(out_TD.dtype))  # type: ignore[no-untyped-call]

        candidates[precision] = forward_backward
    return time_candidates(candidates, clock)


def fp8_is_faster(times: Times) -> bool:
    """Whether FP8 saves enough time to be worth its lower precision."""
    bf16, fp8 = times["bf16"], times["fp8"]
    return fp8 is not None and (bf16 is None or fp8 < FP8_MAX_TIME * bf16)


def _copy_with_random_weights(block: nn.Module, device: torch.device) -> nn.Module:
    """`block` may be on the meta device."""
    made = copy.deepcopy(block).to_empty(device=device)
    for weight in made.parameters():
        nn.init.normal_(weight, std=0.02)
    return made


def _dense_context(attention: Attention, batch_size: int, length: int, device: torch.device) -> AttentionContext:
    """Of rows of one text each, without padding."""
    kernel = choose_kernel(
        device=device.type,
        dtype=torch.bfloat16,
        dense=True,
        head_width=attention.output.in_features // attention.heads,
        dropout=attention.dropout,
        return_attentions=False,
        requires_grad=True,
    )
    document_ids = torch.arange(batch_size, device=device)[:, None].expand(batch_size, length)
    cu_seqlens = torch.arange(0, batch_size * length + 1, length, dtype=torch.int32, device=device)
    return context_for_kernel(document_ids, cu_seqlens, kernel=kernel, max_seqlen=length, causal=False)
