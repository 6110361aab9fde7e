"""One vector for each text, from any layers of an encoder. Knows no tokenizer.

B texts in a batch, L places, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError
from bertsmith.types import Batch

BATCH_TOKENS = 4096  # places in one forward: enough to keep a core busy, little enough for any memory

Pooling = Literal["mean", "first", "pooled"]
Combine = Literal["mean", "concat"]


@dataclass(frozen=True)
class Embedded:
    """One vector for each text."""

    vectors: NDArray[np.float32]  # [texts, D]
    cut: tuple[int, ...]  # numbers of the texts that were longer than the model takes


def vectors(encoder: Encoder, batch: Batch, *, pooling: Pooling, layers: Sequence[int], combine: Combine) -> Tensor:
    """One vector for each text of a batch whose rows hold one each [B, D]."""
    encoding = encoder(batch, pool=pooling == "pooled", keep_layers=True)
    if pooling == "pooled":
        assert encoding.pooled is not None
        pooled: Tensor = encoding.pooled.float()
        return pooled
    chosen = torch.stack([encoding.layers[layer] for layer in layers]).float().view(len(layers), *batch.ids.shape, -1)
    if pooling == "first":
        each = chosen[:, :, 0]
    else:
        real = (batch.document > 0).float()
        each = (chosen * real[None, :, :, None]).sum(2) / real.sum(1)[None, :, None]
    return each.mean(0) if combine == "mean" else torch.cat(list(each), dim=-1)


def checked(encoder: Encoder, *, pooling: str, layers: Sequence[int], combine: str) -> list[int]:
    """The layers; an error where the encoder has no such vectors."""
    if pooling not in ("mean", "first", "pooled"):
        raise BertsmithError(f"pooling {pooling} is not known: mean, first or pooled")
    if combine not in ("mean", "concat"):
        raise BertsmithError(f"combine {combine} is not known: mean or concat")
    if pooling == "pooled" and not encoder.pools:
        raise BertsmithError("this model has no pooler: use pooling mean or first")
    count = len(encoder.depths()) - encoder.pools
    for layer in layers:
        if not -count <= layer < count:
            raise BertsmithError(f"layer {layer} is not there: 0 (the embeddings) to {count - 1}, or from the end")
    if not layers:
        raise BertsmithError("no layer was chosen: -1 is the last")
    return list(layers)


def similar_lengths(lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Numbers of texts, longest first, in groups of at most `BATCH_TOKENS` places once padded."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    groups, start = [], 0
    while start < len(order):
        count = max(BATCH_TOKENS // lengths[order[start]], 1)
        groups.append(order[start : start + count])
        start += count
    return groups
