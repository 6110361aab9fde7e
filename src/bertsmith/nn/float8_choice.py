"""Whether eight bits learn faster here: measured once, at the beginning of a run.

What gains is a block's feed-forward half: it is timed there and back as a run computes it, with its norm, compiled.
T places, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bertsmith.nn.float8 import convert, serves
from bertsmith.nn.style import Style
from bertsmith.nn.transformer import Block, FeedForward

Times = dict[str, float | None]  # by precision; None where it does not run
WORTH = 0.97  # of the time in bfloat16, under which eight bits are taken: they cost digits


def shape_of(model: nn.Module) -> tuple[int, int] | None:
    """Width and inner width of the halves that eight bits would serve; None where a model has none."""
    for part in model.modules():
        if isinstance(part, FeedForward) and serves(part):
            return part.expand.in_features, part.expand.out_features
    return None


def measure(
    places: int,
    shape: tuple[int, int],
    device: torch.device,
    *,
    clock: Callable[[Callable[[], object]], float],
    compiles: bool = True,
) -> Times:
    """Seconds of a feed-forward half there and back; `clock` tells the seconds that something takes."""
    width, inner = shape
    x_TD = torch.randn(places, width, device=device, dtype=torch.bfloat16, requires_grad=True)
    back_TD = torch.randn_like(x_TD) / places
    found: Times = {}
    runs = {}
    for precision in ("bf16", "fp8"):
        feeds = FeedForward(width=width, inner=inner, style=Style())
        half = Block(attention=None, feed_forward=feeds, width=width, style=Style(), dropout=0.0).to(device).train()
        if precision == "fp8":
            convert(half)
        run = torch.compile(half, dynamic=False, fullgraph=True) if compiles else half

        def there_and_back(run: Any = run) -> None:
            with torch.autocast(device.type, torch.bfloat16):
                seen_TD: Tensor = run(x_TD, None)[0]
            seen_TD.backward(back_TD)  # type: ignore[no-untyped-call]

        runs[precision] = there_and_back
    for precision, there_and_back in (*runs.items(), *runs.items()):  # in turn: another process may be in the way
        try:
            seconds = clock(there_and_back)
            found[precision] = min(seconds, found.get(precision) or seconds)
        except Exception:  # no such instruction, no room: torch, triton and CUDA each have their own
            found[precision] = None
    return found


def wins(times: Times) -> bool:
    """Whether eight bits are faster by more than they cost."""
    half, eight = times["bf16"], times["fp8"]
    return eight is not None and (half is None or eight < WORTH * half)
