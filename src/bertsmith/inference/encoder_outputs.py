"""Vectors of texts and of their tokens, from any layers of an encoder. Knows no tokenizer.

N texts in a batch, L tokens of a text, T flat places, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import ModelInput
from bertsmith.model_io.model import Model
from bertsmith.types import Batch, Encoding

Pooling = Literal["mean", "first", "pooled"]
Combine = Literal["mean", "concat"]


@dataclass(frozen=True)
class Embeddings:
    """One vector for each text."""

    vectors: NDArray[np.float32]  # [texts, D]
    truncated: tuple[int, ...]  # numbers of the texts that were longer than the model takes


@dataclass(frozen=True)
class TokenEmbeddings:
    """One vector for each token of each text, special tokens among them."""

    vectors: list[NDArray[np.float32]]  # of each text [L, D]
    tokens: list[tuple[str, ...]]  # of each text [L]
    truncated: tuple[int, ...]  # numbers of the texts that were longer than the model takes


@dataclass(frozen=True)
class EmbeddingQuery:
    """One vector [D] for each text; several layers are averaged or stand side by side."""

    pooling: Pooling
    layers: tuple[int, ...]
    combine: Combine
    name: ClassVar[str] = "vectors"
    one_per_batch: ClassVar[bool] = False
    objective: ClassVar[str] = ""

    def forward(self, model: Model, batch: Batch, items: Sequence[ModelInput]) -> list[Any]:
        """See `Wish`."""
        found = embed_batch(model.encoder, batch, pooling=self.pooling, layers=self.layers, combine=self.combine)
        values: NDArray[np.float32] = found.cpu().numpy()
        return list(values)


@dataclass(frozen=True)
class TokenEmbeddingQuery:
    """The vectors of all tokens of each text [L, D], as one layer has them."""

    layer: int
    name: ClassVar[str] = "states"
    one_per_batch: ClassVar[bool] = False
    objective: ClassVar[str] = ""

    def forward(self, model: Model, batch: Batch, items: Sequence[ModelInput]) -> list[Any]:
        """See `Wish`."""
        (layer_TD,) = layer_outputs(model.encoder, batch, (self.layer,))
        values: NDArray[np.float32] = layer_TD.float().cpu().numpy()
        parts = np.split(values, np.cumsum([item.tokens for item in items])[:-1])
        return [part.copy() for part in parts]  # a caller that keeps one does not keep all


def embed_batch(encoder: Encoder, batch: Batch, *, pooling: Pooling, layers: Sequence[int], combine: Combine) -> Tensor:
    """One vector for each text of a batch without padding [N, D], float32."""
    if pooling == "pooled":
        pooled: Tensor = encoder(batch, indices={}).pooled.float()  # the last layer at first tokens only
        return pooled
    if pooling == "first" and is_top(encoder, layers):
        encoding: Encoding = encoder(batch, indices={"first": batch.cls_positions}, pool=False)
        each = [encoding.at("first").float()]
    elif pooling == "first":
        each = [layer_TD[batch.cls_positions].float() for layer_TD in layer_outputs(encoder, batch, layers)]
    else:
        each = [_means(layer_TD.float(), batch) for layer_TD in layer_outputs(encoder, batch, layers)]
    if len(each) == 1:
        return each[0]
    return torch.stack(each).mean(0) if combine == "mean" else torch.cat(each, dim=-1)


def is_top(encoder: Encoder, layers: Sequence[int]) -> bool:
    """Whether only the top layer is read."""
    return len(layers) == 1 and layers[0] in (-1, encoder.layers)


def layer_outputs(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """The outputs of these layers at all places [T, D]; lower ones are not kept where nobody asks for them."""
    if is_top(encoder, layers):
        return [encoder(batch, pool=False).last_hidden]
    kept: tuple[Tensor, ...] = encoder(batch, pool=False, return_layers=True).layers
    return [kept[layer] for layer in layers]


def _means(layer_TD: Tensor, batch: Batch) -> Tensor:
    """The mean over the tokens of each text [N, D], texts of equal length at once."""
    runs = (tuple(batch.input_ids.shape),) if batch.dense else batch.equal_length_runs
    assert runs, "texts stand in one line, or fill their rows"
    parts = torch.split(layer_TD, [texts * length for texts, length in runs])
    return torch.cat([part.view(texts, length, -1).mean(1) for part, (texts, length) in zip(parts, runs, strict=True)])


def check_embedding_options(encoder: Encoder, *, pooling: str, layers: Sequence[int], combine: str) -> tuple[int, ...]:
    """The layers; an error where the encoder has no such vectors."""
    if pooling not in ("mean", "first", "pooled"):
        raise BertsmithError(f"pooling {pooling} is not known: mean, first or pooled")
    if combine not in ("mean", "concat"):
        raise BertsmithError(f"combine {combine} is not known: mean or concat")
    if pooling == "pooled" and not encoder.has_pooler:
        raise BertsmithError("this model has no pooler: use pooling mean or first")
    count = encoder.layers + 1
    for layer in layers:
        if not -count <= layer < count:
            raise BertsmithError(f"layer {layer} is not there: 0 (the embeddings) to {count - 1}, or from the end")
    if not layers:
        raise BertsmithError("no layer was chosen: -1 is the last")
    return tuple(layers)


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same directions at length 1."""
    found: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found
