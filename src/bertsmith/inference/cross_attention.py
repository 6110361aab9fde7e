"""The attention of a decoder to its source: which source tokens each token of a translation was computed from.

One text and its translation: T target tokens, S source tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.data.collate import collate
from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import ModelInput, Query
from bertsmith.inference.heat_map import Picture, head_title, heat_map, select_heads
from bertsmith.model_io.model import Model
from bertsmith.types import Row


@dataclass(frozen=True)
class CrossAttention:
    """The attention weights of the decoder's layers and heads over a source text."""

    source_tokens: tuple[str, ...]  # [S] as text, with the end token
    target_tokens: tuple[str, ...]  # [T] as text, with the end token unless the translation was cut off
    weights: NDArray[np.float32]  # [layers, heads, T, S] when each target token was predicted; rows sum to 1

    def select(self, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """The weights [T, S] of one layer and head, counted from 1; None averages over all of them."""
        return select_heads(self.weights, layer, head)

    def to_json(self, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """Plain values, with the weights of `select`."""
        return {
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
            "layer": layer,
            "head": head,
            "weights": self.select(layer, head).tolist(),
        }

    def __repr__(self) -> str:
        layers, heads, target, source = self.weights.shape
        return f"CrossAttention({layers} layers, {heads} heads, {target} target tokens over {source} source tokens)"

    def plot(self, layer: int | None = None, head: int | None = None) -> Picture:
        """A heat map of one layer and head, counted from 1: target tokens by source tokens; None averages over all."""
        title = f"Cross-attention, {head_title(self.weights, layer, head)}; rows: target tokens, columns: source tokens"
        return heat_map(self.select(layer, head), self.target_tokens, self.source_tokens, title=title)

    def _repr_svg_(self) -> str:
        return self.plot().svg


@dataclass(frozen=True)
class CrossAttentionQuery(Query):
    """The weights [layers, heads, T, S] of a source row and a target row."""

    name = "cross attention"
    one_per_batch = True  # the result grows with the product of the lengths
    collates = False
    padding_id: int

    def run(self, model: Model, inputs: Sequence[ModelInput], device: str) -> list[Any]:
        return [self._weights(model, *one.rows, device=device).cpu().numpy() for one in inputs]

    def _weights(self, model: Model, source: Row, target: Row, *, device: str) -> Tensor:
        batches = [collate([row], length=len(row), padding_id=self.padding_id) for row in (source, target)]
        encoding = model.encoder(batches[0].replace(target=batches[1]).to(device), pool=False, return_attentions=True)
        if not encoding.target.attentions:
            raise BertsmithError("this model's decoder returns no attention weights: use one with cross-attention")
        return torch.cat(encoding.target.attentions).float()  # of one row: layers take the place of the batch
