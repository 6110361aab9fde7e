"""Whether eight bits learn faster here: measured once, at the beginning of a run.

A block is timed there and back as a run computes it, compiled. T places, B rows, L places of a row, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.nn.attention import Attention, Sight, look
from bertsmith.nn.float8 import serves
from bertsmith.nn.float8_block import convert
from bertsmith.nn.normed import in_full
from bertsmith.nn.quickest import Clock, Times, seconds_of
from bertsmith.nn.transformer import Block, FeedForward, PreNormBlock

WORTH = 0.97  # of the time in bfloat16, under which eight bits are taken: they cost digits


def block_of(model: nn.Module) -> Block | PreNormBlock | None:
    """The first block that eight bits would serve; None where a model has none."""
    for part in model.modules():
        if isinstance(part, Block | PreNormBlock):
            feeds = part.feed_forward
            if isinstance(feeds, FeedForward) and serves(feeds):
                return part
    return None


def measure(
    block: Block | PreNormBlock,
    rows: int,
    length: int,
    device: torch.device,
    *,
    clock: Clock,
    compiles: bool = True,
) -> Times:
    """Seconds of such a block there and back, with other weights."""
    feeds = block.feed_forward
    assert feeds is not None
    x_TD = torch.randn(rows * length, feeds.expand.in_features, device=device, dtype=torch.bfloat16, requires_grad=True)
    back_TD = torch.randn_like(x_TD) / len(x_TD)
    sight = None if block.attention is None else _sight(block.attention, rows, length, device)
    runs = {}
    for precision in ("bf16", "fp8"):
        blocks = nn.ModuleList([_fresh(block, device)]).train()
        if precision == "fp8":
            convert(blocks)

        def forward(x_TD: Tensor, run: Any = blocks[0]) -> Tensor:
            seen_TD: Tensor = in_full(run(x_TD, sight)[0])
            return seen_TD

        run = torch.compile(forward, dynamic=False, fullgraph=True) if compiles else forward

        def there_and_back(run: Callable[[Tensor], Tensor] = run) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                seen_TD = run(x_TD)
            seen_TD.backward(back_TD.to(seen_TD.dtype))  # type: ignore[no-untyped-call]

        runs[precision] = there_and_back
    return seconds_of(runs, clock)


def _fresh(block: nn.Module, device: torch.device) -> nn.Module:
    """Another one with small random weights, on a device; `block` may have none at all."""
    found = copy.deepcopy(block).to_empty(device=device)
    for weight in found.parameters():
        nn.init.normal_(weight, std=0.02)
    return found


def _sight(attention: Attention, rows: int, length: int, device: torch.device) -> Sight:
    """Rows of one text each."""
    with torch.autocast(device.type, torch.bfloat16):
        return look(
            torch.arange(rows, device=device)[:, None].expand(rows, length),
            torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=device),
            longest=length,
            full=True,
            causal=False,
            dtype=torch.bfloat16,
            head_width=attention.output.in_features // attention.heads,
            dropout=attention.dropout,
        )


def wins(times: Times) -> bool:
    """Whether eight bits are faster by more than they cost."""
    half, eight = times["bf16"], times["fp8"]
    return eight is not None and (half is None or eight < WORTH * half)
