"""Which attention kernel learns fastest here: measured once, at the beginning of a run.

Our own one is the fastest of those measured so far; another device may find it slower, or have no room for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from bertsmith.nn import attention
from bertsmith.nn.attention import Attention, Kernel, choose_kernel, see
from bertsmith.nn.quickest import Clock, Times, seconds_of
from bertsmith.types import Batch


@dataclass(frozen=True)
class Shape:
    """What an encoder's attention is like."""

    heads: int
    head_width: int
    dropout: float
    causal: bool


def settle(batch: Batch, shape: Shape, dtype: torch.dtype, *, clock: Clock) -> Times:
    """Has runs of this process avoid our kernel where it is not the fastest; seconds of a layer there and back.

    Empty where there is nothing to choose.
    """
    how = {"device": batch.input_ids.device.type, "dtype": dtype, "full": batch.dense, "head_width": shape.head_width}
    attention.AVOIDED.clear()
    usual, other = (
        choose_kernel(**how, dropout=shape.dropout, explicit=False, runs=bool(batch.equal_length_runs), learns=learns)  # type: ignore[arg-type]
        for learns in (True, False)
    )
    if usual == other:
        return {}
    layer = Attention(width=shape.heads * shape.head_width, heads=shape.heads, dropout=shape.dropout)
    layer = layer.to(batch.input_ids.device, dtype).train()
    x_TD = torch.randn(batch.input_ids.numel(), layer.output.in_features, device=batch.input_ids.device, dtype=dtype)

    def there_and_back(kernel: Kernel) -> None:
        sight = see(
            batch.document_ids,
            batch.cu_seqlens,
            kernel=kernel,
            longest=batch.max_seqlen,
            causal=shape.causal,
            runs=batch.equal_length_runs,
        )
        layer(x_TD, sight)[0].sum().backward()

    found = seconds_of({kernel: partial(there_and_back, kernel) for kernel in (usual, other)}, clock)
    ours, theirs = found[usual], found[other]
    if ours is None or (theirs is not None and theirs < ours):
        attention.AVOIDED.add(usual)
    return found
