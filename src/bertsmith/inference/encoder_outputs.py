"""Queries on the encoder: one vector per text, one vector per token, attention weights.

N texts in a batch, L tokens of a text, T flat tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.encoders.encoder import Encoder
from bertsmith.errors import BertsmithError
from bertsmith.inference.forward import ModelInput, Query
from bertsmith.inference.heat_map import Picture, head_title, heat_map, select_heads, small_heat_maps
from bertsmith.model_io.model import Model
from bertsmith.types import Batch, Encoding

Pooling = Literal["mean", "first", "max", "mean_sqrt_len", "pooled"]
POOLINGS: tuple[str, ...] = get_args(Pooling)
Combine = Literal["mean", "concat"]


class EmbeddingOptions(TypedDict, total=False):
    """The options of `Predictor.embed`."""

    pooling: Pooling | None
    layers: Sequence[int]
    combine: Combine
    normalize: bool | None
    prompt: str | None


@dataclass(frozen=True)
class Embeddings:
    """One vector for each text."""

    vectors: NDArray[np.float32]  # [texts, D]
    truncated: tuple[int, ...]  # indices of the texts that were longer than the maximum length of embeddings


@dataclass(frozen=True)
class TokenEmbeddings:
    """One vector for each token of each text, special tokens included."""

    vectors: list[NDArray[np.float32]]  # of each text [L, D]
    tokens: list[tuple[str, ...]]  # of each text [L]
    truncated: tuple[int, ...]  # indices of the texts that were longer than the model's maximum length


@dataclass(frozen=True)
class Attention:
    """Attention weights of a model over one text or pair, special tokens included."""

    tokens: tuple[str, ...]  # [L]
    offsets: NDArray[np.int32]  # [L, 2] characters of the text in `sequence_ids`; (0, 0) for special tokens
    sequence_ids: NDArray[np.int8]  # [L] 0 first text, 1 second text, -1 special token
    weights: NDArray[np.float32]  # [layers, heads, L, L], query tokens by key tokens; rows sum to 1
    truncated: bool  # the text was longer than the model's maximum length

    def select(self, layer: int | None = None, head: int | None = None) -> NDArray[np.float32]:
        """The weights [L, L] of one layer and head, counted from 1; None averages over all of them."""
        return select_heads(self.weights, layer, head)

    def to_json(self, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """Plain values, with the weights of `select`."""
        return {
            "tokens": list(self.tokens),
            "offsets": self.offsets.tolist(),
            "layer": layer,
            "head": head,
            "weights": self.select(layer, head).tolist(),
            "truncated": self.truncated,
        }

    def __repr__(self) -> str:
        layers, heads, length, _ = self.weights.shape
        return f"Attention({layers} layers, {heads} heads, {length} tokens: {' '.join(self.tokens):.60})"

    def plot(self, layer: int | None = None, head: int | None = None) -> Picture:
        """A heat map of one layer and head, counted from 1; None averages over all of them."""
        title = f"Attention, {head_title(self.weights, layer, head)}; rows: query tokens, columns: key tokens"
        return heat_map(self.select(layer, head), self.tokens, self.tokens, title=title)

    def plot_heads(self) -> Picture:
        """Small heat maps of all layers and heads, without the tokens."""
        return small_heat_maps(self.weights, title="Attention of each head; rows: query tokens, columns: key tokens")

    def _repr_svg_(self) -> str:
        return self.plot().svg


@dataclass(frozen=True)
class EmbeddingQuery(Query):
    """One vector [D] for each text; several layers are averaged or concatenated."""

    name = "embeddings"
    pooling: Pooling
    layers: tuple[int, ...]
    combine: Combine

    def forward(self, model: Model, batch: Batch) -> Tensor:
        layers_ND = _pool(model.encoder, batch, pooling=self.pooling, layers=self.layers)
        return torch.cat(layers_ND, dim=-1) if self.combine == "concat" else torch.stack(layers_ND).mean(0)


@dataclass(frozen=True)
class TokenEmbeddingQuery(Query):
    """The outputs of one layer for all tokens of each text [L, D]."""

    name = "token embeddings"
    layer: int

    def forward(self, model: Model, batch: Batch) -> Tensor:
        (layer_TD,) = _layer_outputs(model.encoder, batch, (self.layer,))
        return layer_TD

    def split(self, values: NDArray[np.float32], inputs: Sequence[ModelInput]) -> list[Any]:
        texts = np.split(values, np.cumsum([one.tokens for one in inputs]))[:-1]
        return [text.copy() for text in texts]  # a view would keep the whole batch in memory


NO_ATTENTION = "this model has no attention between the tokens of a text: use a Transformer"


@dataclass(frozen=True)
class AttentionQuery(Query):
    """The attention weights of one row in all layers and heads [layers, heads, L, L]."""

    name = "attention"
    one_per_batch = True  # the result grows with the square of the length

    def forward(self, model: Model, batch: Batch) -> Tensor:
        encoding = model.encoder(batch, pool=False, return_attentions=True)
        if not encoding.attentions:
            raise BertsmithError(NO_ATTENTION)
        return torch.stack(encoding.attentions, dim=1)  # [1, layers, heads, L, L]


def _pool(encoder: Encoder, batch: Batch, *, pooling: Pooling, layers: Sequence[int]) -> list[Tensor]:
    """One vector for each text of a batch without padding [N, D] float32, for each layer."""
    if pooling == "pooled":
        return [encoder(batch, indices={}).pooled.float()]  # the last layer runs on the first tokens only
    cls_N = batch.cls_positions.clamp(min=0)  # any token will do where there is no text
    if pooling == "first" and _is_last_layer(encoder, layers):
        encoding: Encoding = encoder(batch, indices={"first": cls_N}, pool=False)
        return [encoding.at("first").float()]
    outputs = _layer_outputs(encoder, batch, layers)
    if pooling == "first":
        return [layer_TD[cls_N].float() for layer_TD in outputs]
    return [_over_tokens(layer_TD.float(), batch, pooling) for layer_TD in outputs]


def _is_last_layer(encoder: Encoder, layers: Sequence[int]) -> bool:
    return len(layers) == 1 and layers[0] in (-1, encoder.layers)


def _layer_outputs(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """The outputs of these layers at all tokens [T, D]; only the last layer is kept if no other is used."""
    if _is_last_layer(encoder, layers):
        return [encoder(batch, pool=False).last_hidden]
    outputs: tuple[Tensor, ...] = encoder(batch, pool=False, return_layers=True).layers
    return [outputs[layer] for layer in layers]


def _over_tokens(layer_TD: Tensor, batch: Batch, pooling: Pooling) -> Tensor:
    """The mean, maximum, or sum / sqrt(L) of the tokens of each text [N, D]."""
    lengths_N1 = batch.cu_seqlens.diff()[: len(batch.cls_positions), None]
    reduce = "max" if pooling == "max" else "sum"
    reduced_ND = torch.segment_reduce(layer_TD, reduce, offsets=batch.cu_seqlens.long(), unsafe=True)[: len(lengths_N1)]
    return reduced_ND if pooling == "max" else reduced_ND / lengths_N1 ** (0.5 if pooling == "mean_sqrt_len" else 1)


def check_embedding_options(
    encoder: Encoder, *, pooling: str, layers: Sequence[int], combine: str = "mean"
) -> tuple[int, ...]:
    """The layers; an error if the encoder cannot produce these embeddings."""
    if pooling not in POOLINGS:
        raise BertsmithError(f'pooling "{pooling}" does not exist: choose {", ".join(POOLINGS)}')
    if combine not in ("mean", "concat"):
        raise BertsmithError(f'combine "{combine}" does not exist: choose mean or concat')
    if pooling == "pooled" and not encoder.has_pooler:
        raise BertsmithError("this model has no pooler: use pooling mean or first")
    count = encoder.layers + 1
    for layer in layers:
        if not -count <= layer < count:
            choices = f"choose 0 (the embeddings) to {encoder.layers}, or -1 (last)"
            raise BertsmithError(f"layer {layer} does not exist: {choices}")
    if not layers:
        raise BertsmithError("layers is empty: name at least one layer, for example -1 (last)")
    return tuple(layers)


def stacked(vectors: Sequence[NDArray[np.float32]], *, width: int) -> NDArray[np.float32]:
    """The vectors as one array [N, D]; of none [0, width]. For one vector a fraction of the cost of `np.stack`."""
    return np.concatenate(vectors).reshape(len(vectors), -1) if vectors else np.empty((0, width), np.float32)


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vectors divided by their L2 norms."""
    unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return unit
